"""Small files under a seal: what was written comes back, also after one bit has flipped; all else is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.base.seal import FIELD, LINE, DamagedContent, Seal
from harch.base.state_files import read_sealed, rewrite

CONTENT = b'{"version":1,"names":["a","b"],"number":12345}'


kinds = st.sampled_from([LINE, FIELD])
contents = st.binary(max_size=300).map(lambda content: b"{" + content + b"}")


@given(kinds, contents)
def test_what_was_sealed_comes_back(kind: Seal, content: bytes) -> None:
    assert kind.unseal(kind.seal(content)) == content


@given(kinds, contents, st.integers(0, 10_000))
def test_any_one_flipped_bit_is_found_and_put_right(kind: Seal, content: bytes, bit: int) -> None:
    raw = bytearray(kind.seal(content))
    bit %= 8 * len(raw)
    raw[bit // 8] ^= 1 << bit % 8
    assert kind.mended(bytes(raw)) == content


@given(st.sets(st.integers(0, 8 * len(LINE.seal(CONTENT)) - 1), min_size=2, max_size=3))
def test_more_flipped_bits_are_not_put_right_into_something_else(bits: set[int]) -> None:
    raw = bytearray(LINE.seal(CONTENT))
    for bit in bits:
        raw[bit // 8] ^= 1 << bit % 8
    assert LINE.mended(bytes(raw)) in (None, CONTENT)


def test_an_object_under_a_seal_is_an_object_for_everybody() -> None:
    assert json.loads(FIELD.seal(CONTENT)).keys() == {*json.loads(CONTENT), "seal"}


def test_a_file_of_an_older_release_is_read_as_it_is() -> None:
    assert LINE.unseal(CONTENT) == FIELD.unseal(CONTENT) == CONTENT


def test_what_must_be_sealed_is_refused_without_a_seal() -> None:
    with pytest.raises(DamagedContent):
        LINE.open(CONTENT)
    assert LINE.open(LINE.seal(CONTENT)) == (CONTENT, False)


def test_a_wrong_checksum_is_refused() -> None:
    with pytest.raises(DamagedContent):
        LINE.unseal(LINE.seal(CONTENT).replace(b"12345", b"54321"))


def test_a_file_with_a_flipped_bit_is_put_right_and_kept_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    rewrite(path, LINE.seal(CONTENT))
    assert path.stat().st_mode & 0o777 == 0o600
    for place in (5, -1, -10):
        damaged = bytearray(LINE.seal(CONTENT))
        damaged[place] ^= 2
        path.write_bytes(damaged)
        assert read_sealed(path) == CONTENT
        assert path.read_bytes() == LINE.seal(CONTENT)
        assert (tmp_path / "state.json.damaged").read_bytes() == damaged


def test_other_damage_is_set_aside_each_under_a_name_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for _ in range(20):
        path.write_bytes(LINE.seal(CONTENT).replace(b"12345", b"54321"))
        with pytest.raises(HarchError) as refused:
            read_sealed(path)
        assert refused.value.code == "E1030"
        assert not path.exists()
    assert len(list(tmp_path.glob("*.damaged"))) == 16
