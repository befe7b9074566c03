"""Numbers and times are written as Prometheus writes them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.sentinel.http.prometheus.results import format_numbers, format_times, number_text, time_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "-0"),
        (1.0, "1"),
        (1e-5, "0.00001"),
        (-2.5e-6, "-0.0000025"),
        (1e-7, "1e-07"),
        (1.5e17, "150000000000000000"),
        (1e21, "1e+21"),
        (5e-324, "5e-324"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (math.nan, "NaN"),
    ],
)
def test_single_numbers(value: float, text: str) -> None:
    assert number_text(value) == text


@given(st.lists(st.floats()))
def test_many_numbers_are_written_as_each_alone_and_read_back(values: list[float]) -> None:
    texts = format_numbers(np.array(values, dtype=np.float64))
    assert texts == [number_text(value) for value in values]
    back = np.array([float(text.replace("Inf", "inf")) for text in texts], dtype=np.float64)
    assert np.array_equal(back, np.array(values), equal_nan=True)


@given(st.lists(st.integers(-(2**52), 2**52)))
def test_many_times_are_written_as_each_alone(times: list[int]) -> None:
    assert format_times(np.array(times, dtype=np.int64)) == [time_text(time) for time in times]


def test_times_are_seconds() -> None:
    assert [time_text(time) for time in (0, 1500, -1500, -1, 1_700_000_000_000)] == [
        "0",
        "1.500",
        "-1.500",
        "-0.001",
        "1700000000",
    ]
