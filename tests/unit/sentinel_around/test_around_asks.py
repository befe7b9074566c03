"""What is asked about an alert follows from its rule, its labels and its time."""

from __future__ import annotations

import pytest

from harch.sentinel.alert_context.queries import (
    ExpressionCurve,
    belongs,
    identity_of,
    log_selectors,
    metric_queries,
    span_conditions,
    window_of,
)
from harch.sentinel.alerts.alert import Alert
from harch.sentinel.model.labels import labels
from harch.sentinel.model.spans import Span, SpanField, SpanQuery
from harch.sentinel.rules.loader import default_pack
from harch.testing.telemetry_stores import satisfies

MINUTE = 60_000
T0 = 1_767_261_600_000


def alert(*, starts_ms: int = T0, ends_ms: int = T0 + 600 * MINUTE, **own: str) -> Alert:
    return Alert(labels=labels(own), starts_at_ms=starts_ms, ends_at_ms=ends_ms, updated_at_ms=starts_ms)


@pytest.mark.parametrize(
    ("expression", "curves"),
    [
        ("harch_agents == 0", [("harch_agents", "==", 0.0)]),
        ("-5 < (temperature)", [("temperature", ">", -5.0)]),
        (
            "lag > 10 * clamp_min(rate, 1)",
            [("lag", "", None), ("10 * clamp_min(rate, 1)", "", None), ("rate", "", None)],
        ),
        (
            "sum by (hub) (rate(errors_total[5m])) / sum by (hub) (rate(requests_total[5m])) > 0.05",
            [
                ("sum by (hub) (rate(errors_total[5m])) / sum by (hub) (rate(requests_total[5m]))", ">", 0.05),
                ("rate(errors_total[5m])", "", None),
                ("rate(requests_total[5m])", "", None),
            ],
        ),
        ("a > 0 and b == 1", [("a", ">", 0.0), ("b", "==", 1.0)]),
        ("absent(up{job='x'})", [('absent(up{job="x"})', "", None), ('up{job="x"}', "", None)]),
        ("kept unless kept offset 10m", [("kept", "", None), ("kept offset 10m", "", None)]),
        ("vector(1)", [("vector(1)", "", None)]),
        ("1", []),
    ],
)
def test_the_sides_of_a_comparison_are_drawn_with_its_threshold(
    expression: str, curves: list[tuple[str, str, float | None]]
) -> None:
    asked = metric_queries(expression)
    assert [(one.expression, one.comparison, one.threshold) for one in asked.curves] == curves


def test_every_shipped_rule_has_something_to_draw() -> None:
    for file in default_pack():
        for group in file.groups:
            for rule in group.rules:
                if rule.is_alert and rule.name != "Watchdog":
                    assert metric_queries(rule.expression).selectors, rule.name
                    assert metric_queries(rule.expression).curves, rule.name


def test_without_a_rule_there_is_nothing_to_draw_and_it_is_said() -> None:
    assert "no expression" in metric_queries("").notes[0]
    assert "cannot be read" in metric_queries("sum(").notes[0]
    assert ExpressionCurve("x", "y").threshold is None


def test_the_window_begins_before_the_trouble_and_ends_with_it() -> None:
    window = window_of(alert(), for_ms=5 * MINUTE, now_ms=T0 + 2 * MINUTE)
    assert (window.start_ms, window.began_ms) == (T0 - 35 * MINUTE, T0 - 5 * MINUTE)
    assert (window.fired_ms, window.end_ms) == (T0, T0 + 2 * MINUTE)
    old = window_of(alert(), for_ms=0, now_ms=T0 + 3 * 24 * 60 * MINUTE, before_ms=MINUTE, after_ms=2 * MINUTE)
    assert (old.start_ms, old.end_ms) == (T0 - MINUTE, T0 + 2 * MINUTE)
    resolved = window_of(alert(ends_ms=T0 + MINUTE), for_ms=0, now_ms=T0 + 60 * MINUTE, before_ms=5 * MINUTE)
    assert resolved.end_ms == T0 + 6 * MINUTE
    ahead = window_of(alert(starts_ms=T0 + 60 * MINUTE), for_ms=0, now_ms=T0)
    assert ahead.start_ms < ahead.end_ms


def test_series_with_other_values_are_those_of_other_alerts() -> None:
    own = {"alertname": "Slow", "hub": "dakar"}
    assert belongs(labels({"__name__": "m", "hub": "dakar", "gpu": "3"}), own)
    assert not belongs(labels({"hub": "dakhla"}), own)


def test_log_streams_are_chosen_by_what_they_share_most() -> None:
    identity = identity_of({"alertname": "PipelineLag", "hub_name": "Dakhla", "pipeline": "grid", "job": "harchos"})
    streams = [
        labels({"job": "harchos-hub", "hub": "dakhla"}),
        labels({"job": "harchos-pipeline", "hub": "dakhla", "pipeline": "grid", "stage": "think"}),
        labels({"job": "harchos-pipeline", "hub": "dakhla", "pipeline": "other", "stage": "think"}),
        labels({"job": "harchos-pipeline", "hub": "dakar", "pipeline": "grid", "stage": "think"}),
        labels({"app": "unrelated"}),
    ]
    (only,) = log_selectors(identity, streams, 5)
    assert [str(one) for one in only] == ['hub="dakhla"', 'pipeline="grid"']
    assert [str(one) for one in log_selectors(identity, streams[:1], 5)[0]] == ['hub="dakhla"']
    assert log_selectors(identity, streams[4:], 5) == []
    assert log_selectors(identity_of({"alertname": "Watchdog"}), streams, 5) == []


def test_an_equal_job_is_enough_and_another_one_is_no_reason_against() -> None:
    streams = [labels({"job": "api"}), labels({"job": "web"})]
    (only,) = log_selectors(identity_of({"job": "api"}), streams, 5)
    assert [str(one) for one in only] == ['job="api"']


def test_spans_are_found_by_the_attributes_that_they_have() -> None:
    identity = identity_of({"hub_name": "Dakar", "hub": "dk-1", "node": "n.7"})
    conditions = span_conditions(identity, {"hub", "workload.id"})
    assert [(one.field, one.attribute) for one in conditions] == [(SpanField.ATTRIBUTE, "hub")]
    query = SpanQuery(0, 10, span_conditions(identity, {"hub", "host.name"}))

    def span(hub: str, host: str) -> Span:
        return Span("1" * 32, "2" * 16, "", "s", "n", 1, 1, resource=(("host.name", host), ("hub", hub)))

    assert satisfies(span("DAKAR", "n.7"), query)
    assert satisfies(span("dk-1", "N.7"), query)
    assert not satisfies(span("dakar", "nx7"), query)
    assert not satisfies(span("dakar2", "n.7"), query)
