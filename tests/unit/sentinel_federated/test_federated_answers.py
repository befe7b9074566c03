"""What hubs tell together equals what one store of all their series would say."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import msgspec
import pytest
from owner_world import HOME, Owner, gpu, steady

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.sentinel.federated.disclosure.answer import OwnHub, TenantReaders, answer
from harch.sentinel.federated.disclosure.ledger import Memory
from harch.sentinel.federated.messages import FederatedAnswer, PartResult, Question, Requester, SeriesResult
from harch.sentinel.federated.query.merge import Merged, merge
from harch.sentinel.federated.query.plans import FederatedPlan
from harch.sentinel.federated.query.split import plan
from harch.sentinel.model.labels import Matcher, MatchKind
from harch.sentinel.model.selection import Queryable, SeriesBatch
from harch.sentinel.promql.evaluate.engine import QueryEngine
from harch.sentinel.promql.evaluate.values import StepGrid
from harch.sentinel.store.blocks.planning import BlockPolicy
from harch.sentinel.store.limits import TenantLimits
from harch.sentinel.store.tenants import StoreFolder
from harch.testing.clock import SimClock
from harch.testing.federated_telemetry import MemoryMetrics, TelemetryWorld, difference, question, result_points, world

ENGINE = QueryEngine()
QUESTIONS = 15


@lru_cache(maxsize=1)
def large_world() -> TelemetryWorld:
    return world(3, hubs=2, sources=45, minutes=30, churn=False)


def asked(cut: FederatedPlan, hub_id: str, country: str, store: Queryable, asker: Requester = HOME) -> FederatedAnswer:
    """A hub's answer, over the wire and back."""
    owner = OwnHub(hub_id, country, lambda _: TenantReaders(store), Memory(), engine=ENGINE)
    told = answer(Question(id="q", tenant="t", requested_by="me", parts=cut.parts), asker, owner, now_s=1e6)
    return msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=FederatedAnswer)


def over_all(cut: FederatedPlan, there: TelemetryWorld, country: str = "MA") -> Merged:
    return merge(cut, [asked(cut, hub_id, country, store) for hub_id, store in there.hubs.items()], engine=ENGINE)


