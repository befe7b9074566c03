"""Does the Rego policy say what the compiled rules say, and how fast? Random worlds, both paths in one run.

`measure` is what `bench/sovereignty.py` prints beside its own figures; alone, this file ends with its own verdict.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import dataclass
from random import Random

from harch.sovereignty.compiled import Rules
from harch.sovereignty.jurisdiction_file import shipped_jurisdictions
from harch.sovereignty.policy.document import compiled_answer, document_of, world_document
from harch.sovereignty.policy.evaluation import DEFAULT, DEFAULT_ALLOW, program_of, read_bundle
from harch.sovereignty.policy.supervisor import PolicyWorker, WorkerLimits
from harch.sovereignty.policy.verdict import read_verdict
from harch.testing.policy_cases import random_question, random_world
from verdict import Verdict, conditions

WORLDS = 50
BATCH = 250
WORKERS = 2


@dataclass
class Tally:
    """What the comparison found."""

    cases: int = 0
    allowed: int = 0
    differences: int = 0
    faults: int = 0
    rego_s: float = 0.0  # summed over the workers
    compiled_s: float = 0.0

    @property
    def rego_per_s(self) -> float:
        return self.cases / self.rego_s if self.rego_s else 0.0

    @property
    def compiled_per_s(self) -> float:
        return self.cases / self.compiled_s if self.compiled_s else 0.0


async def measure(cases: int, seed: int = 1) -> Tally:
    """Compares on so many cases, over `WORLDS` random worlds, with two workers side by side."""
    tally = Tally()
    per_world = -(-cases // WORLDS)
    seeds = iter(range(seed * 1000, seed * 1000 + WORLDS))

    async def compare() -> None:
        for number in seeds:
            await _one_world(Random(number), per_world, tally)

    async with asyncio.TaskGroup() as group:
        for _ in range(WORKERS):
            group.create_task(compare())
    return tally


async def _one_world(random: Random, cases: int, tally: Tally) -> None:
    world = random_world(random)
    rules = Rules(world)
    program = program_of(read_bundle(DEFAULT), world_document(world, shipped_jurisdictions()))
    async with PolicyWorker(program, limits=WorkerLimits(answer_s=60.0, cpu_s=60)) as worker:
        left = cases
        while left > 0:
            questions = [random_question(random, world) for _ in range(min(BATCH, left))]
            left -= len(questions)
            documents = [document_of(question) for question in questions]
            start = time.perf_counter()
            answers = await worker.evaluate_many(DEFAULT_ALLOW, documents)
            middle = time.perf_counter()
            compiled = [compiled_answer(rules, question) for question in questions]
            tally.compiled_s += time.perf_counter() - middle
            tally.rego_s += middle - start
            for answer, expected in zip(answers, compiled, strict=True):
                verdict = read_verdict(answer)
                tally.cases += 1
                tally.allowed += expected
                tally.faults += verdict.is_fault
                tally.differences += verdict.allowed != expected


async def single_questions(count: int = 1000) -> float:
    """Questions per second when they come one by one, as at admission without the cache."""
    random = Random(7)
    world = random_world(random)
    program = program_of(read_bundle(DEFAULT), world_document(world, shipped_jurisdictions()))
    documents = [document_of(random_question(random, world)) for _ in range(count)]
    async with PolicyWorker(program) as worker:
        start = time.perf_counter()
        for document in documents:
            await worker.evaluate(DEFAULT_ALLOW, document)
        return count / (time.perf_counter() - start)


def report(tally: Tally, single_per_s: float, verdict: Verdict) -> None:
    """Prints the figures and adds the goals."""
    print(
        f"Rego against compiled: {tally.cases:,} random cases in {WORLDS} worlds, {tally.allowed / tally.cases:.0%} of "
        f"them allowed, {tally.differences} differences, {tally.faults} faults"
    )
    print(
        f"Rego: {tally.rego_per_s:,.0f} decisions/s per worker in batches of {BATCH}, {single_per_s:,.0f}/s one by "
        f"one; compiled, one call per case, nearly every tag a new one: {tally.compiled_per_s:,.0f}/s "
        f"({tally.compiled_per_s / tally.rego_per_s:,.0f} times as many)"
    )
    verdict.goal("differences between Rego and compiled rules", "== 0", tally.differences)
    verdict.goal("faults of the policy worker", "== 0", tally.faults)
    verdict.goal("cases compared", ">= 100000", tally.cases)
    verdict.goal("compiled calls per Rego decision", ">= 20", tally.compiled_per_s / tally.rego_per_s, "x")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--cases", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    print(f"conditions: {conditions()}; {WORKERS} policy workers and the comparison on the same machine")
    verdict = Verdict("sovereignty_rego")
    tally = asyncio.run(measure(chosen.cases, chosen.seed))
    report(tally, asyncio.run(single_questions()), verdict)
    verdict.print()


if __name__ == "__main__":
    main()
