from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.pipelines.sense.kernels import CELL_WIDTH, REASONS, accumulate, holt, merge_panes
from harch.pipelines.wire.columns import COMPACT, WIDE, Columns, EventSchema, decode_columns, encode_columns
from harch.pipelines.wire.header import TIME_NS_MAX

DEVICES, METRICS, SLOTS, OPEN, PANE_NS = 3, 2, 5, 4, 1000
LOW, HIGH = -100.0, 100.0
Event = tuple[int, int, int, float]

hostile_numbers = st.integers(0, 4) | st.integers(0, 2**32 - 1)
values = st.integers(-120, 120).map(float) | st.sampled_from([math.nan, math.inf, -math.inf, 1e30, -0.0])
events = st.lists(
    st.tuples(st.integers(0, 9000) | hostile_numbers, hostile_numbers, hostile_numbers, values), max_size=40
)


def run_kernel(schema: EventSchema, found: list[Event], first_pane: int, t_first_ns: int, time_ns_max: int):  # type: ignore[no-untyped-def]
    n = len(found)
    limits = {role: 2 ** (8 * schema.by_role[role].dtype.itemsize) - 1 for role in ("device", "metric")}
    columns = Columns(
        np.array([event[0] for event in found], np.uint64),
        np.array([min(event[1], limits["device"]) for event in found], np.uint64),
        np.array([min(event[2], limits["metric"]) for event in found], np.uint64),
        np.zeros(n),
        np.vstack([np.full((1, n), 7.0), [[event[3] for event in found]], np.full((len(schema.values) - 2, n), 7.0)]),
    )
    decoded = decode_columns(schema, n, encode_columns(schema, columns))
    assert isinstance(decoded, Columns)
    cells = np.zeros((SLOTS, DEVICES * METRICS, CELL_WIDTH))
    aside, reasons, counts = np.zeros(n, np.int32), np.zeros(n, np.uint8), np.zeros(len(REASONS), np.int64)
    set_aside = accumulate(
        cells,
        decoded.ticks,
        decoded.device,
        decoded.metric,
        decoded.values,
        np.array([1]),
        np.array([LOW]),
        np.array([HIGH]),
        DEVICES,
        METRICS,
        t_first_ns,
        1,
        np.uint64(TIME_NS_MAX),
        time_ns_max,
        PANE_NS,
        first_pane,
        OPEN,
        np.zeros(n, np.int64),
        np.zeros(n, np.int64),
        aside,
        reasons,
        counts,
    )
    return cells, aside[:set_aside], reasons[:set_aside], counts


def reference(found: list[Event], first_pane: int, t_first_ns: int, time_ns_max: int):  # type: ignore[no-untyped-def]
    """The same in plain NumPy over lists, event by event, without any cleverness."""
    told: dict[int, str] = {}
    panes: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for place, (tick, device, metric, value) in enumerate(found):
        at = t_first_ns + tick
        pane = at // PANE_NS
        if device >= DEVICES:
            told[place] = "unknown_device"
        elif metric >= METRICS:
            told[place] = "unknown_metric"
        elif not (np.isfinite(value) and LOW <= value <= HIGH):
            told[place] = "bad_value"
        elif at > time_ns_max or pane >= first_pane + OPEN:
            told[place] = "future"
        elif pane < first_pane:
            told[place] = "late"
        else:
            panes.setdefault((pane % SLOTS, device * METRICS + metric), []).append((at, value))
    cells = np.zeros((SLOTS, DEVICES * METRICS, CELL_WIDTH))
    for (slot, key), members in panes.items():
        xs = np.array([value for _, value in members])
        newest = max(at for at, _ in members)
        last = [value for at, value in members if at == newest][-1]
        squares = ((xs - xs[0]) ** 2).sum()
        cells[slot, key] = [len(xs), xs.sum(), squares, xs.min(), xs.max(), last, newest % PANE_NS, xs[0]]
    return cells, told


@settings(deadline=None, max_examples=300)
@given(st.sampled_from([COMPACT, WIDE]), events, st.integers(0, 8), st.integers(0, 6000), st.integers(0, 12_000))
def test_the_kernel_agrees_with_plain_arithmetic_on_any_events(
    schema: EventSchema, found: list[Event], first_pane: int, t_first_ns: int, time_ns_max: int
) -> None:
    narrow = [(tick, device, metric, float(np.float32(value))) for tick, device, metric, value in found]
    cells, aside, reasons, counts = run_kernel(schema, narrow, first_pane, t_first_ns, time_ns_max)
    capped = [(t, d, m, v) if schema is WIDE else (t, min(d, 65_535), min(m, 255), v) for t, d, m, v in narrow]
    expected, told = reference(capped, first_pane, t_first_ns, time_ns_max)
    np.testing.assert_array_equal(cells, expected)
    assert {int(place): REASONS[reason] for place, reason in zip(aside, reasons, strict=True)} == told
    assert counts.sum() == len(found)
    assert counts[0] == len(found) - len(told)


