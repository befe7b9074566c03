"""The page around an alert: what its rule compares, what was logged, which traces failed or were slow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_routes_world import NOW_NS, NOW_S, TRACE, MemoryTenants, asked, cli_of, span

from harch.base.errors import HarchError
from harch.sentinel.alerts.alert import Alert
from harch.sentinel.alerts.config import default_config
from harch.sentinel.alerts.machine import AlertMachine
from harch.sentinel.alerts.shared_state import Match, SharedState, Silence
from harch.sentinel.alerts.silences import set_silence
from harch.sentinel.http.alert_context import AlertPage, Stores
from harch.sentinel.model.labels import Labels, Matcher, labels
from harch.sentinel.model.logs import LogBatch
from harch.sentinel.model.selection import Exemplar, SeriesExemplars
from harch.sentinel.model.spans import SpanQuery, TraceSummary
from harch.sentinel.promql.evaluate.engine import QueryEngine
from harch.sentinel.rules.file import parse_rules
from harch.sentinel.rules.group_state import fresh
from harch.testing.clock import SimClock
from harch.testing.federated_telemetry import MemoryMetrics
from harch.testing.telemetry_stores import MemorySpans

NOW_MS = NOW_S * 1000
FIRED_MS = NOW_MS - 10 * 60_000
EXEMPLAR, LOGGED = "e" * 32, "f" * 32
RULES = """
groups:
- name: hubs
  rules:
  - alert: HubSlow
    expr: hub_latency_ms > 100
    for: 5m
    labels: {severity: warning}
    annotations: {summary: "{{ $labels.hub }} is slow", runbook: look at the disk}
