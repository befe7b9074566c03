"""Do rule unit tests run from the command line as promtool runs them?"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Harch = Callable[..., Result]

RULES = """
groups:
- name: racks
  interval: 30s
  rules:
  - record: rack:power:watts
    expr: sum by (rack) (gpu_power_watts)
  - alert: RackOverFeed
    expr: rack:power:watts > 38000
    for: 5m
    labels: {severity: critical}
"""
TESTS = """
rule_files: [racks.yaml]
evaluation_interval: 30s
tests:
- name: a rack above its feed
  interval: 30s
  input_series:
  - {series: 'gpu_power_watts{rack="r1",gpu="0"}', values: '20000x20'}
  - {series: 'gpu_power_watts{rack="r1",gpu="1"}', values: '19000x20'}
  alert_rule_test:
  - {eval_time: 4m, alertname: RackOverFeed}
  - eval_time: 6m
    alertname: RackOverFeed
    exp_alerts:
    - exp_labels: {severity: critical, rack: r1}
  promql_expr_test:
  - expr: rack:power:watts
    eval_time: 4m
    exp_samples:
    - {labels: 'rack:power:watts{rack="r1"}', value: WATTS}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "racks.yaml").write_text(RULES)
    (tmp_path / "good.yaml").write_text(TESTS.replace("WATTS", "39000"))
    (tmp_path / "bad.yaml").write_text(TESTS.replace("WATTS", "1"))
    return tmp_path


def test_tests_that_hold_end_with_zero(harch: Harch, folder: Path) -> None:
    result = harch("sentinel", "rules", "test", str(folder / "good.yaml"))
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"ok: {folder}/good.yaml: 1 test of 2 rules\n"


def test_a_test_that_fails_ends_with_one_and_says_what_came(harch: Harch, folder: Path) -> None:
    result = harch("sentinel", "rules", "test", str(folder / "good.yaml"), str(folder / "bad.yaml"))
    assert result.exit_code == 1
    assert f"FAILED: {folder}/bad.yaml" in result.stdout
    assert "a rack above its feed: rack:power:watts at 4m: expected 1.0" in result.stdout
    assert "got 39000.0" in result.stdout


def test_results_as_json_name_each_file(harch: Harch, folder: Path) -> None:
    result = harch("sentinel", "rules", "test", str(folder / "good.yaml"), str(folder / "bad.yaml"), "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 1
    assert report["passed"] is False
    assert [len(one["failures"]) for one in report["items"]] == [0, 1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read: No such file or directory"),
        ("tests: 3", "Expected `array`"),
        ("rule_files: [absent.yaml]\ntests: []", "absent.yaml cannot be read"),
        (TESTS.replace("20000x20", "wrong").replace("WATTS", "1"), "`wrong` are not sample values"),
        (TESTS.replace("evaluation_interval: 30s", "evaluation_interval: 1x").replace("WATTS", "1"), "1x"),
    ],
)
def test_a_file_that_cannot_run_is_an_error_with_a_hint(
    harch: Harch, folder: Path, text: str | None, words: str
) -> None:
    path = folder / "other.yaml"
    if text is not None:
        path.write_text(text)
    result = harch("sentinel", "rules", "test", str(path))
    assert result.exit_code == 2
    assert words in result.stderr
    assert "hint: " in result.stderr


def test_groups_are_evaluated_in_the_order_that_the_file_asks_for(harch: Harch, tmp_path: Path) -> None:
    """A rule that reads what another group records sees it in the same evaluation only if that group comes first."""
    (tmp_path / "rules.yaml").write_text(
        "groups:\n"
        "- {name: reader, rules: [{record: second, expr: first + 1}]}\n"
        "- {name: writer, rules: [{record: first, expr: source}]}\n"
    )
    text = """
rule_files: [rules.yaml]
group_eval_order: [ORDER]
tests:
- input_series: [{series: source, values: '1+1x5'}]
  promql_expr_test: [{expr: second, eval_time: 2m, exp_samples: [{labels: second, value: 4}]}]
"""
    path = tmp_path / "test.yaml"
    path.write_text(text.replace("ORDER", "writer, reader"))
    assert harch("sentinel", "rules", "test", str(path)).exit_code == 0
    path.write_text(text.replace("ORDER", ""))
    assert harch("sentinel", "rules", "test", str(path)).exit_code == 1