@pytest.mark.parametrize("tick", [2**63, 2**64 - 1, TIME_NS_MAX + 1])
def test_offsets_that_would_overflow_lie_in_the_future(tick: int) -> None:
    cells, _, reasons, _ = run_kernel(WIDE, [(tick, 0, 0, 1.0)], 0, 0, 2**63 - 1)
    assert [REASONS[reason] for reason in reasons] == ["future"]
    assert not cells.any()


def test_arrays_that_do_not_fit_are_refused_untouched() -> None:
    cells = np.zeros((SLOTS, DEVICES * METRICS - 1, CELL_WIDTH))  # one key too few
    columns = decode_columns(COMPACT, 1, bytes(16))
    assert isinstance(columns, Columns)
    one = np.array([0.0])
    answer = accumulate(
        cells, columns.ticks, columns.device, columns.metric, columns.values, np.array([0]), one, one, DEVICES, METRICS,
        0, 1, np.uint64(9), 9, PANE_NS, 0, OPEN, np.zeros(1, np.int64), np.zeros(1, np.int64),
        np.zeros(1, np.int32), np.zeros(1, np.uint8), np.zeros(6, np.int64),
    )  # fmt: skip
    assert answer == -1
    assert not cells.any()


@settings(deadline=None)
@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=6), min_size=1, max_size=5), st.data())
def test_merged_panes_are_what_one_pane_of_all_events_would_be(panes: list[list[float]], data: st.DataObject) -> None:
    slots = data.draw(st.permutations(range(len(panes))))
    cells = np.zeros((len(panes), 1, CELL_WIDTH))
    for slot, xs in zip(slots, panes, strict=True):
        if xs:
            array = np.array(xs)
            squares = ((array - xs[0]) ** 2).sum()
            cells[slot, 0] = [len(xs), array.sum(), squares, array.min(), array.max(), xs[-1], 5.0, xs[0]]
    out = np.zeros((1, CELL_WIDTH))
    assert merge_panes(cells, np.array(slots), PANE_NS, out) == 0
    together = np.array([x for xs in panes for x in xs])
    if not len(together):
        assert not out.any()
        return
    count, total, squares, low, high, last = out[0, :6]
    assert (count, low, high, last) == (len(together), together.min(), together.max(), together[-1])
    assert total == pytest.approx(together.sum(), abs=1e-6)
    variance = squares / count - (total / count - out[0, 7]) ** 2
    assert variance == pytest.approx(together.var(), rel=1e-6, abs=1e-3)


def test_a_straight_line_is_continued_by_holt() -> None:
    history = np.full((8, 2), np.nan, np.float32)
    history[[5, 6, 7, 0, 1], 0] = [10, 12, 14, 16, 18]  # the ring starts at 5
    out = np.zeros((2, 3))
    assert holt(history, 5, 5, 0.3, 0.1, out) == 0
    assert out[0].tolist() == pytest.approx([18.0, 2.0, 5])
    assert math.isnan(out[1, 0])
    assert out[1, 2] == 0


def test_holt_moves_on_over_steps_without_a_value() -> None:
    history = np.array([[1.0], [np.nan], [3.0], [np.nan], [5.0]], np.float32)
    out = np.zeros((1, 3))
    holt(history, 0, 5, 0.5, 0.5, out)
    assert out[0].tolist() == pytest.approx([5.0, 1.0, 3])


@settings(deadline=None)
@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=2, max_size=30))
def test_holt_is_the_textbook_recursion(xs: list[float]) -> None:
    out = np.zeros((1, 3))
    holt(np.array(xs, np.float32).reshape(-1, 1), 0, len(xs), 0.3, 0.1, out)
    level, trend = xs[1], xs[1] - xs[0]
    for x in xs[2:]:
        before = level
        level = 0.3 * x + 0.7 * (level + trend)
        trend = 0.1 * (level - before) + 0.9 * trend
    assert out[0, :2].tolist() == pytest.approx([level, trend], rel=1e-6, abs=1e-6)
