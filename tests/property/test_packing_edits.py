"""Is a file that was edited cut exactly as if nothing were known of it? With chunks of some hundred bytes."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from itertools import accumulate

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harch.content import chunking, file_chunks
from harch.content.file_chunks import FileChunks, cut_file
from harch.content.frames import chunk_id
from harch.content.model import ChunkRef

SCALE = 1024
LIMITS = {"CHUNK_BYTES_MIN": 128, "CHUNK_BYTES_MAX": 2048, "_NORMAL_BYTES": 416}
CONTENT_BYTES = 20_000


@pytest.fixture(scope="module", autouse=True)
def small_chunks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in LIMITS.items():
            patch.setattr(chunking, name, value)
        for name in ("_RARE_LIMIT", "_OFTEN_LIMIT"):
            patch.setattr(chunking, name, getattr(chunking, name) * SCALE)
        patch.setattr(chunking, "_choose_finder", lambda _: chunking.find_with_numpy)
        patch.setattr(file_chunks, "CHUNK_BYTES_MAX", LIMITS["CHUNK_BYTES_MAX"])
        yield


def cut(content: bytes, before: tuple[ChunkRef, ...] = (), *, bytes_per_read: int = 1 << 30) -> FileChunks:
    with tempfile.TemporaryFile() as file, pytest.MonkeyPatch.context() as patch:
        file.write(content)
        file.flush()
        real = os.preadv

        def short_read(descriptor: int, buffers: list[memoryview], at: int) -> int:
            return real(descriptor, [buffers[0][:bytes_per_read]], at)

        patch.setattr(file_chunks.os, "preadv", short_read)
        found = cut_file(
            file.fileno(), len(content), before=before, buffer=memoryview(bytearray(2 * LIMITS["CHUNK_BYTES_MAX"]))
        )
    assert found is not None
    return found


def as_chunking_says(content: bytes) -> tuple[ChunkRef, ...]:
    ends = chunking.cut(content, is_last=True)
    return tuple(
        ChunkRef(chunk_id(content[begin:end]), end - begin) for begin, end in zip([0, *ends], ends, strict=False)
    )


def content_of(seed: int, size: int, is_repetitive: bool) -> bytes:
    draw = random.Random(seed)
    if not is_repetitive:
        return draw.randbytes(size)
    parts = [draw.randbytes(1500), bytes(3000), b"text " * 300]
    return b"".join(draw.choices(parts, k=size // 1000 + 1))[:size]


EDITS = st.tuples(
    st.sampled_from(["insert", "remove", "overwrite", "end at a cut", "append", "repeat"]),
    st.integers(0, CONTENT_BYTES),
    st.integers(1, 3000),
    st.integers(0, 9),
)


def edited(content: bytes, what: str, at: int, count: int, seed: int) -> bytes:
    at = min(at, len(content))
    new = random.Random(seed).randbytes(count)
    match what:
        case "insert":
            return content[:at] + new + content[at:]
        case "remove":
            return content[:at] + content[at + count :]
        case "overwrite":
            return content[:at] + new + content[at + count :]
        case "append":
            return content + new
        case "repeat":
            return content[:at] + content[max(0, at - count) :]
    sizes = [chunk.size for chunk in as_chunking_says(content)]
    return content[: [*accumulate(sizes), 0][at % (len(sizes) + 1)]]


@given(
    seed=st.integers(0, 50),
    size=st.sampled_from([0, 100, 129, 2048, 2049, 4096, CONTENT_BYTES]),
    is_repetitive=st.booleans(),
    edits=st.lists(EDITS, min_size=1, max_size=4),
    bytes_per_read=st.sampled_from([1 << 30, 1000, 4095]),
)
@example(1, CONTENT_BYTES, False, [("append", 0, 3000, 1)], 1 << 30)  # the last chunk goes on
@example(1, CONTENT_BYTES, True, [("end at a cut", 7, 1, 1), ("append", 0, 200, 1)], 1 << 30)
@settings(max_examples=300)
def test_what_is_known_of_a_file_never_changes_how_it_is_cut(
    seed: int, size: int, is_repetitive: bool, edits: list[tuple[str, int, int, int]], bytes_per_read: int
) -> None:
    content = content_of(seed, size, is_repetitive)
    before = cut(content).chunks
    assert before == as_chunking_says(content)
    for edit in edits:
        content = edited(content, *edit)
        found = cut(content, before, bytes_per_read=bytes_per_read)
        assert found.chunks == as_chunking_says(content)
        assert found.tail == content[len(content) - (found.chunks[-1].size if found.chunks else 0) :]
        before = found.chunks


def test_only_what_lies_around_an_edit_is_searched_for_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    content = content_of(3, 40 * CONTENT_BYTES, False)
    before = cut(content).chunks
    searched: list[int] = []
    real = chunking.cut

    def counting(data: memoryview, *, is_last: bool) -> list[int]:
        searched.append(len(data))
        return real(data, is_last=is_last)

    monkeypatch.setattr(chunking, "cut", counting)
    middle = len(content) // 2
    cut(content[:middle] + b"inserted" + content[middle:], before)
    # As a chunk may reach so far: the edited one, some until the old cuts are found again, and the last one.
    assert 0 < sum(searched) <= 8 * LIMITS["CHUNK_BYTES_MAX"]
    searched.clear()
    cut(content, before)
    assert searched == []
