"""Thinned out samples: rates stay exact, extremes and sums are those of their windows, raw ones go first."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest
from blocks_naive import Model, Sample, bits_of, model_of, selection_of, value_of
from faulty_disk import QuickDisk
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.sentinel.model.histograms import STALE, STALE_BITS, NativeHistogram
from harch.sentinel.model.labels import Matcher, MatchKind, labels
from harch.sentinel.store.blocks.downsampling import AGGREGATE_LABEL, WindowAggregate
from harch.sentinel.store.blocks.planning import DAY_MS, HOUR_MS, MINUTE_MS, BlockPolicy, Downsampling
from harch.sentinel.store.blocks.tenant import TenantBlocks

WINDOW = 5 * MINUTE_MS
SERIES = labels({"__name__": "m", "i": "1"})
ONLY_COARSE = BlockPolicy(keep_ms=4 * HOUR_MS, downsampling=(Downsampling(WINDOW, after_ms=HOUR_MS, keep_ms=None),))
TWO_LEVELS = BlockPolicy(
    keep_ms=4 * HOUR_MS,
    downsampling=(
        Downsampling(WINDOW, after_ms=HOUR_MS, keep_ms=2 * DAY_MS),
        Downsampling(HOUR_MS, after_ms=DAY_MS, keep_ms=None),
    ),
)
LATER = 40 * HOUR_MS


def series(values: list[float], *, step_ms: int = 15_000) -> Model:
    return {SERIES: {place * step_ms: Sample(bits_of(value)) for place, value in enumerate(values)}}


def coarse(tmp_path: Path, model: Model) -> TenantBlocks:
    """Blocks in which only downsampled samples are left."""
    blocks = TenantBlocks.open(tmp_path, ONLY_COARSE, disk=QuickDisk())
    blocks.add(selection_of(model))
    assert blocks.maintain(LATER).put_off == []
    assert {meta.resolution_ms for meta in blocks.metas()} == {WINDOW}
    return blocks


def found(blocks: TenantBlocks, aggregate: WindowAggregate) -> dict[int, float]:
    answer = model_of(blocks.select([], -(2**62), 2**62, limit=10**6, aggregate=aggregate))
    return {time: value_of(sample.bits) for time, sample in answer.get(SERIES, {}).items()}


def increase(values: list[float]) -> float:
    """As PromQL sees it: after a fall the counter started at zero."""
    return sum(after - before if after >= before else after for before, after in pairwise(values))


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 20), min_size=100, max_size=400), st.lists(st.integers(0, 399), max_size=3))
def test_the_increase_of_a_counter_survives_resets(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], resets: list[int]
) -> None:
    values, level = [], 0
    for place, step in enumerate(steps):
        level = step if place in resets else level + step
        values.append(float(level))
    kept = found(coarse(tmp_path_factory.mktemp("blocks"), series(values)), WindowAggregate.LAST)
    assert increase(list(kept.values())) == increase(values) - increase(values[: _first_kept(kept)])
    assert len(kept) <= len(values) // 20 + 2 + 2 * len(resets)


def _first_kept(kept: dict[int, float]) -> int:
    return min(kept) // 15_000 + 1


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(-1e6, 1e6) | st.just(math.nan) | st.just(STALE), min_size=1, max_size=120))
def test_extremes_sums_and_counts_are_those_of_their_windows(
    tmp_path_factory: pytest.TempPathFactory, values: list[float]
) -> None:
    model = series(values)
    blocks = coarse(tmp_path_factory.mktemp("blocks"), model)
    windows: dict[int, list[tuple[int, float]]] = {}
    for time, sample in model[SERIES].items():
        if sample.bits != STALE_BITS:
            windows.setdefault(time // WINDOW, []).append((time, value_of(sample.bits)))
    for aggregate, way in (
        (WindowAggregate.MIN, lambda numbers: min([n for n in numbers if n == n], default=math.nan)),
        (WindowAggregate.MAX, lambda numbers: max([n for n in numbers if n == n], default=math.nan)),
        (WindowAggregate.SUM, sum),
        (WindowAggregate.COUNT, len),
    ):
        expected = {window[-1][0]: way([value for _, value in window]) for window in windows.values()}
        answer = found(blocks, aggregate)
        assert list(answer) == list(expected)
        assert all(
            answer[time] == pytest.approx(value, nan_ok=True, rel=1e-12, abs=1e-6) for time, value in expected.items()
        )


def test_a_coarser_level_is_made_of_a_finer_one_when_raw_samples_are_gone(tmp_path: Path) -> None:
    values = [float(place % 50) for place in range(480)]
    blocks = TenantBlocks.open(tmp_path, TWO_LEVELS)
    blocks.add(selection_of(series(values)))
    blocks.maintain(10 * HOUR_MS)
    assert {meta.resolution_ms for meta in blocks.metas()} == {WINDOW}
    blocks.maintain(3 * DAY_MS)
    assert {meta.resolution_ms for meta in blocks.metas()} == {HOUR_MS}
    assert list(found(blocks, WindowAggregate.COUNT).values()) == [240.0, 240.0]
    assert list(found(blocks, WindowAggregate.SUM).values()) == [sum(values[:240]), sum(values[240:])]
    assert list(found(blocks, WindowAggregate.MAX).values()) == [49.0, 49.0]


def test_raw_samples_are_answered_where_they_exist(tmp_path: Path) -> None:
    blocks = TenantBlocks.open(tmp_path, BlockPolicy(keep_ms=30 * HOUR_MS, downsampling=ONLY_COARSE.downsampling))
    for hour in (0, 20):
        blocks.add(selection_of({SERIES: {hour * HOUR_MS + step * 15_000: Sample(bits_of(1.0)) for step in range(80)}}))
    blocks.maintain(25 * HOUR_MS)
    assert sorted(meta.resolution_ms for meta in blocks.metas()) == [0, 0, WINDOW, WINDOW]
    assert len(found(blocks, WindowAggregate.LAST)) == 160
    assert set(found(blocks, WindowAggregate.COUNT).values()) == {1.0}
    blocks.maintain(35 * HOUR_MS)  # the first hours are now there only coarsely
    assert len([time for time in found(blocks, WindowAggregate.LAST) if time < HOUR_MS]) == 4
    assert len([time for time in found(blocks, WindowAggregate.LAST) if time > 19 * HOUR_MS]) == 80
    assert sum(found(blocks, WindowAggregate.COUNT).values()) == 160.0


def test_late_samples_stand_beside_coarse_ones(tmp_path: Path) -> None:
    blocks = coarse(tmp_path, series([1.0] * 80))
    blocks.add(selection_of({SERIES: {7: Sample(bits_of(5.0))}}))
    assert found(blocks, WindowAggregate.LAST)[7] == 5.0
    assert len(found(blocks, WindowAggregate.LAST)) == 5


def test_the_end_of_a_series_stays_visible(tmp_path: Path) -> None:
    blocks = coarse(tmp_path, series([1.0, 2.0, 3.0, STALE, 4.0, 5.0, 6.0]))
    kept = model_of(blocks.select([], -(2**62), 2**62, limit=100))[SERIES]
    assert [sample.bits == STALE_BITS for sample in kept.values()] == [False, True, False, False]


def test_the_last_histogram_of_a_window_is_kept(tmp_path: Path) -> None:
    model: Model = {
        SERIES: {
            step * 60_000: Sample(bits_of(float(step)), 0, NativeHistogram(count=step, sum=float(step)))
            for step in range(10)
        }
    }
    blocks = coarse(tmp_path, model)
    kept = model_of(blocks.select([], -(2**62), 2**62, limit=100))[SERIES]
    assert [sample.histogram.count for sample in kept.values() if sample.histogram] == [4.0, 9.0]
    assert found(blocks, WindowAggregate.MIN) == {}


def test_deleting_a_moment_deletes_the_windows_that_contain_it(tmp_path: Path) -> None:
    blocks = coarse(tmp_path, series([1.0] * 80))
    before = found(blocks, WindowAggregate.SUM)
    blocks.delete([], WINDOW + 3, WINDOW + 4)
    left = {time: value for time, value in before.items() if time // WINDOW != 1}
    assert found(blocks, WindowAggregate.SUM) == left
    blocks.purge(LATER)
    assert found(blocks, WindowAggregate.SUM) == left


def test_nobody_outside_sees_or_asks_for_the_label_of_aggregates(tmp_path: Path) -> None:
    blocks = coarse(tmp_path, series([1.0] * 80))
    table = blocks.series([Matcher(MatchKind.NOT_EQUAL, AGGREGATE_LABEL, "MIN")], 0, LATER)
    assert [table.labels_of(place) for place in range(table.count)] == [SERIES]
    assert blocks.series([Matcher(MatchKind.EQUAL, AGGREGATE_LABEL, "MIN")], 0, LATER).count == 0


def test_levels_must_grow_and_divide_an_hour() -> None:
    with pytest.raises(ValueError, match="divide an hour"):
        BlockPolicy(downsampling=(Downsampling(7 * MINUTE_MS, 0),))
