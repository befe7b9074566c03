"""Which texts are whole numbers? Plain digits that 64 bits hold, and nothing that only looks like it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.base.integers import INT64_MAX, read_natural


@given(st.integers(0, INT64_MAX), st.integers(0, 30))
def test_every_number_that_fits_is_read(number: int, zeros: int) -> None:
    assert read_natural("0" * zeros + str(number)) == number


@given(st.integers(INT64_MAX + 1))
def test_none_that_does_not_fit_is(number: int) -> None:
    assert read_natural(str(number)) is None


@pytest.mark.parametrize("text", ["", "-1", "+1", " 1", "1 ", "1_0", "1.0", "٣", "²", "１", "0x1", "1e3", "9" * 5000])
def test_what_only_looks_like_a_number_is_none(text: str) -> None:
    assert read_natural(text) is None
