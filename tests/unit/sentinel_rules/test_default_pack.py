"""Do the shipped rules fire when they should, and only then? Evaluated by our own PromQL."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import msgspec
import pytest

from harch.base.errors import HarchError
from harch.sentinel.model.histograms import STALE_BITS
from harch.sentinel.promql.syntax.parser import parse
from harch.sentinel.rules.definitions import RuleSample
from harch.sentinel.rules.evaluation import ScheduledEvaluation, Tools, evaluate_group
from harch.sentinel.rules.group_state import fresh
from harch.sentinel.rules.loader import default_pack, read_rule_files
from harch.sentinel.rules.rule_test_files import MemoryEvaluator
from harch.sentinel.rules.rule_tests import expanded, parse_rule_tests, parse_series, run_rule_test

SERIES = re.compile(r"(.*?\}?) ([-_0-9].*)")
CASES = Path(__file__).parent / "cases"


FILE = parse_rule_tests((CASES / "harchos_test.yaml").read_text(encoding="utf-8"), name="harchos_test.yaml")


@pytest.mark.parametrize("test", FILE.tests, ids=lambda test: test.name)
def test_the_shipped_rules_fire_as_their_tests_say(test):
    groups = [group for file in default_pack(check_expression=parse) for group in file.groups]
    wrong = list(run_rule_test(test, groups, MemoryEvaluator, evaluation_interval=FILE.evaluation_interval))
    assert wrong == []


# Series that make each alert fire, every 30 s for an hour. `d` and `i` name a GPU, `h` a hub.
GPU, HUB = 'deviceName="H100",deviceIndex="0",node="n"', 'hub_name="h"'
TROUBLES = {
    "FilesDamaged": ['harchos_sentinel_damaged_files{store="metrics"} 0x60 1x60'],
    "SovereigntyViolation": ['harch_event_last_seconds{kind="sovereignty.violation"} _x60 1800x60'],
    "SovereigntyNotCompliant": ['sovereignty_compliance{hub="h",type="gdpr"} 0x120'],
    "PolicyFault": ['harch_event_last_seconds{kind="policy.fault"} 0+30x120'],
    "AuditContradicted": ['harch_event_last_seconds{kind="audit.contradicted"} _x40 1200x80'],
    "AuditTailLost": [f"harch_audit_entries_lost{{{HUB}}} 0x60 12x60"],
    "HubDown": ['up{job="harchos",hub_name="h"} 0x120'],
    "HubNotReady": [f"harchos_hub_status{{{HUB}}} 0x120"],
    "ClockSet": [f"harch_clock_offset_s{{{HUB}}} 0x100 3600x20"],
    "NoAgents": [f"harch_agents{{{HUB}}} 0x120"],
    "NodesLost": [
        f'harch_nodes{{{HUB},state="served"}} 10x80 7x40',
        f'harch_nodes{{{HUB},state="unserved"}} 0x80 3x40',
    ],
    "HubFaults": [f"harch_faults_total{{{HUB}}} 0x100 1x20"],
    "WorkHeldBack": [f"harch_workloads_held_back{{{HUB}}} 1x120"],
    "PeerHubDown": [f'harch_peer_alive{{{HUB},peer="p"}} 0x120', f'harch_peer_alive{{{HUB},peer="q"}} 1x120'],
    "PeerLost": [f'harch_link_up{{{HUB},peer="p"}} 0x120', f'harch_link_up{{{HUB},peer="q"}} 1x120'],
    "AllPeersLost": [f'harch_link_up{{{HUB},peer="p"}} 0x120'],
    "PeerSlow": [f'harch_link_rtt_ms{{{HUB},peer="p"}} 250x120'],
    "PipelineLag": ['harch_pipeline_lag{pipeline="p"} 5000x120', 'harch_pipeline_rate{pipeline="p"} 100x120'],
    "PipelineStalled": ['harch_pipeline_lag{pipeline="p"} 1x120', 'harch_pipeline_rate{pipeline="p"} 0x120'],
    "PipelineWorkersMissing": [
        'harch_pipeline_workers_ready{pipeline="p"} 1x120',
        'harch_pipeline_workers_wanted{pipeline="p"} 2x120',
    ],
    "PipelineDrops": ['harch_pipeline_worker_dropped_total{pipeline="p",worker="w"} 0+1x120'],
    "PipelineQuarantine": ['harch_pipeline_worker_quarantined_total{pipeline="p",worker="w"} 0+20x120'],
    "GpuErrors": [f"harchos_gpu_ecc_uncorrected_errors_total{{{GPU}}} 0x60 2x60"],
    "GpuHot": [f"harchos_gpu_temperature_celsius{{{GPU}}} 88x120"],
    "GpuTooHot": [f"harchos_gpu_temperature_celsius{{{GPU}}} 95x120"],
    "GpuThrottled": [f"harchos_gpu_throttled{{{GPU}}} 1x120"],
    "GpuSilent": [f"harchos_gpu_utilization_percent{{{GPU}}} 50x60"],
    "CarbonBudgetUnreachable": [f"harch_energy_carbon_budget_over_kg{{{HUB}}} 1x120"],
    "CarbonWorseThanRule": [
        f"harch_energy_month_emitted_kg{{{HUB}}} 120x240",
        f"harch_energy_month_rule_emitted_kg{{{HUB}}} 100x240",
    ],
    "CarbonFiguresGone": ['carbon_intensity_gco2_kwh{hub="h",source="s"} 50x80'],
    "DiskNearlyFull": ['node_filesystem_avail_bytes{m="/"} 8x120', 'node_filesystem_size_bytes{m="/"} 100x120'],
    "DiskFull": ['node_filesystem_avail_bytes{m="/"} 2x120', 'node_filesystem_size_bytes{m="/"} 100x120'],
    "DiskFullSoon": ['node_filesystem_avail_bytes{m="/"} 29-0.1x120', 'node_filesystem_size_bytes{m="/"} 100x120'],
    "MemoryNearlyFull": ["node_memory_MemAvailable_bytes 4x120", "node_memory_MemTotal_bytes 100x120"],
    "Watchdog": [],
    "TargetDown": ['up{job="node",instance="i"} 0x120'],
    "RulesFail": ['prometheus_rule_evaluation_failures_total{rule_group="g"} 0+1x120'],
    "RulesLate": ['prometheus_rule_group_iterations_missed_total{rule_group="g"} 0+1x120'],
    "NotificationsFail": ['alertmanager_notifications_failed_total{integration="i"} 0+1x120'],
}
WELL = [
    'harch_events_total{kind="workload.running"} 0+7x120',
    'harch_events_total{kind="policy.activated"} 1x120',
    'harch_event_last_seconds{kind="sovereignty.violation"} -9000x120',
    f"harchos_hub_closed{{{HUB}}} 0x120",
    'sovereignty_compliance{hub="h",type="gdpr"} 1x120',
    'up{job="harchos",hub_name="h"} 1x120',
    'up{job="node",instance="i"} 1x120',
    f"harchos_hub_status{{{HUB}}} 1x120",
    f"harch_audit_entries_lost{{{HUB}}} 0x120",
    f"harch_clock_offset_s{{{HUB}}} 0x120",
    f"harch_agents{{{HUB}}} 1x120",
    f'harch_nodes{{{HUB},state="served"}} 10x80 9x40',
    f'harch_nodes{{{HUB},state="unserved"}} 0x80 1x40',
    f'harch_nodes{{{HUB},state="cordoned"}} 5x120',
    f'harch_peer_alive{{{HUB},peer="p"}} 1x120',
    f'harch_link_up{{{HUB},peer="p"}} 1x120',
    f'harch_link_rtt_ms{{{HUB},peer="p"}} 35x120',
    'harch_pipeline_lag{pipeline="p"} 500x120',
    'harch_pipeline_rate{pipeline="p"} 100x120',
    'harch_pipeline_worker_dropped_total{pipeline="p",worker="w"} 3x120',
    f"harchos_gpu_temperature_celsius{{{GPU}}} 70x120",
    f"harchos_gpu_ecc_uncorrected_errors_total{{{GPU}}} 5x120",
    f"harchos_gpu_utilization_percent{{{GPU}}} 50x120",
    'carbon_intensity_gco2_kwh{hub="h",source="s"} 50x60',
    'carbon_intensity_gco2_kwh{hub="h",source="t"} _x60 60x60',
    'node_filesystem_avail_bytes{m="/"} 50x120',
    'node_filesystem_size_bytes{m="/"} 100x120',
    'harchos_sentinel_damaged_files{store="metrics"} 0x120',
    "prometheus_rule_evaluation_failures_total 0x120",
    "alertmanager_notifications_failed_total 4x120",
]


def firing(series: list[str], *, at_min: int, only: str = "") -> set[str]:
    """The alerts that fire, of all or of one rule, a minute or five minutes between the turns of a group."""
    store = MemoryEvaluator()
    for one in series:
        name, values = SERIES.fullmatch(one).groups()
        key = parse_series(name)
        numbered = enumerate(expanded(values))
        store.append([RuleSample(key, step * 30_000, value) for step, value in numbered if value is not None])
    tools = Tools(evaluate=store, append=store.append, elapsed_s=lambda: 0.0)
    fires: set[str] = set()
    for group in (group for file in default_pack() for group in file.groups):
        wanted = tuple(r for r in group.rules if only in ("", r.name) or not r.is_alert)
        chosen = msgspec.structs.replace(group, rules=wanted)
        state = fresh(chosen)
        for turn_ms in range(0, at_min * 60_000 + 1, 60_000 if group.name == "last seen" else 300_000):
            assert evaluate_group(chosen, state, ScheduledEvaluation(turn_ms), tools).failures == []
        alerts = (alert for rule in state.rules for alert in rule.alerts.values())
        fires |= {dict(alert.labels)["alertname"] for alert in alerts if alert.state == "firing"}
    return fires


@pytest.mark.parametrize("alertname", TROUBLES)
def test_each_shipped_alert_fires_in_its_trouble(alertname: str):
    late_min = 120 if alertname in ("CarbonFiguresGone", "CarbonWorseThanRule") else 60
    assert firing(TROUBLES[alertname], at_min=late_min, only=alertname) == {alertname}


def test_when_all_is_well_only_the_watchdog_fires():
    assert firing(WELL, at_min=60) == {"Watchdog"}


def test_every_shipped_alert_has_its_trouble_here():
    rules = [rule for file in default_pack() for group in file.groups for rule in group.rules]
    assert {rule.name for rule in rules if rule.is_alert} == set(TROUBLES)


def test_every_shipped_alert_says_how_bad_it_is_and_what_to_do():
    rules = [rule for file in default_pack() for group in file.groups for rule in group.rules if rule.is_alert]
    assert len({rule.name for rule in rules}) == len(rules)
    for rule in rules:
        assert rule.labels["severity"] in ("critical", "warning", "info", "none"), rule.name
        assert {"summary", "description", "runbook"} <= set(rule.annotations), rule.name


def test_a_wrong_expectation_is_told():
    text = """
