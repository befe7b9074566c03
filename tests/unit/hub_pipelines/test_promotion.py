"""A canary becomes active after its time and its rows, and goes if it does worse; without rules, a person decides."""

from __future__ import annotations

import pytest

from harch.hub.pipelines.promotion import Promotion, decide_promotion
from harch.pipelines.spec.settings import PipelineSpec
from harch.pipelines.workers.telemetry import WorkerStatus
from unit.hub_pipelines.pipeline_samples import spec

ONE = '{version: "1", runtime: python, callable: "field_models:dry"}'
TWO = '{version: "2", runtime: python, callable: "field_models:drier", role: canary}'
RULES = "promote: {after_s: 60, rows_min: 100, errors_percent_max: 2, disagreement_percent_max: 10}"


def pipeline(rules: str = RULES, second: str = TWO) -> PipelineSpec:
    return spec((f"        - {ONE}\n", f"        - {ONE}\n        - {second}\n      {rules}\n"))


def says(worker: str, two: str = "canary", one: str = "active", **done: int) -> WorkerStatus:
    counters = {f"canary.dryness@2.{name}": count for name, count in done.items()}
    return WorkerStatus(
        worker=worker,
        stage="think",
        pipeline="fields",
        at_ms=0,
        incarnation="",
        pid=1,
        health="ok",
        counters=counters,
        details={"model.dryness@1": one, "model.dryness@2": two},
    )


def after(statuses: list[WorkerStatus], age_s: float, wanted: PipelineSpec | None = None) -> tuple[Promotion, ...]:
    found = wanted or pipeline()
    since = decide_promotion(found, statuses, {}, 1000.0).since_s
    return decide_promotion(found, statuses, since, 1000.0 + age_s).promotions


WELL = [says("think-0", rows=70, compared=70, disagreed=3), says("think-1", rows=60, compared=60)]


def test_it_becomes_active_after_its_time_and_its_rows_of_all_workers() -> None:
    assert after(WELL, 59) == ()
    assert after(WELL[:1], 61) == ()
    (found,) = after(WELL, 61)
    assert (found.version, found.role) == ("2", "active")
    assert "130 rows" in found.reason


def test_the_time_counts_from_when_every_worker_has_it_and_begins_again_otherwise() -> None:
    starting = [*WELL[:1], says("think-1", two="loaded")]
    assert decide_promotion(pipeline(), starting, {"dryness@2": 0.0}, 1000.0).since_s == {}
    assert decide_promotion(pipeline(), WELL, {}, 1000.0).since_s == {"dryness@2": 1000.0}
    assert decide_promotion(pipeline(), [], {"dryness@2": 0.0}, 1000.0).promotions == ()


@pytest.mark.parametrize(
    ("done", "why"),
    [
        ({"rows": 100, "bad": 3, "compared": 100}, "failed"),
        ({"rows": 100, "compared": 100, "disagreed": 11}, "disagree"),
    ],
)
def test_it_goes_if_it_does_worse_than_its_rules_allow(done: dict[str, int], why: str) -> None:
    (found,) = after([says("think-0", **done)], 61)
    assert found.role == "retired"
    assert why in found.reason


def test_it_waits_while_nothing_was_compared_and_goes_at_once_where_a_worker_took_it_out() -> None:
    assert after([says("think-0", rows=500)], 61) == ()
    (found,) = after([WELL[0], says("think-1", two="retired")], 0)
    assert (found.version, found.role) == ("2", "retired")


def test_an_active_version_that_all_workers_took_back_makes_room_for_the_one_before_it() -> None:
    wanted = spec(
        (
            f"        - {ONE}\n",
            f"        - {ONE[:-1]}, role: loaded}}\n        - {TWO.replace('canary', 'active')}\n      {RULES}\n",
        )
    )
    back = [says("think-0", two="retired"), says("think-1", two="retired")]
    assert [(one.version, one.role) for one in after(back, 0, wanted)] == [("1", "active"), ("2", "retired")]
    assert after([back[0], says("think-1", two="active", one="retired")], 0, wanted) == ()


def test_without_rules_a_person_decides() -> None:
    assert after([says("think-0", rows=10**6), says("think-1", two="retired")], 10**6, pipeline(rules="")) == ()