"""


class Metrics(MemoryMetrics):
    def exemplars(self, matchers: Sequence[Matcher], start: int, end: int) -> Sequence[SeriesExemplars]:
        one = Exemplar((("trace_id", EXEMPLAR),), 1.0, FIRED_MS)
        other = Exemplar((("trace_id", "d" * 32),), 1.0, FIRED_MS)
        return [SeriesExemplars(_series("dakar"), (one,)), SeriesExemplars(_series("dakhla"), (other,))]


class Series:
    """The series of one tenant, whoever asks."""

    def __init__(self, store: MemoryMetrics) -> None:
        self._store = store

    def store(self, tenant: str) -> Any:
        return self._store

    def names(self) -> Sequence[str]:
        return ["default"]

    def __contains__(self, tenant: object) -> bool:
        return True


def _series(hub: str) -> Labels:
    return labels({"__name__": "hub_latency_ms", "hub": hub})


def alert(name: str, *, minutes_ago: int = 10, **own: str) -> Alert:
    return Alert(
        labels=labels({"alertname": name, **own}),
        annotations={"summary": "dakar is slow"},
        starts_at_ms=NOW_MS - minutes_ago * 60_000,
        ends_at_ms=NOW_MS + 600_000,
        updated_at_ms=NOW_MS,
    )


SLOW = alert("HubSlow", hub="dakar", severity="warning")


@pytest.fixture
def tenants() -> MemoryTenants:
    tenants = MemoryTenants()
    began = NOW_NS - 15 * 60 * 10**9
    tenants.logs("default").append(
        [
            LogBatch(
                labels({"job": "harchos-hub", "hub": "dakar"}),
                [began - 10**9, began + 10**9, began + 2 * 10**9],
                ["placed 7", "disk 3 answers late", "disk 4 answers late"],
                [(("level", "info"),), (("level", "error"), ("trace_id", LOGGED)), (("level", "error"),)],
            ),
            LogBatch(labels({"job": "harchos-hub", "hub": "dakhla"}), [began], ["of another hub"]),
        ]
    )
    at = {"ago_s": 600.0, "attributes": {"hub": "dakar"}}
    tenants.spans("default").append(
        [
            span("failed", trace="a" * 32, error=True, duration_ms=0.5, **at),  # type: ignore[arg-type]
            span("slow", trace="b" * 32, duration_ms=9000, **at),  # type: ignore[arg-type]
            *(span(f"quick{i}", trace=f"{i:032x}", duration_ms=1, **at) for i in range(1, 41)),  # type: ignore[arg-type]
            span("of a line", trace=LOGGED, ago_s=600),
            span("of a bucket", trace=EXEMPLAR, ago_s=600),
            span("elsewhere", trace=TRACE, ago_s=600, error=True, attributes={"hub": "dakhla"}),
        ]
    )
    return tenants


def page(tenants: MemoryTenants | None, machine: AlertMachine | None = None) -> AlertPage:
    if machine is None:
        machine = AlertMachine(default_config(), SharedState())
        machine.put([SLOW, alert("DiskSlow", hub="Dakar", minutes_ago=20), alert("Far", hub="dakhla")], now_ms=NOW_MS)
    points = {
        _series(hub): [(FIRED_MS + step * 15_000, value) for step in range(-60, 40)]
        for hub, value in (("dakar", 250.0), ("dakhla", 10.0))
    }
    groups = [(group, fresh(group)) for group in parse_rules(RULES, name="r.yaml").groups]
    stores = Stores(Series(Metrics(points)), tenants, tenants)
    return AlertPage(machine, lambda: groups, QueryEngine(clock=SimClock()), stores, SimClock())


def told(one: AlertPage, fingerprint: str = SLOW.fingerprint, **parameters: str) -> dict[str, Any]:
    reply = asked(one.routes(), f"/harchos/api/v1/alerts/{fingerprint}/around", parameters)
    one.close()
    assert reply.status == 200, reply.body
    data: dict[str, Any] = reply.json["data"]
    return data


def test_the_page_has_the_rule_the_curve_with_its_threshold_and_no_series_of_others(tenants: MemoryTenants) -> None:
    found = told(page(tenants))
    assert found["rule"]["query"] == "hub_latency_ms > 100"
    assert found["rule"]["annotations"]["runbook"] == "look at the disk"
    (curve,) = found["metrics"]
    assert curve["threshold"] == {"comparison": ">", "value": "100"}
    assert [one["metric"]["hub"] for one in curve["series"]] == ["dakar"]
    assert {value for _, value in curve["series"][0]["values"]} == {"250"}
    assert found["window"]["began"] == "2023-11-14T21:58:20Z"
    assert found["missing"] == []


def test_the_page_has_the_lines_of_the_same_place_the_worst_first(tenants: MemoryTenants) -> None:
    logs = told(page(tenants))["logs"]
    assert logs["selectors"] == ['{hub="dakar"}']
    assert [(one["level"], one["pattern"], one["count"], one["new"]) for one in logs["groups"]] == [
        ("error", "disk # answers late", 2, True),
        ("info", "placed #", 1, False),
    ]


def test_the_page_has_traces_by_exemplar_log_line_failure_and_slowness(tenants: MemoryTenants) -> None:
    traces = told(page(tenants))["traces"]["traces"]
    assert {one["traceID"]: one["why"] for one in traces} == {
        EXEMPLAR: ["exemplar"],
        LOGGED: ["log"],
        "a" * 32: ["error"],
        "b" * 32: ["slow"],
    }


def test_failures_of_the_same_hub_are_shown_where_the_node_itself_has_none(tenants: MemoryTenants) -> None:
    tenants.spans("default").append(
        [span("on the node", trace="c" * 32, ago_s=600, attributes={"hub": "dakar", "node": "n17"})]
    )
    machine = AlertMachine(default_config(), SharedState())
    of_node = alert("NodeHot", hub="dakar", node="n17")
    machine.put([of_node], now_ms=NOW_MS)
    traces = told(page(tenants, machine), of_node.fingerprint)["traces"]["traces"]
    assert {one["traceID"]: one["why"] for one in traces} == {
        "a" * 32: ["error nearby"],
        "c" * 32: ["slow"],
        LOGGED: ["log"],
    }


def test_other_alerts_of_the_same_place_and_silences_are_named(tenants: MemoryTenants) -> None:
    machine = AlertMachine(default_config(), SharedState())
    machine.put([SLOW, alert("DiskSlow", hub="Dakar", minutes_ago=20), alert("Far", hub="dakhla")], now_ms=NOW_MS)
    silence = Silence(
        id="",
        matches=(Match("hub", "dakar", "="),),
        starts_at_ms=NOW_MS,
        ends_at_ms=NOW_MS + 60_000,
        updated_at_ms=NOW_MS,
        created_by="amina",
        comment="new disk",
    )
    set_silence(machine.shared, silence, new_id="s1", now_ms=NOW_MS)
    found = told(page(tenants, machine))
    assert [(one["labels"]["alertname"], one["shared"]) for one in found["related"]] == [("DiskSlow", {"hub": "Dakar"})]
    assert [(one["id"], one["comment"]) for one in found["silences"]] == [("s1", "new disk")]
    assert found["alert"]["status"]["state"] == "suppressed"


def test_what_cannot_be_gathered_is_named_and_the_rest_is_there(tenants: MemoryTenants) -> None:
    class Full(MemorySpans):
        def search(self, query: SpanQuery) -> Sequence[TraceSummary]:
            raise HarchError("E0625", "too many spans")

    full = Full()
    full.append([span("x", ago_s=600, attributes={"hub": "dakar"})])
    tenants._spans["default"] = full
    found = told(page(tenants))
    assert found["missing"] == ["traces: too many spans"]
    assert found["metrics"]
    assert found["logs"]["groups"]
    bare = told(page(None))
    assert bare["missing"] == ["no logs are stored here", "no traces are stored here"]


def test_a_page_that_takes_too_long_ends_with_what_it_has(
    tenants: MemoryTenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harch.sentinel.alert_context.gather.GATHER_S_MAX", 0.0)
    found = told(page(tenants))
    assert found["rule"]["name"] == "HubSlow"
    assert [sentence.split(" omitted")[0] for sentence in found["missing"]] == ["some metrics", "log lines", "traces"]


def test_an_alert_of_others_has_no_rule_here_and_an_unknown_one_no_page(tenants: MemoryTenants) -> None:
    machine = AlertMachine(default_config(), SharedState())
    pushed = alert("Pushed", service="shop")
    machine.put([pushed], now_ms=NOW_MS)
    found = told(page(tenants, machine), pushed.fingerprint, before="1m", after="1m")
    assert found["rule"] is None
    assert any("no expression" in sentence for sentence in found["missing"])
    one = page(tenants)
    assert asked(one.routes(), "/harchos/api/v1/alerts/0123/around").json["code"] == "E0648"
    wrong = asked(one.routes(), f"/harchos/api/v1/alerts/{SLOW.fingerprint}/around", {"before": "long"})
    assert (wrong.status, wrong.json["code"]) == (400, "E0201")
    one.close()


def test_another_tenant_gets_its_own_telemetry_beside_the_alert(tenants: MemoryTenants) -> None:
    one = page(tenants)
    path = f"/harchos/api/v1/alerts/{SLOW.fingerprint}/around"
    found = asked(one.routes(), path, headers={"X-Scope-OrgID": "other"}).json["data"]
    one.close()
    assert found["logs"]["groups"] == []
    assert found["traces"]["traces"] == []


def test_the_page_is_drawn_in_a_terminal(tenants: MemoryTenants, monkeypatch: pytest.MonkeyPatch) -> None:
    one = page(tenants)
    harch = cli_of(one.routes(), monkeypatch)
    shown = harch("alerts", "show", SLOW.fingerprint)
    told_to_programs = harch("alerts", "show", SLOW.fingerprint, "--json", "--before", "10m")
    one.close()
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    assert lines[0] == "HubSlow  warning  active"
    assert "rule: hub_latency_ms > 100 for 5 min 0 s  (group hubs)" in lines
    assert "compared by the rule: hub_latency_ms" in lines
    assert any("▲ fires > 100" in line for line in lines)
    assert any("↑ fired" in line for line in lines)
    assert any(line.startswith("error         2× new") and line.endswith(f"trace {LOGGED}") for line in lines)
    assert any(line.startswith("a" * 32) and " error " in line for line in lines)
    assert any("DiskSlow" in line for line in lines)
    assert json.loads(told_to_programs.stdout)["window"]["start"] == "2023-11-14T21:48:20Z"


SIDES = st.sampled_from(["", "0", "1m", "30h", "-1m", "1e9y", "soon", "9999999999y"])
TIMES = st.integers(-(2**40), 2**43) | st.sampled_from([0, 1, NOW_MS])
NAMES = st.sampled_from(["hub", "node", "service", "job", "pipeline", "odd.name"])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(NAMES, st.text(min_size=1, max_size=8), min_size=1), TIMES, SIDES, SIDES)
def test_no_alert_breaks_its_page(
    tenants: MemoryTenants, own: dict[str, str], starts_ms: int, before: str, after: str
) -> None:
    machine = AlertMachine(default_config(), SharedState())
    odd = Alert(
        labels=labels({"alertname": "HubSlow", **own}),
        starts_at_ms=starts_ms,
        ends_at_ms=max(starts_ms, NOW_MS + 1000),
        updated_at_ms=NOW_MS,
    )
    machine.put([odd], now_ms=NOW_MS)
    one = page(tenants, machine)
    reply = asked(one.routes(), f"/harchos/api/v1/alerts/{odd.fingerprint}/around", {"before": before, "after": after})
    one.close()
    assert reply.status in {200, 400}, reply.body