tests:
- name: t
  input_series: [{series: 'up{job="harchos"}', values: '0x10'}]
  alert_rule_test: [{eval_time: 5m, alertname: HubDown, exp_alerts: []}]
  promql_expr_test: [{expr: 'up + 1', eval_time: 1m, exp_samples: [{labels: '{job="harchos"}', value: 5}]}]
"""
    groups = [group for file in default_pack() for group in file.groups if group.name == "hubs"]
    (test,) = parse_rule_tests(text, name="t").tests
    wrong = list(run_rule_test(test, groups, MemoryEvaluator))
    assert len(wrong) == 2
    assert "expected 5.0" in wrong[0]
    assert "unexpected {'alertname': 'HubDown'" in wrong[1]


def test_values_of_test_series_are_written_as_for_promtool():
    assert expanded("1+2x3 _ _x2 5 3x1 10-5x2") == [1, 3, 5, 7, None, None, None, 5, 3, 3, 10, 5, 0]
    (stale,) = expanded("stale")
    assert stale is not None
    assert int.from_bytes(struct.pack(">d", stale)) == STALE_BITS
    assert dict(parse_series('up{a="b",c="d"}')) == {"__name__": "up", "a": "b", "c": "d"}
    for text in ("x+y", "1+x3", "1x9999999"):
        with pytest.raises(HarchError, match="E0640"):
            expanded(text)
    with pytest.raises(HarchError, match="E0640"):
        parse_series("up{a=b}")


def test_rule_files_are_found_by_pattern_and_a_bad_one_is_named(tmp_path: Path):
    folder = tmp_path / "x" / "rules"
    folder.mkdir(parents=True)
    (folder / "a.yaml").write_text("groups: [{name: a}]")
    (folder / "b.yaml").write_text("groups: [{name: b}]")
    found = read_rule_files([str(tmp_path / "*" / "rules" / "[ab].yaml"), str(folder / "a.yaml")])
    assert [file.groups[0].name for file in found] == ["a", "b"]
    (folder / "b.yaml").write_text("groups: [{nam: b}]")
    with pytest.raises(HarchError, match=r"b\.yaml: line 1"):
        read_rule_files([str(folder / "*.yaml")])
    with pytest.raises(HarchError, match="cannot be read"):
        read_rule_files([str(tmp_path / "missing.yaml")])
