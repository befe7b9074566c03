from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from harch.base.ids import new_id

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)


@given(st.integers(0, 2**60 - 1))
def test_an_id_holds_its_time_and_its_noise(entropy: int) -> None:
    prefix, digits = new_id("wl", now=NOW, entropy=entropy).split("_")
    value = 0
    for digit in digits:
        value = value * 32 + ALPHABET.index(digit)
    assert (prefix, len(digits)) == ("wl", 21)
    assert divmod(value, 2**60) == (int(NOW.timestamp() * 1000), entropy)


def test_later_ids_sort_after_earlier_ones() -> None:
    moments = [NOW + timedelta(milliseconds=step) for step in (0, 1, 31, 32, 1023, 1024, 10**9)]
    ids = [new_id("wl", now=moment, entropy=7) for moment in moments]
    assert ids == sorted(ids)


def test_ids_of_one_moment_differ_and_use_every_letter_everywhere() -> None:
    noises = {new_id("wl", now=NOW).removeprefix("wl_")[9:] for _ in range(5000)}  # more than one page of randomness
    assert len(noises) == 5000
    for position in zip(*noises, strict=True):
        assert set(position) == set(ALPHABET)
