"""Traces stay in their country; statistics of many traces cross borders."""

from __future__ import annotations

import msgspec
import pytest
from owner_world import HOME, HOUR_S, Owner, rule

from harch.sentinel.federated.messages import FederatedAnswer, PartResult
from harch.sentinel.federated.query.merge import ERRORS_UNKNOWN, groups_together, spans_together, traces_together
from harch.sentinel.model.spans import Span, SpanGroup, SpanStatus
from harch.testing.telemetry_stores import MemorySpans

SECOND_NS = 10**9


def span(trace: int, number: int = 0, *, name: str = "place", service: str = "hub", failed: bool = False) -> Span:
    return Span(
        trace_id=f"{trace:032x}",
        span_id=f"{trace * 1000 + number:016x}",
        parent_id="",
        service=service,
        name=name,
        start_ns=(60 + trace) * SECOND_NS,
        duration_ns=(trace + 1) * 1_000_000,
        status=SpanStatus.ERROR if failed else SpanStatus.OK,
    )


def store(*spans: Span) -> MemorySpans:
    kept = MemorySpans()
    kept.append(spans)
    return kept


def groups(told: PartResult) -> dict[tuple[str, ...], SpanGroup]:
    assert told.refused is None, told.refused
    return {group.key: group for group in msgspec.json.decode(told.body or b"[]", type=list[SpanGroup])}


def test_statistics_of_many_traces_cross_a_border_without_their_distribution() -> None:
    owner = Owner(spans=store(*(span(number) for number in range(20))))
    found = groups(owner.ask_spans(by=("service",)))
    assert found[("hub",)].count == 20
    assert found[("hub",)].duration_sum_ns == sum(range(1, 21)) * 1_000_000
    assert found[("hub",)].buckets == (), "at its ends it would show single spans"


def test_few_traces_with_many_spans_are_few() -> None:
    owner = Owner(spans=store(*(span(trace, number) for trace in range(4) for number in range(50))))
    told = owner.ask_spans(by=("service",))
    assert groups(told) == {}
    assert told.suppressed == 1


def test_a_store_that_counts_no_traces_is_asked_for_them() -> None:
    class Plain(MemorySpans):
        def statistics(self, query, by):  # type: ignore[no-untyped-def]
            return [
                SpanGroup(g.key, g.count, g.errors, g.duration_sum_ns, g.buckets) for g in super().statistics(query, by)
            ]

    many, few = Plain(), Plain()
    many.append([span(number) for number in range(20)])
    few.append([span(trace, number) for trace in range(4) for number in range(50)])
    assert groups(Owner(spans=many).ask_spans())
    assert groups(Owner(spans=few).ask_spans()) == {}


def test_the_number_of_errors_is_told_only_if_they_are_many() -> None:
    few = [span(number, failed=number == 7) for number in range(20)]
    found = groups(Owner(spans=store(*few)).ask_spans(by=("service",)))
    assert (found[("hub",)].count, found[("hub",)].errors) == (20, ERRORS_UNKNOWN)
    many = [span(number, failed=number >= 10) for number in range(20)]
    assert groups(Owner(spans=store(*many)).ask_spans(by=("service",)))[("hub",)].errors == 10


def test_all_names_and_all_but_one_are_not_both_told() -> None:
    spans = [*(span(number) for number in range(20)), span(99, name="secret")]
    owner = Owner(spans=store(*spans))
    assert groups(owner.ask_spans(by=("service",)))
    assert groups(owner.ask_spans(by=("name",))) == {}
    assert groups(owner.ask_spans("name!=secret")) == {}
    other = Owner(spans=store(*spans))
    assert set(groups(other.ask_spans(by=("name",)))) == {("place",)}
    assert groups(other.ask_spans(by=("service",))) == {}


def test_a_span_that_ends_late_is_not_found_by_asking_again() -> None:
    kept = store(*(span(number) for number in range(20)))
    owner = Owner(spans=kept)
    assert groups(owner.ask_spans(by=("service",)))[("hub",)].count == 20
    assert groups(owner.ask_spans(by=("service",)))[("hub",)].count == 20, "nothing has changed"
    kept.append([span(50)])
    assert groups(owner.ask_spans(by=("service",))) == {}
    assert groups(Owner(spans=kept).ask_spans(by=("service",)))[("hub",)].count == 21, "who was told nothing before"


@pytest.mark.parametrize(
    ("query", "kind", "broken"),
    [
        ("service=hub", "search", "spans"),
        (f"{1:032x}", "trace", "spans"),
        ("duration>5ms", "statistics", "filter"),
        ("{ span.user = `amina` }", "statistics", "filter"),
        ("{ resource.host = `x` }", "statistics", "filter"),
        ("{ status = error || name = `x` }", "statistics", "syntax"),
        ("{ trace:duration > 5s }", "statistics", "syntax"),
    ],
)
def test_what_shows_single_spans_is_refused_abroad(query: str, kind: str, broken: str) -> None:
    owner = Owner(spans=store(*(span(number) for number in range(20))))
    assert rule(owner.ask_spans(query, kind=kind)) == broken


def test_fine_times_and_young_spans_are_refused() -> None:
    owner = Owner(spans=store(*(span(number) for number in range(20))))
    owner.now_s = HOUR_S + 10
    assert rule(owner.ask_spans()) == "time"


def test_hubs_of_one_country_show_traces_that_touch_both() -> None:
    near = store(span(1, 0), span(2, 0))
    far = store(span(1, 1, service="agent"), span(3, 0))

    def told(kind: str, query: str = "", by: tuple[str, ...] = ()) -> list[FederatedAnswer]:
        found = [Owner(spans=spans).ask_spans(query, by, kind=kind, who=HOME) for spans in (near, far)]
        return [
            FederatedAnswer(question_id="q", hub_id=str(n), country="MA", results=(one,)) for n, one in enumerate(found)
        ]

    traces = traces_together(told("search"), limit=10)
    assert [(trace.trace_id[-1], trace.spans) for trace in traces] == [("3", 1), ("2", 1), ("1", 2)]
    assert [one.service for one in spans_together(told("trace", f"{1:032x}"))] == ["hub", "agent"]
    both = {group.key: group.count for group in groups_together(told("statistics", by=("service",)))}
    assert both == {("hub",): 3, ("agent",): 1}
