"""Cuts depend on the content around them alone: the same with and without Numba, in pieces, and after an edit."""

from __future__ import annotations

import hashlib
import io
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.content import chunking
from harch.content.chunking import (
    CHUNK_BYTES_AVERAGE,
    CHUNK_BYTES_MIN,
    WINDOW_BYTES,
    chunks_of,
    cut,
    find_with_numpy,
    load_kernel,
)
from harch.content.model import CHUNK_BYTES_MAX

KIB, MIB = 1024, 1024 * 1024
GEAR = chunking._gear()


def some_bytes(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


@st.composite
def files(draw: st.DrawFn, size_max: int = 7 * MIB) -> bytes:
    """Stretches of random bytes, of one byte, and of a repeated pattern: short and long ones, aligned or not."""
    parts, left = [], draw(st.integers(0, size_max))
    while left > 0:
        size = min(left, draw(st.integers(1, size_max)))
        seed = draw(st.integers(0, 2**32))
        kind = draw(st.sampled_from(["random", "one byte", "pattern"]))
        if kind == "random":
            parts.append(some_bytes(seed, size))
        elif kind == "one byte":
            parts.append(bytes([seed % 256]) * size)
        else:
            pattern = some_bytes(seed, 1 + seed % 5000)
            parts.append((pattern * (size // len(pattern) + 1))[:size])
        left -= size
    return b"".join(parts)


@contextmanager
def finder(chosen: chunking.Finder) -> Iterator[None]:
    before, chunking._kernel = chunking._kernel, chosen
    try:
        yield
    finally:
        chunking._kernel = before


def find_in_words(data: bytes, begin: int, end: int, limit: int) -> int:
    """What the two finders compute, as the textbook has it."""
    for place in range(begin, end):
        value = 0
        for byte in data[place - (WINDOW_BYTES - 1) : place + 1]:
            value = (2 * value + int(GEAR[byte])) % 2**32
        if value < limit:
            return place
    return -1


@given(st.integers(0, 2**32), st.integers(WINDOW_BYTES, 9000), st.data())
@settings(max_examples=60)
def test_both_finders_find_the_first_place_that_the_definition_names(seed: int, size: int, data: st.DataObject) -> None:
    content = some_bytes(seed, size)
    begin = data.draw(st.integers(WINDOW_BYTES - 1, size - 1))
    end = data.draw(st.integers(begin + 1, size))
    limit = data.draw(st.sampled_from([1 << 18, 1 << 20, 1 << 22, 1 << 27]))
    expected = find_in_words(content, begin, end, limit)
    array = chunking._as_array(content)
    assert find_with_numpy(array, GEAR, begin, end, limit) == expected
    assert load_kernel()(array, GEAR, begin, end, limit) == expected


@given(files())
@settings(max_examples=25)
def test_cuts_are_the_same_with_and_without_numba(content: bytes) -> None:
    with finder(load_kernel()):
        compiled = cut(content, is_last=True)
    with finder(find_with_numpy):
        assert cut(content, is_last=True) == compiled


@given(files())
@settings(max_examples=25)
def test_chunks_make_up_the_file_and_keep_the_limits(content: bytes) -> None:
    ends = cut(content, is_last=True)
    sizes = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    assert sum(sizes) == len(content)
    assert all(CHUNK_BYTES_MIN <= size <= CHUNK_BYTES_MAX for size in sizes[:-1])
    assert all(0 < size <= CHUNK_BYTES_MAX for size in sizes[-1:])


@given(files(), st.integers(0, 7 * MIB))
@settings(max_examples=25)
def test_what_comes_later_moves_no_cut_that_was_made(content: bytes, at: int) -> None:
    whole = cut(content, is_last=True)
    begun = cut(content[:at], is_last=False)
    assert begun == whole[: len(begun)]
    assert at - (begun[-1] if begun else 0) <= CHUNK_BYTES_MAX or at > len(content)


@given(files(size_max=4 * MIB), st.lists(st.integers(1, 3 * MIB), max_size=8), st.integers(64 * KIB, 3 * MIB))
@settings(max_examples=25)
def test_a_file_that_is_read_in_pieces_has_the_same_chunks(content: bytes, sizes: list[int], read_bytes: int) -> None:
    file, wanted = io.BytesIO(content), iter(sizes)
    before, chunking.READ_BYTES = chunking.READ_BYTES, read_bytes
    try:
        found = list(chunks_of(lambda most: file.read(min(most, next(wanted, most)))))
    finally:
        chunking.READ_BYTES = before
    assert b"".join(found) == content
    ends = cut(content, is_last=True)
    assert [len(chunk) for chunk in found] == [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


@given(st.integers(0, 2**32), st.integers(0, 6 * MIB), st.integers(0, 2 * MIB), st.integers(0, 2 * MIB))
@settings(max_examples=25)
def test_an_edit_changes_only_chunks_around_it(seed: int, at: int, removed: int, inserted: int) -> None:
    before = some_bytes(seed, 6 * MIB)
    removed = min(removed, len(before) - at)
    after = before[:at] + some_bytes(seed + 1, inserted) + before[at + removed :]
    old, new = cut(before, is_last=True), cut(after, is_last=True)
    untouched = [end for end in old[:-1] if end <= at]
    assert new[: len(untouched)] == untouched
    moved = len(after) - len(before)
    behind = {end + moved for end in old if end >= at + removed}
    together = [end for end in new if end >= at + inserted and end in behind]
    assert together, "both end at the end of the file at least"
    assert [end for end in new if end >= together[0]] == sorted(end for end in behind if end >= together[0])


def test_a_megabyte_that_is_inserted_sends_little_more_than_itself() -> None:
    sent = []
    for seed in range(8):
        before = some_bytes(seed, 24 * MIB)
        at = 7 * MIB + 12_345 * seed
        after = before[:at] + some_bytes(seed + 1000, MIB) + before[at:]
        known = set(chunks_of(io.BytesIO(before).read))
        sent.append(sum(len(chunk) for chunk in chunks_of(io.BytesIO(after).read) if chunk not in known))
    assert sum(sent) / len(sent) < MIB + 2.5 * CHUNK_BYTES_AVERAGE
    assert max(sent) < MIB + 6 * CHUNK_BYTES_AVERAGE


def test_the_average_is_as_promised() -> None:
    content = np.random.default_rng(5).bytes(256 * MIB)
    with finder(load_kernel()):
        ends = cut(content, is_last=True)
    assert 0.95 * CHUNK_BYTES_AVERAGE < len(content) / len(ends) < 1.05 * CHUNK_BYTES_AVERAGE


def test_cuts_are_part_of_the_format() -> None:
    """Whoever changes this makes every hub and client send everything again."""
    content = hashlib.shake_256(b"format").digest(4 * MIB)
    assert cut(content, is_last=True) == [250746, 757137, 1196469, 1686632, 2270947, 3187305, 3904414, 4194304]
    assert (
        hashlib.sha256(GEAR.astype("<u4").tobytes()).hexdigest()
        == "41f1af075582370cfe4bbaf613a110df181ef101e93623ee73de591a25d05822"
    )


def test_small_files_are_one_chunk_and_load_no_array_library() -> None:
    script = (
        "import sys; from harch.content.chunking import chunks_of, cut; import io;"
        f"assert cut(bytes({CHUNK_BYTES_MIN}), is_last=True) == [{CHUNK_BYTES_MIN}];"
        "assert cut(bytes(10), is_last=False) == [] and cut(b'', is_last=True) == [];"
        "assert list(chunks_of(io.BytesIO(b'abc').read)) == [b'abc'] and list(chunks_of(io.BytesIO().read)) == [];"
        "assert not {'numpy', 'numba'} & set(sys.modules);"
        f"cut(bytes({4 * MIB}), is_last=True); assert 'numpy' in sys.modules and 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_anything_with_bytes_can_be_cut(kind: type[bytes] | type[bytearray] | type[memoryview]) -> None:
    content = some_bytes(3, 3 * MIB)
    assert cut(kind(content), is_last=True) == cut(content, is_last=True)


def test_the_kernel_is_compiled_for_one_form_of_its_arguments() -> None:
    content, kernel = some_bytes(3, 3 * MIB), load_kernel()
    with finder(kernel):
        for kind in (bytes, bytearray, memoryview, lambda data: memoryview(data)[1:]):
            cut(kind(content), is_last=True)
    assert len(kernel.signatures) == 1  # type: ignore[attr-defined]


def test_much_work_loads_the_kernel_and_little_does_not() -> None:
    script = (
        "import sys; from harch.content import chunking;"
        "content = bytes(1 << 20); chunking.KERNEL_FROM_BYTES = 4 << 20;"
        "found = [chunking.cut(content, is_last=True) and 'numba' in sys.modules for _ in range(4)];"
        "assert found == [False, False, False, True], found"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
