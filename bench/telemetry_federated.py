"""Do all hubs together say what one store would say, and does nobody abroad learn of a few? Random questions, by seed.

`python bench/telemetry_federated.py`, a part of `make bench-telemetry`. Hubs are stores in memory; questions are cut,
answered by every hub over msgpack, and joined. The central answer is that of the same engine over one store with the
series of all hubs. Three things are asked:

- hubs of one country: any question, with and without a label of the hub;
- hubs of other countries: questions that may be asked there, of large groups of series that do not come and go;
- an attacker abroad: hundreds of permitted questions about 60 GPUs, and the smallest number of GPUs that any linear
  combination of the answers can speak of; beside it the same attacker where hubs do not remember what they told.

Errors are relative; differences below 1e-11, what is left where sums of many thousands cancel out, count as none.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import msgspec

from harch.base.errors import HarchError
from harch.sentinel.federated.disclosure.answer import OwnHub, TenantReaders, answer
from harch.sentinel.federated.disclosure.ledger import Memory
from harch.sentinel.federated.messages import FederatedAnswer, MetricPart, Question, Requester, SeriesResult
from harch.sentinel.federated.query.merge import Merged, merge
from harch.sentinel.federated.query.plans import FederatedPlan
from harch.sentinel.federated.query.split import plan
from harch.sentinel.model.selection import Queryable
from harch.sentinel.promql.evaluate.engine import QueryEngine
from harch.sentinel.promql.evaluate.values import QueryResult, StepGrid
from harch.testing.federated_telemetry import (
    ABSOLUTE,
    TelemetryWorld,
    Victim,
    attack,
    difference,
    question,
    remote_question,
    result_points,
    victim,
    world,
)
from verdict import Verdict, conditions

QUESTIONS, ATTACKS, ATTACK_QUESTIONS = 1_000, 20, 400
WORLD_QUESTIONS = 25  # of one world
NOW_S = 1e6
ENGINE = QueryEngine()
Result = TypeVar("Result")
HOME, ABROAD = Requester(hub_id="tangier", country="MA"), Requester(hub_id="dakar", country="SN")


@dataclass
class Score:
    asked: int = 0
    empty: int = 0
    incomplete: int = 0
    different: list[str] = field(default_factory=list)
    error_max: float = 0.0
    wire_bytes: int = 0
    federated_s: float = 0.0
    central_s: float = 0.0


def federated_goals(questions: int = QUESTIONS, attacks: int = ATTACKS) -> list[dict[str, object]]:
    """Runs everything, prints figures, and returns the goals as `Verdict` keeps them."""
    verdict = Verdict("telemetry-federated")
    home, abroad = equal_at_home(questions), equal_abroad(max(questions // 4, 1))
    for name, score in (("one country", home), ("other countries", abroad)):
        ratio = score.federated_s / max(score.central_s, 1e-9)
        print(f"  {name}: {score.asked} questions, {score.empty} with an empty answer, {score.incomplete} not complete")
        print(
            f"    largest relative error {score.error_max:.1e}, {score.wire_bytes / score.asked:.0f} bytes a question,"
        )
        print(f"    CPU of all hubs and the asker together against the central store: {ratio:.1f}x")
        for text in score.different[:5]:
            print(f"    differs: {text}")
        whole = score.asked - (score.incomplete if score is abroad else 0)  # at home every answer has to be complete
        verdict.goal(f"{name}: questions with the central answer", f"== {whole}", whole - len(score.different))
        verdict.goal(f"{name}: largest relative error", "< 1", score.error_max * 1e9, "1e-9")
    verdict.goal("other countries: answers that are complete", ">= 0.5", 1 - abroad.incomplete / abroad.asked)
    fewest, told, careless = attacked(attacks)
    print(f"  {attacks} attackers of {ATTACK_QUESTIONS} questions each are told {told} sums;")
    print(f"    where hubs do not remember, the first of them isolates {careless} GPU")
    verdict.goal("GPUs that the smallest combination of answers speaks of", ">= 5", fewest)
    return verdict.goals


def equal_at_home(questions: int) -> Score:
    score = Score()
    for number in range(questions):
        chance = random.Random(number)
        if number % WORLD_QUESTIONS == 0:
            hub_label = bool(number // WORLD_QUESTIONS % 2)
            there = world(number, hub_label=hub_label)
        text = question(chance)
        step_ms = chance.choice((60_000, 97_000, 240_000))
        grid = StepGrid.between(600_000 + chance.randrange(60_000), 2_300_000, step_ms)
        grid = StepGrid.instant(grid.start_ms) if chance.random() < 0.3 else grid
        _compare(text, grid, there, "hub" if hub_label and chance.random() < 0.5 else None, HOME, score)
    return score


def equal_abroad(questions: int) -> Score:
    """A fresh memory for every question: here only the values are compared, and the attacker is for the rest."""
    score = Score()
    for number in range(questions):
        chance = random.Random(number)
        if number % WORLD_QUESTIONS == 0:
            there = world(number, hubs=2, sources=40, minutes=30, churn=False)
        grid = StepGrid.between(900_000, 1_500_000, chance.choice((60_000, 120_000)))
        _compare(remote_question(chance), grid, there, None, ABROAD, score)
    return score


def _compare(
    text: str, grid: StepGrid, there: TelemetryWorld, hub_label: str | None, who: Requester, score: Score
) -> None:
    score.asked += 1
    begin_s = time.process_time()
    cut = plan(text, grid, hub_label=hub_label)
    answers = [_told(cut, hub_id, store, who, score) for hub_id, store in there.hubs.items()]
    merged: Merged | str = _or_code(lambda: merge(cut, answers, engine=ENGINE))
    middle_s = time.process_time()
    central: QueryResult | str = _or_code(
        lambda: (
            ENGINE.instant(text, grid.start_ms, there.central)
            if grid.step_ms == 0
            else ENGINE.range(text, grid.start_ms, grid.end_ms, grid.step_ms, there.central)
        )
    )
    score.federated_s += middle_s - begin_s
    score.central_s += time.process_time() - middle_s
    if isinstance(merged, str) or isinstance(central, str):
        if merged != central:
            score.different.append(text)
        return
    if not merged.is_complete:
        score.incomplete += 1
        if who is HOME:
            score.different.append(text)
        return
    ours, theirs = result_points(merged.result), result_points(central)
    score.empty += not theirs
    if difference(ours, theirs):
        score.different.append(f"{text}: {difference(ours, theirs)[:200]}")
        return
    for key, value in theirs.items():
        other = ours[key]
        is_number = isinstance(value, float) and isinstance(other, float) and math.isfinite(value)
        if is_number and abs(value - other) > ABSOLUTE:
            score.error_max = max(score.error_max, abs(value - other) / abs(value))


def _or_code(ask: Callable[[], Result]) -> Result | str:
    """An answer, or the code of its error."""
    try:
        return ask()
    except HarchError as error:
        return error.code


def _told(cut: FederatedPlan, hub_id: str, store: Queryable, who: Requester, score: Score) -> FederatedAnswer:
    hub = OwnHub(hub_id, "MA", lambda _: TenantReaders(store), Memory(), engine=ENGINE)
    asked = Question(id="bench", tenant="default", requested_by="bench", parts=cut.parts)
    wire = msgspec.msgpack.encode(answer(asked, who, hub, now_s=NOW_S))
    score.wire_bytes += len(wire)
    return msgspec.msgpack.decode(wire, type=FederatedAnswer)


def attacked(attacks: int) -> tuple[int, int, int]:
    """The fewest GPUs with the hub's memory, how many sums were told, and the fewest where nothing is remembered."""
    fewest, told, careless = 1_000, 0, 1_000
    for seed in range(attacks):
        gpus = victim(random.Random(seed))
        remembering = partial(_asked, gpus, Memory())
        learned = attack(random.Random(seed), gpus.marks, remembering, ATTACK_QUESTIONS)
        fewest, told = min(fewest, learned.fewest()), told + len(learned.sums)
        if seed == 0:
            forgetful = partial(_asked, gpus, None)
            careless = attack(random.Random(seed), gpus.marks, forgetful, ATTACK_QUESTIONS).fewest()
    return fewest, told, careless


def _asked(gpus: Victim, memory: Memory | None, text: str) -> tuple[SeriesResult, ...]:
    hub = OwnHub("casablanca", "MA", lambda _: TenantReaders(gpus.store), memory or Memory(), engine=ENGINE)
    part = MetricPart(expression=text, start_ms=gpus.at_ms, end_ms=gpus.at_ms, step_ms=0)
    asked = Question(id="bench", tenant="default", requested_by="bench", parts=(part,))
    return answer(asked, ABROAD, hub, now_s=NOW_S).results[0].series


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--questions", type=int, default=QUESTIONS)
    parser.add_argument("--attacks", type=int, default=ATTACKS)
    options, _ = parser.parse_known_args()  # others are for other parts
    print(conditions())
    verdict = Verdict("telemetry-federated", federated_goals(options.questions, options.attacks))
    verdict.print()


if __name__ == "__main__":
    main()