@pytest.mark.parametrize("hub_label", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_random_questions_have_the_central_answer(seed: int, hub_label: bool) -> None:
    chance = random.Random(f"{seed} {hub_label}")
    there = world(seed, sources=5, minutes=30, hub_label=hub_label)
    for _ in range(QUESTIONS):
        text = question(chance)
        grid = StepGrid.between(600_000 + chance.randrange(60_000), 1_700_000, chance.choice((60_000, 97_000)))
        cut = plan(text, grid, hub_label="hub" if hub_label and chance.random() < 0.5 else None)
        merged = over_all(cut, there)
        assert merged.refused == ()
        central = ENGINE.range(text, grid.start_ms, grid.end_ms, grid.step_ms, there.central)
        assert difference(result_points(merged.result), result_points(central)) == "", text


def test_a_label_that_places_use_inside_is_a_label_like_any_other() -> None:
    there = world(7, sources=2, minutes=20)
    merged = over_all(plan('absent(m{__place__="7"})', StepGrid.instant(600_000)), there)
    assert list(result_points(merged.result).values()) == [1.0]


def test_an_instant_question_keeps_the_order_of_its_sort() -> None:
    there = world(7, sources=4, minutes=20)
    text = "sort_desc(sum by (model, hub) (m))"
    merged = over_all(plan(text, StepGrid.instant(1_000_000)), there)
    central = ENGINE.instant(text, 1_000_000, there.central)
    assert list(result_points(merged.result)) == list(result_points(central))


@pytest.mark.parametrize(
    "text",
    [
        "sum(m)",
        "avg by (model) (m)",
        "stddev(rate(c_total[5m]))",
        "sum by (zone) (increase(c_total[2m])) / sum by (zone) (m)",
        "histogram_quantile(0.9, sum by (le) (rate(b_bucket[5m])))",
        "histogram_quantile(0.5, sum(rate(h[5m])))",
        "max_over_time(sum(m)[10m:1m])",
        "sum(m) * 2 > 5",
    ],
)
def test_what_hubs_of_other_countries_tell_of_large_groups_is_the_central_answer_too(text: str) -> None:
    there = large_world()
    cut = plan(text, StepGrid.between(1_200_000, 1_500_000, 60_000))
    merged = over_all(cut, there, country="SN")
    assert merged.is_complete, merged
    central = ENGINE.range(text, 1_200_000, 1_500_000, 60_000, there.central)
    assert difference(result_points(merged.result), result_points(central)) == ""


def test_a_store_on_disk_tells_abroad_what_one_in_memory_tells(tmp_path: Path) -> None:
    there = large_world().hubs["hub-0"]
    folder = StoreFolder(tmp_path, SimClock(), TenantLimits(out_of_order_ms=None), BlockPolicy())
    try:
        kept = there.select((Matcher(MatchKind.EQUAL, "__name__", "c_total"),), 0, 10**9, limit=10**9)
        batches = []
        for row in range(kept.series.count):
            part = slice(int(kept.samples.first[row]), int(kept.samples.first[row] + kept.samples.count[row]))
            times, numbers = kept.samples.timestamps[part].tolist(), kept.samples.values[part].tolist()
            batches.append(SeriesBatch(kept.series.labels_of(row), times, numbers))
        folder.store("default").append(batches)
        cut = plan("stddev(rate(c_total[5m]))", StepGrid.between(900_000, 1_500_000, 60_000))
        told = [asked(cut, "hub-0", "SN", store).results for store in (there, folder.store("default"))]
        assert told[0] == told[1]
        assert all(len(part.series[0].at) == 11 for part in told[0])
    finally:
        folder.close()


def test_refusals_are_named_and_the_others_are_heard() -> None:
    there = world(3, hubs=2, sources=6, minutes=20)
    cut = plan("max(m)", StepGrid.instant(900_000))
    (near, far) = there.hubs.items()
    merged = merge(cut, [asked(cut, far[0], "SN", far[1])], asked(cut, near[0], "MA", near[1]))
    (refused,) = merged.refused
    assert (refused.hub_id, refused.rejection.rule) == (far[0], "aggregate")
    assert not merged.is_complete
    assert result_points(merged.result) == result_points(ENGINE.instant("max(m)", 900_000, near[1]))


def test_a_hub_that_refuses_one_part_takes_no_part_at_all() -> None:
    cut = plan("avg(m)", StepGrid.instant(0))
    numbers = [PartResult(series=(SeriesResult(labels=(), at=(0,), values=(value,)),)) for value in (10.0, 4.0)]
    refused = PartResult(refused=Rejection("count(m)", "size", "too much", "ask for less"))
    whole = FederatedAnswer(question_id="q", hub_id="a", country="MA", results=(numbers[0], numbers[1]))
    half = FederatedAnswer(question_id="q", hub_id="b", country="MA", results=(numbers[0], refused))
    merged = merge(cut, [whole, half])
    assert list(result_points(merged.result).values()) == [2.5]
    assert [one.hub_id for one in merged.refused] == ["b"]


def test_suppressed_groups_are_counted() -> None:
    there = world(3, hubs=1, sources=4, minutes=30, churn=False)
    merged = over_all(plan("sum(m)", StepGrid.instant(1_200_000)), there, country="SN")
    assert merged.suppressed == 1
    assert result_points(merged.result) == {}


def test_a_series_that_two_hubs_keep_is_shown_once_and_said_so() -> None:
    series = {gpu(1): steady(1.0), gpu(2): steady(2.0)}
    stores = [MemoryMetrics(series), MemoryMetrics({gpu(1): steady(5.0), gpu(3): steady(3.0)})]
    cut = plan("load", StepGrid.instant(3_600_000))
    answers = [asked(cut, f"hub-{number}", "MA", store) for number, store in enumerate(stores)]
    merged = merge(cut, answers[1:], answers[0])
    found = {dict(key[0])["device"]: value for key, value in result_points(merged.result).items()}
    assert found == {"gpu-1": 4.6, "gpu-2": 5.6, "gpu-3": 6.6}, "the own hub's counts"
    assert any("more than one hub" in text for text in merged.warnings)
    counted = plan("count(load)", StepGrid.instant(3_600_000))
    answers = [asked(counted, f"hub-{number}", "MA", store) for number, store in enumerate(stores)]
    assert list(result_points(merge(counted, answers).result).values()) == [4.0], "a sum cannot know"


@pytest.mark.parametrize(
    "told",
    [
        (),
        (PartResult(series=(SeriesResult(labels=(), at=(0, 1), values=(1.0,)),)),),
        (PartResult(series=(SeriesResult(labels=(), at=(5,), values=(1.0,)),)),),
        (PartResult(series=(SeriesResult(labels=(), at=(-1,), values=(1.0,)),)),),
        (PartResult(series=(SeriesResult(labels=(), at=(1, 0), values=(1.0, 2.0)),)),),
        (PartResult(series=(SeriesResult(labels=(("b", "1"), ("a", "1")), at=(0,), values=(1.0,)),)),),
        (PartResult(series=(SeriesResult(labels=(("a", ""),), at=(0,), values=(1.0,)),)),),
    ],
)
def test_an_answer_that_does_not_fit_the_question_is_not_used(told: tuple[PartResult, ...]) -> None:
    cut = plan("sum(m)", StepGrid.between(0, 120_000, 60_000))
    strange = FederatedAnswer(question_id="q", hub_id="dakar", country="SN", results=told)
    with pytest.raises(HarchError, match="dakar") as error:
        merge(cut, [strange])
    assert error.value.code == "E0695"


def test_a_hub_answers_its_own_country_raw_and_a_stranger_of_no_country_not_at_all() -> None:
    owner = Owner({gpu(1): steady(1.0)})
    assert len(owner.ask("load", who=HOME).series) == 1
    told = owner.ask("sum(load)", who=Requester(hub_id="x", country=""))
    assert told.refused is not None
    assert told.refused.rule == "country"


def test_an_answer_has_a_limit() -> None:
    owner = Owner({gpu(number): steady(1.0) for number in range(30)})
    owner.hub = replace(owner.hub, policy=msgspec.structs.replace(owner.hub.policy, points_max=100))
    told = owner.ask("load", at_min=10, until_min=50, who=HOME)
    assert told.refused is not None
    assert told.refused.rule == "size"
