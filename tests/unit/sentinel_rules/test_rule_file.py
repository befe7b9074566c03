"""Which rule files are read, and what is said of the others?"""

from __future__ import annotations

import pytest

from harch.base.errors import HarchError
from harch.sentinel.model.durations import format_duration_ms, parse_duration_ms
from harch.sentinel.rules.definitions import RuleKind, fingerprint
from harch.sentinel.rules.file import parse_rules

GOOD = """
groups:
- name: node
  interval: 30s
  limit: 10
  query_offset: 1m
  labels: {team: infra, severity: low}
  rules:
  - record: job:up:sum
    expr: sum by (job) (up)
    labels: {kind: summary}
  - alert: Down
    expr: up == 0
    for: 5m
    keep_firing_for: 10m
    labels: {severity: page}
    annotations:
      summary: "{{ $labels.instance }} is down"
- name: empty
"""


def test_a_prometheus_rule_file_is_read_with_the_labels_of_its_group():
    file = parse_rules(GOOD, name="a.yaml")
    node, empty = file.groups
    assert (node.interval_ms, node.limit, node.query_offset_ms) == (30_000, 10, 60_000)
    record, alert = node.rules
    assert (record.kind, record.name) == (RuleKind.RECORDING, "job:up:sum")
    assert record.labels == {"team": "infra", "severity": "low", "kind": "summary"}
    assert alert.labels == {"team": "infra", "severity": "page"}
    assert (alert.for_ms, alert.keep_firing_for_ms) == (300_000, 600_000)
    assert empty.interval_ms == 60_000
    assert empty.rules == ()


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ("groups:\n- name: a\n- name: a\n", "line 3, column 3", "twice"),
        ("groups:\n- rules: []\n", "line 2, column 3", "no name"),
        ("groups:\n- name: a\n  rules:\n  - record: x\n    alert: y\n    expr: 1\n", "line 4, column 5", "only one of"),
        ("groups:\n- name: a\n  rules:\n  - expr: 1\n", "line 4, column 5", "one of `record` and `alert`"),
        ("groups:\n- name: a\n  rules:\n  - alert: x\n", "line 4, column 5", "`expr` must be set"),
        ("groups:\n- name: a\n  rules:\n  - record: x-y\n    expr: 1\n", "line 4, column 13", "name of a metric"),
        (
            "groups:\n- name: a\n  rules:\n  - record: x\n    expr: 1\n    for: 5m\n",
            "line 6, column 10",
            "belongs to alerts",
        ),
        (
            "groups:\n- name: a\n  rules:\n  - alert: x\n    expr: 1\n    for: 5x\n",
            "line 6, column 10",
            "not a duration",
        ),
        (
            "groups:\n- name: a\n  rules:\n  - alert: x\n    expr: 1\n    labels: {1a: b}\n",
            "line 6, column 18",
            "name of a label",
        ),
        (
            "groups:\n- name: a\n  rules:\n  - alert: x\n    expr: 1\n    annotations: {a: '{{ nope }}'}\n",
            "line 6, column 22",
            "`nope` is not defined",
        ),
        ("groups:\n- name: a\n  intervall: 5m\n", "line 3, column 3", "`intervall` is not a field"),
        ("groups:\n- name: a\n  name: b\n", "line 3, column 3", "given twice"),
        ("groups:\n- name: a\n  rules: {}\n", "line 3, column 10", "expected a list"),
        ("groups:\n- name: [\n", "line 3, column 1", ""),
    ],
)
def test_a_mistake_is_told_with_its_line_and_column(text: str, place: str, what: str):
    with pytest.raises(HarchError) as refused:
        parse_rules(text, name="bad.yaml")
    assert refused.value.code == "E0640"
    assert refused.value.message.startswith("bad.yaml: ")
    assert place in refused.value.message
    assert what in refused.value.message


def test_all_mistakes_of_a_file_are_told_at_once():
    text = "groups:\n- name: a\n  rules:\n  - alert: x\n    expr: ''\n    for: no\n  - record: y\n    expr: bad(\n"

    def check(expression: str) -> None:
        if expression.startswith("bad"):
            raise HarchError("E0201", "1:5: unclosed parenthesis")

    with pytest.raises(HarchError) as refused:
        parse_rules(text, name="bad.yaml", check_expression=check)
    for part in ("`expr` must be set", "not a duration", "line 8, column 11: 1:5: unclosed parenthesis"):
        assert part in refused.value.message


def test_a_rule_that_looks_like_a_copy_is_remarked_and_allowed():
    rule = "  - alert: Same\n    expr: up\n"
    file = parse_rules(f"groups:\n- name: a\n  rules:\n{rule}{rule}", name="a.yaml")
    assert len(file.groups[0].rules) == 2
    assert file.remarks == ("line 6: `Same` has the name and labels of the rule at line 4",)


def test_aliases_cannot_blow_up_a_small_file():
    lines = ["a0: &a0 {x: y}"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(HarchError, match=r"E0640"):
        parse_rules("\n".join(["groups: *a8", *lines[::-1]]), name="bomb.yaml")
    with pytest.raises(HarchError, match=r"E0640"):
        parse_rules("\n".join([*lines, "groups: *a8"]), name="bomb.yaml")


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("0", 0),
        ("0s", 0),
        ("1ms", 1),
        ("30s", 30_000),
        ("1h30m", 5_400_000),
        ("2w", 1_209_600_000),
        ("1y1ms", 31_536_000_001),
    ],
)
def test_durations_are_read_and_written_as_prometheus_does(text: str, duration_ms: int):
    assert parse_duration_ms(text) == duration_ms
    assert parse_duration_ms(format_duration_ms(duration_ms)) == duration_ms


@pytest.mark.parametrize("text", ["", "1", "-1s", "1.5h", "1s1m", "1m1m", "5 m", "300y", "1h "])
def test_what_is_no_duration_is_refused(text: str):
    with pytest.raises(HarchError, match="E0201"):
        parse_duration_ms(text)


def test_fingerprints_are_those_of_prometheus():
    # FNV-1a over names and values, each followed by 0xff; the first is the hash of nothing.
    assert fingerprint({}) == "cbf29ce484222325"
    assert fingerprint({"b": "2", "a": "1"}) == fingerprint({"a": "1", "b": "2"})
    assert fingerprint({"a": "12"}) != fingerprint({"a1": "2"})
