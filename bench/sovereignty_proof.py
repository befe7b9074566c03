"""How long does a proof of 2,000 resources take, does it find every seeded mistake, and do two provers agree?

`measure` adds its goals to a verdict, so that `bench/sovereignty.py` can include them; alone it prints its own.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

from harch.sovereignty.proof.enumerate import enumerate_violations
from harch.sovereignty.proof.model import ChangeTracks
from harch.sovereignty.proof.prove import ProofStatus, prove
from harch.sovereignty.proof.symbolic import SolverReply, load_solver, solve
from proof_random import random_case
from proof_replay import replay
from proof_seeded import KINDS, clean_world, harmless_changes, seeded
from verdict import Verdict, conditions

VIOLATIONS = 200
STATES = 1_000
REPLAYED_MAX = 10  # stories per violation that the oracle replays


def measure(verdict: Verdict, *, violations: int = VIOLATIONS, states: int = STATES) -> None:
    clean(verdict)
    seeds(verdict, violations)
    agreement(verdict, states)


def clean(verdict: Verdict) -> None:
    """The clean fleet, alone and with harmless changes pending: proven, and how soon."""
    world = clean_world()
    cases = [(), *(tuple(harmless_changes(world, seed)) for seed in range(5))]
    took, proven = [], 0
    for changes in cases:
        started = time.perf_counter()
        proven += prove(world, changes).status is ProofStatus.PROVEN
        took.append(time.perf_counter() - started)
    print(f"clean fleet of {world.size:,} resources: proven {proven} of {len(cases)}, {max(took):.2f} s at most")
    verdict.goal("proof of 2,000 resources", "< 10", max(took), "s")
    verdict.goal("clean fleets proven", f"== {len(cases)}", proven)


def seeds(verdict: Verdict, count: int) -> None:
    """Every seeded mistake: found, named by its changes, and replayed by the oracle."""
    world = clean_world()
    right: Counter[str] = Counter()
    wrong: list[str] = []
    started = time.perf_counter()
    for number in range(count):
        seed = seeded(world, number)
        proof = prove(seed.world, seed.changes)
        hits = [s for s in proof.counterexamples if seed.is_it(s.step) and {c.id for c in s.changes} >= seed.needs]
        told = [*hits[:REPLAYED_MAX], *proof.counterexamples[:REPLAYED_MAX]]
        errors = [error for error in (replay(seed.world, seed.changes, story) for story in told) if error]
        if proof.status is ProofStatus.VIOLATED and hits and not errors:
            right[seed.kind] += 1
        else:
            wrong.append(f"{number} ({seed.kind}): {proof.status}, {len(hits)} hits, {errors[:1]}")
    for kind in KINDS:
        print(f"  {kind}: {right[kind]} found with a right counterexample")
    for line in wrong[:10]:
        print(f"  missed {line}")
    print(f"{count} seeded violations, proven and replayed in {time.perf_counter() - started:.0f} s")
    verdict.goal("seeded violations found, with a right counterexample", f"== {count}", right.total())


def agreement(verdict: Verdict, count: int) -> None:
    """The solver and enumeration on random worlds, about one in five of which is proven."""
    solver = load_solver()
    if solver is None:
        print("the solver is not installed: pip install 'harch[proof]'")
        verdict.goal("solver agrees with enumeration", f"== {count}", 0)
        return
    agreed, violated = 0, 0
    by_enumeration = by_solver = 0.0
    for seed in range(count):
        book = ChangeTracks(*random_case(seed))
        started = time.perf_counter()
        found = bool(enumerate_violations(book).violations)
        between = time.perf_counter()
        answer = solve(book, solver)
        by_enumeration += between - started
        by_solver += time.perf_counter() - between
        agreed += answer.reply is (SolverReply.POSSIBLE if found else SolverReply.NEVER)
        violated += found
    print(
        f"solver and enumeration agree on {agreed} of {count} random worlds, {violated} of them violated; "
        f"enumeration was {by_solver / by_enumeration:.0f} times as fast"
    )
    verdict.goal("solver agrees with enumeration", f"== {count}", agreed)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--violations", type=int, default=VIOLATIONS)
    options.add_argument("--states", type=int, default=STATES)
    chosen = options.parse_args()
    print(f"conditions: {conditions()}")
    verdict = Verdict("sovereignty-proof")
    measure(verdict, violations=chosen.violations, states=chosen.states)
    verdict.print()


if __name__ == "__main__":
    main()
