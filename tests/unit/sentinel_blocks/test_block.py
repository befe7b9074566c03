"""One block: what was written is found again, by any matchers and range, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from blocks_naive import MATCHERS, Model, Sample, bits_of, chosen, model_of, models, selection_of
from faulty_disk import QuickDisk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.sentinel.model.labels import Matcher, MatchKind, labels
from harch.sentinel.store.blocks.block import Block
from harch.sentinel.store.blocks.index_file import SectionCache
from harch.sentinel.store.blocks.writer import write_block

FOLDER = [HealthCheck.function_scoped_fixture]
EVERYTHING = (-(2**62), 2**62)


def plain_model(series: int, count: int, *, step: int = 15_000) -> Model:
    random = np.random.default_rng(series)
    return {
        labels({"__name__": "m", "series": f"{place:04d}"}): {
            time * step + place % 3: Sample(bits_of(float(value)))
            for time, value in enumerate(random.integers(0, 1000, count))
        }
        for place in range(series)
    }


@settings(deadline=None, max_examples=120, suppress_health_check=FOLDER)
@given(models(), MATCHERS, st.integers(-600, 3_100), st.integers(-100, 3_500), st.integers(0, 3))
def test_a_block_answers_as_a_naive_store_would(
    tmp_path: Path, model: Model, matchers: list[Matcher], start: int, length: int, gap: int
) -> None:
    meta = write_block(tmp_path, selection_of(model, gap=gap), -500, 3_000, disk=QuickDisk())
    if meta is None:
        assert not model
        return
    block = Block.open(tmp_path / meta.name)
    expected = chosen(model, matchers, start, start + length)
    assert model_of(block.select(matchers, start, start + length, limit=10**6)) == expected
    found = block.series(matchers, start, start + length)
    assert {found.labels_of(place) for place in range(found.count)} == set(expected)
    assert meta.samples == sum(len(samples) for samples in model.values())
    block.verify()


@settings(deadline=None, max_examples=40, suppress_health_check=FOLDER)
@given(models(), st.integers(-500, 2_999), st.integers(1, 2_000))
def test_samples_outside_of_the_range_are_left_out(tmp_path: Path, model: Model, start: int, length: int) -> None:
    meta = write_block(tmp_path, selection_of(model), start, start + length, disk=QuickDisk())
    expected = chosen(model, [], start, start + length - 1)
    found = {} if meta is None else model_of(Block.open(tmp_path / meta.name).select([], *EVERYTHING, limit=10**6))
    assert found == expected
    if meta is not None:
        times = [time for samples in expected.values() for time in samples]
        assert (meta.series, meta.first_ms, meta.last_ms) == (len(expected), min(times), max(times))


def test_a_long_block_is_read_by_slots(tmp_path: Path) -> None:
    model = plain_model(40, 1600)
    meta = write_block(tmp_path, selection_of(model), 0, 1600 * 15_000)
    assert meta is not None
    block = Block.open(tmp_path / meta.name)
    for start, end in ((0, 100), (7_000_000, 9_000_000), (15_000 * 533, 15_000 * 533), (23_000_000, 30_000_000)):
        assert model_of(block.select([], start, end, limit=10**6)) == chosen(model, [], start, end)


def test_series_in_any_order_can_be_read_by_their_places(tmp_path: Path) -> None:
    model = plain_model(40, 5)
    meta = write_block(tmp_path, selection_of(model), 0, 10**6)
    assert meta is not None
    block = Block.open(tmp_path / meta.name)
    samples = block.read(np.array([30, 2, 17]), 0, 10**6)
    for place, series in enumerate((30, 2, 17)):
        label_set = block.table().labels_of(series)
        first, count = int(samples.first[place]), int(samples.count[place])
        assert samples.timestamps[first : first + count].tolist() == sorted(model[label_set])


def test_more_samples_than_the_limit_are_refused(tmp_path: Path) -> None:
    meta = write_block(tmp_path, selection_of(plain_model(10, 10)), 0, 10**6)
    assert meta is not None
    block = Block.open(tmp_path / meta.name)
    assert int(block.select([], 0, 10**6, limit=100).samples.count.sum()) == 100
    with pytest.raises(HarchError, match="E0603"):
        block.select([], 0, 10**6, limit=99)


def test_series_scraped_together_share_their_times(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    times = (np.arange(400) * 15_000 + random.integers(0, 9_000, 400)).tolist()
    together: Model = {
        labels({"__name__": "m", "series": str(place)}): {time: Sample(0) for time in times} for place in range(200)
    }
    alone: Model = {
        labels({"__name__": "m", "series": str(place)}): {
            int(time): Sample(0) for time in np.arange(400) * 15_000 + random.integers(0, 9_000, 400)
        }
        for place in range(200)
    }
    sizes = []
    for model in (together, alone):
        meta = write_block(tmp_path, selection_of(model), 0, 10**7)
        assert meta is not None
        sizes.append(meta.samples_bytes)
    assert sizes[0] < 0.05 * sizes[1]


def test_the_cache_of_indexes_keeps_its_limit(tmp_path: Path) -> None:
    cache = SectionCache(limit_bytes=4_000)
    blocks = []
    for _ in range(3):
        meta = write_block(tmp_path, selection_of(plain_model(100, 3)), 0, 10**6)
        assert meta is not None
        blocks.append(Block.open(tmp_path / meta.name, cache))
    for block in blocks * 2:
        assert block.select([], 0, 10**6, limit=10**6).series.count == 100
        assert cache.held_bytes <= 4_000
    for block in blocks:
        block.close()
    assert cache.held_bytes == 0


def test_a_label_that_nobody_has_matches_as_empty(tmp_path: Path) -> None:
    meta = write_block(tmp_path, selection_of(plain_model(2, 1)), 0, 10**6)
    assert meta is not None
    block = Block.open(tmp_path / meta.name)
    assert block.series([Matcher(MatchKind.EQUAL, "zone", "")], 0, 10).count == 2
    assert block.series([Matcher(MatchKind.NOT_EQUAL, "zone", "")], 0, 10).count == 0
