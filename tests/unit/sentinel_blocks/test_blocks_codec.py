"""The codec of columns: every bit comes back, and no byte that was changed makes it run over."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from blocks_naive import VALUES
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.sentinel.model.histograms import STALE
from harch.sentinel.store.blocks import codec

WORDS = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.integers(-300, 300), st.integers(0, 50).map(lambda step: 15_000 * step)
)
RANDOM = np.random.default_rng(7)


def assert_round_trip(times: np.ndarray, values: np.ndarray) -> bytes:
    chunk = codec.encode(times, values)
    found_times, found_values = codec.decode(chunk)
    assert np.array_equal(found_times, times)
    assert np.array_equal(found_values.view(np.uint64), values.view(np.uint64))
    return chunk


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(WORDS, VALUES), max_size=70), st.integers(1, 3))
def test_every_bit_comes_back(samples: list[tuple[int, float]], repeats: int) -> None:
    times = np.array([time for time, _ in samples] * repeats, np.int64)
    assert_round_trip(times, np.array([value for _, value in samples] * repeats, np.float64))


COLUMNS = {
    "counter": np.cumsum(RANDOM.poisson(30, 480)).astype(float),
    "counter with a reset": np.concatenate([np.arange(240.0) * 7, np.arange(240.0) * 7]),
    "gauge of one decimal": np.round(40 + RANDOM.normal(0, 5, 480), 1),
    "memory in pages": 8e9 // 4096 * 4096 + np.cumsum(RANDOM.integers(-9, 10, 480)) * 4096.0,
    "constant": np.full(480, 0.1),
    "ends with a stale marker": np.append(np.round(RANDOM.normal(5, 1, 479), 3), STALE),
    "any bits": RANDOM.integers(0, 2**64, 480, dtype=np.uint64).view(np.float64),
    "single precision": RANDOM.normal(0, 1, 480).astype(np.float32).astype(np.float64),
    "extremes": np.tile([0.0, -0.0, np.inf, -np.inf, np.nan, STALE, 5e-324, -1.7e308], 60),
}
BYTES_MAX = {  # of values and times together; a plain pair takes 16
    "counter": 1.7,
    "counter with a reset": 0.7,
    "gauge of one decimal": 1.7,
    "memory in pages": 1.5,
    "constant": 0.6,
    "ends with a stale marker": 2.7,
    "any bits": 8.7,
    "single precision": 5.3,
    "extremes": 9.0,
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_monitoring_come_back_and_are_small(name: str) -> None:
    times = 1_700_000_000_000 + np.arange(480) * 15_000 + RANDOM.integers(-3, 4, 480)
    chunk = assert_round_trip(times, COLUMNS[name])
    assert len(chunk) / 480 <= BYTES_MAX[name]


def test_times_on_a_grid_take_next_to_nothing() -> None:
    assert len(assert_round_trip(np.arange(480) * 15_000, np.zeros(480))) < 40


@pytest.mark.parametrize("name", COLUMNS)
def test_changed_bytes_are_refused_or_give_as_many_samples(name: str) -> None:
    chunk = codec.encode(np.arange(480) * 15_000, COLUMNS[name])
    room_times, room_values = np.zeros(600, np.int64), np.zeros(600)
    for place in list(range(min(len(chunk), 60))) + RANDOM.integers(0, len(chunk), 100).tolist():
        broken = bytearray(chunk)
        broken[place] ^= int(RANDOM.integers(1, 256))
        room_times[:], room_values[:] = 77, 77.0
        with contextlib.suppress(HarchError):
            count = codec.decode_into(bytes(broken), room_times, room_values)
            assert (room_times[count:] == 77).all()
            assert (room_values[count:] == 77.0).all()


def test_cut_chunks_are_refused() -> None:
    chunk = codec.encode(np.arange(50) * 15_000, COLUMNS["counter"][:50])
    for size in range(len(chunk)):
        with pytest.raises(HarchError, match="E0613"):
            codec.decode(chunk[:size])
    assert codec.sample_count(chunk) == 50


def test_times_and_values_of_different_lengths_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="3 times for 2 values"):
        codec.encode(np.arange(3), np.zeros(2))
