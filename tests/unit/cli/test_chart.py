"""Can a chart be read without colours, within the width there is, and without drawing what was not measured?"""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from harch.cli.views.chart import MARKS, ChartCurve, chart_text, drawn, short_number, with_breaks

HOUR = (1_790_000_000.0, 1_790_003_600.0)
FLAT = [(HOUR[0] + 60 * step, 5.0) for step in range(61)]

numbers = st.one_of(st.floats(), st.floats(-1e12, 1e12), st.just(math.nan), st.just(math.inf))
curves = st.lists(
    st.builds(
        ChartCurve,
        st.text(max_size=120),
        st.lists(st.tuples(st.floats(*HOUR), numbers), max_size=30).map(sorted),
    ),
    max_size=len(MARKS),
)


@given(curves, st.integers(30, 160), st.integers(4, 20), st.booleans())
def test_no_line_is_wider_than_asked(found: list[ChartCurve], width: int, height: int, zero_based: bool) -> None:
    text = chart_text(found, width, height, unit="kWh", zero_based=zero_based, between=HOUR, moment=(HOUR[0], "fired"))
    assert all(cell_len(line) <= width for line in text.plain.split("\n"))


@given(st.integers(1, len(MARKS)), st.integers(40, 160))
def test_curves_that_lie_over_one_another_are_all_marked(count: int, width: int) -> None:
    chart = "".join(drawn([ChartCurve(str(number), FLAT) for number in range(count)], width, 8).rows)
    assert [mark for mark in MARKS if mark in chart] == list(MARKS[:count])


def test_a_single_point_is_marked() -> None:
    rows = drawn([ChartCurve("a", [FLAT[3]]), ChartCurve("b", FLAT)], 40, 8).rows
    assert MARKS[0] in "".join(rows)


def test_the_legend_names_each_curve_beside_its_mark_with_its_last_value() -> None:
    text = chart_text(
        [ChartCurve("dakar", FLAT), ChartCurve("tangier", [(HOUR[0], 2000.0)]), ChartCurve("nobody", [])],
        80,
        8,
        unit="W",
        zero_based=True,
    ).plain
    assert "● dakar  5 W" in text
    assert "▲ tangier  2 kW" in text
    assert "■ nobody  no data" in text


def test_a_chart_has_a_unit_round_values_and_times_in_utc() -> None:
    lines = chart_text([ChartCurve("a", FLAT)], 80, 12, unit="W", zero_based=True, between=HOUR).plain.split("\n")
    assert lines[0].strip() == "W"
    assert [line.split("┤")[0].strip() for line in lines if "┤" in line] == ["6", "4", "2", "0"]
    assert any("UTC" in line and ":" in line for line in lines)
    assert any("└" in line and "┬" in line for line in lines)


def test_a_moment_is_pointed_at() -> None:
    for share in (0.0, 0.5, 1.0):
        at = HOUR[0] + share * 3600
        text = chart_text([ChartCurve("a", FLAT)], 80, 8, unit="", zero_based=False, between=HOUR, moment=(at, "fired"))
        (line,) = (line for line in text.plain.split("\n") if "fired" in line)
        assert abs(line.index("↑") - (12 + share * 67)) <= 1


def test_missing_points_leave_a_gap() -> None:
    holed = [point for number, point in enumerate(FLAT) if not 20 <= number < 40]
    (row,) = (row for row in drawn([ChartCurve("a", holed)], 60, 4).rows if set(row) != {"\u2800"})
    assert set(row[22:38]) == {"\u2800"}
    assert any(math.isnan(y) for _, y in with_breaks(holed))
    assert with_breaks(FLAT) == FLAT


def test_units_take_the_prefix() -> None:
    found = [short_number(value, unit) for value, unit in ((43_800, "W"), (12.5, "%"), (1047, "g/kWh"), (999.9, ""))]
    assert found == ["43.8 kW", "12.5%", "1.05 kg/kWh", "1k"]
