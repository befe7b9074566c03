"""Dashboards are files that say what is wrong with them; those that ship ask questions that can be answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.cli.views.chart import ChartCurve, drawn, short_number
from harch.sentinel.dashboards.definition import parse_dashboard, read_dashboard, shipped, shipped_names
from harch.sentinel.promql.syntax.parser import parse


def test_five_dashboards_ship() -> None:
    assert shipped_names() == ["carbon", "gpus", "hubs", "pipelines", "sovereignty"]


@pytest.mark.parametrize("name", shipped_names())
def test_their_queries_are_promql(name: str) -> None:
    dashboard = shipped(name)
    assert dashboard.description
    for panel in dashboard.panels:
        parse(panel.query)


def test_json_is_as_good_as_yaml(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text('{"title": "Mine", "panels": [{"title": "Up", "query": "up", "kind": "value"}]}')
    assert read_dashboard(path).panels[0].kind == "value"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("title: x\npanels: []", "length"),
        ("title: x\npanels: [{title: a, query: up, kind: pie}]", "pie"),
        ("title: x\npanels: [{title: a, query: up, colour: red}]", "colour"),
        ("{", "here"),
    ],
)
def test_mistakes_are_named(text: str, reason: str) -> None:
    with pytest.raises(HarchError, match=reason) as refusal:
        parse_dashboard(text, "here")
    assert refusal.value.code == "E0679"


def test_a_dashboard_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(HarchError) as refusal:
        shipped("../hubs")
    assert "gpus" in refusal.value.hint


def test_a_flat_curve_is_one_line() -> None:
    chart = drawn([ChartCurve("a", [(0.0, 5.0), (10.0, 5.0)])], width=10, height=4, zero_based=True)
    marked = [row for row in chart.rows if any(character != "\u2800" for character in row)]
    assert len(marked) == 1
    assert all(character != "\u2800" for character in marked[0])
    assert (chart.low, chart.high) == (0.0, 5.0)


def test_gaps_and_empty_curves_are_drawn_as_nothing() -> None:
    chart = drawn([ChartCurve("a", []), ChartCurve("b", [(0.0, float("nan"))])], width=4, height=2)
    assert all(owner == -1 for row in chart.owners for owner in row)


def test_numbers_are_short() -> None:
    assert [short_number(value) for value in (1_250_000, 640, 0.031)] == ["1.25M", "640", "0.031"]
