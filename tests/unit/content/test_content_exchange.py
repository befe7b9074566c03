"""Does only what is missing travel, in requests of bounded size, and is nothing believed that a remote sends?"""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.content import exchange
from harch.content.exchange import REQUEST_BYTES, REQUESTS_AT_ONCE, download, read_tree, upload
from harch.content.frames import BATCH_BYTES_MAX, BATCH_CHUNKS_MAX, encode_frame, pack_chunk
from harch.content.model import EntryKind, TreeEntry
from harch.content.packing import PackedFolder, build_tree, pack, scan
from harch.content.parallel import for_each
from harch.testing.memory_remote import MemoryRemote
from harch.wire.content import ChunksStored

MIB = 1024 * 1024


def packed(folder: Path) -> PackedFolder:
    return pack(scan(folder, rules=None, bytes_max=1 << 40, entries_max=100_000))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "large").write_bytes(random.Random(1).randbytes(20 * MIB))
    (folder / "text").write_text("the same words again and again " * 10_000)
    return folder


class Watched(MemoryRemote):
    """Notes what is asked for at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[int] = []
        self.names: list[int] = []
        self.at_once = self.at_once_most = 0
        self._watch = threading.Lock()

    def missing(self, ids: Sequence[bytes]) -> list[bytes]:
        self.names.append(len(ids))
        return super().missing(ids)

    def put(self, body: bytes) -> ChunksStored:
        with self._watch:
            self.at_once += 1
            self.at_once_most = max(self.at_once_most, self.at_once)
            self.bodies.append(len(body))
        try:
            return super().put(body)
        finally:
            with self._watch:
                self.at_once -= 1


def test_an_upload_sends_what_is_missing_and_says_so(source: Path) -> None:
    remote, sent = Watched(), packed(source)
    first = upload(sent, remote)
    assert first.chunks == first.chunks_sent == len(sent.ids)
    assert first.bytes_sent == remote.bytes_received == sum(remote.bodies)
    assert first.bytes_missing == sent.chunk_bytes
    (source / "new").write_text("new")
    second = upload(packed(source), remote)
    assert second.chunks_sent == 3  # the file, the manifest and the root
    assert upload(packed(source), remote).chunks_sent == 0
    assert len(remote.bodies) > 3


def test_no_request_is_larger_than_a_hub_takes(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = Watched()
    upload(packed(source), remote)
    assert max(remote.bodies) <= REQUEST_BYTES + BATCH_CHUNKS_MAX * 64 <= BATCH_BYTES_MAX
    assert remote.at_once_most <= REQUESTS_AT_ONCE
    monkeypatch.setattr(exchange, "BATCH_CHUNKS_MAX", 10)
    other = Watched()
    upload(packed(source), other)
    assert max(other.names) == 10
    assert other.chunks == remote.chunks


def test_no_more_chunks_are_asked_for_at_once_than_a_hub_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "BATCH_CHUNKS_MAX", 10)
    (tmp_path / "source").mkdir()
    for number in range(25):
        (tmp_path / "source" / f"{number}").write_bytes(bytes([number]))

    class Counting(MemoryRemote):
        def fetch(self, ids: Sequence[bytes]) -> bytes:
            asked.append(len(ids))
            return super().fetch(ids)

    remote, sent, asked = Counting(), packed(tmp_path / "source"), list[int]()
    upload(sent, remote)
    download(sent.entries, tmp_path / "target", remote)
    assert sorted(asked) == [5, 10, 10]


def test_progress_is_counted_by_one_thread_at_a_time(source: Path) -> None:
    together, counting, overlaps = threading.Barrier(2), threading.Lock(), list[int]()

    class Together(MemoryRemote):
        def put(self, body: bytes) -> ChunksStored:
            with suppress(threading.BrokenBarrierError):
                together.wait(0.5)  # so that two requests end, and are counted, at the same moment
            return super().put(body)

    def count(size: int) -> None:
        if not counting.acquire(blocking=False):
            overlaps.append(size)
            return
        threading.Event().wait(0.01)
        counting.release()

    upload(packed(source), Together(), progress=count, threads=2)
    assert overlaps == []


def test_a_failure_of_the_remote_is_raised_as_it_is_and_not_tried_again(source: Path) -> None:
    class Refusing(MemoryRemote):
        puts = 0

        def put(self, body: bytes) -> ChunksStored:
            self.puts += 1
            raise HarchError("E1103", "the quota is used up")

    remote = Refusing()
    with pytest.raises(HarchError) as refused:
        upload(packed(source), remote)
    assert refused.value.code == "E1103"
    assert remote.puts <= REQUESTS_AT_ONCE


def test_a_remote_that_lacks_names_that_nobody_asked_about_changes_nothing(source: Path) -> None:
    class Confused(MemoryRemote):
        def missing(self, ids: Sequence[bytes]) -> list[bytes]:
            return [*super().missing(ids), b"\0" * 32]

    sent = packed(source)
    assert upload(sent, Confused()).chunks_sent == len(sent.ids)


class Lying(MemoryRemote):
    """Answers with what `answer` makes of it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def fetch(self, ids: Sequence[bytes]) -> bytes:
        if self._kind == "nothing":
            return b""
        if self._kind == "others":
            return encode_frame(pack_chunk(b"nobody asked for this"))
        body = super().fetch(ids)
        return body[:-1] if self._kind == "cut" else encode_frame(pack_chunk(b"other bytes", chunk=ids[0]))


@pytest.mark.parametrize(
    ("kind", "code"), [("nothing", "E1102"), ("others", "E1102"), ("cut", "E1101"), ("wrong", "E1101")]
)
def test_nothing_that_a_remote_sends_is_believed(source: Path, tmp_path: Path, kind: str, code: str) -> None:
    remote, sent = Lying(kind), packed(source)
    upload(sent, remote)
    with pytest.raises(HarchError) as refused:
        read_tree(sent.digest, remote)
    assert refused.value.code == code
    with pytest.raises(HarchError) as refused:
        download(sent.entries, tmp_path / "target", remote)
    assert refused.value.code == code
    assert not (tmp_path / "target" / "large").exists()


def test_chunks_that_a_remote_does_not_have_are_said(source: Path, tmp_path: Path) -> None:
    remote, sent = MemoryRemote(), packed(source)
    with pytest.raises(HarchError) as refused:
        read_tree(sent.digest, remote)
    assert refused.value.code == "E1102"
    upload(sent, remote)
    del remote.chunks[sent.ids[0]]
    with pytest.raises(HarchError) as refused:
        download(sent.entries, tmp_path / "target", remote)
    assert refused.value.code == "E1102"


def test_a_large_list_of_files_is_read_whole() -> None:
    listed = [TreeEntry(f"{number:05}", EntryKind.FOLDER, 0o755) for number in range(20_000)]
    tree, remote = build_tree(listed), MemoryRemote(chunks_per_answer=2)
    remote.chunks |= tree.chunks
    root, entries = read_tree(tree.digest, remote)
    assert len(root.manifest) > 2
    assert entries == listed


# Threads


def test_each_item_is_done_once_by_as_many_threads_as_are_allowed() -> None:
    barrier, done = threading.Barrier(3, timeout=10), []

    def act(item: int) -> None:
        if item < 3:
            barrier.wait()  # all three are under way at the same time, or this fails
        done.append((item, threading.get_ident()))

    for_each(iter(range(50)), act, threads=3)
    assert sorted(item for item, _ in done) == list(range(50))
    assert threading.get_ident() in {thread for _, thread in done}
    assert len({thread for _, thread in done}) == 3


def test_the_first_failure_ends_it_and_is_raised_after_all_are_done() -> None:
    begun, failed = threading.Event(), threading.Event()
    done = []

    def act(item: int) -> None:
        if item == 0:
            begun.wait(10)
            failed.set()
            raise ValueError("item 0")
        begun.set()
        failed.wait(10)
        done.append(item)

    with pytest.raises(ValueError, match="item 0"):
        for_each(iter(range(300_000)), act, threads=2)
    assert 1 <= len(done) < 299_999


def test_an_interrupt_waits_for_what_other_threads_are_doing_and_is_raised() -> None:
    main, both, interrupted = threading.main_thread(), threading.Barrier(2, timeout=10), threading.Event()
    done = []

    def interrupt(*_: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    def act(item: int) -> None:
        both.wait()
        if threading.current_thread() is not main:
            signal.pthread_kill(main.ident or 0, signal.SIGINT)
            assert interrupted.wait(10)
            done.append(item)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            for_each([1, 2], act, threads=2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(done) == 1


@pytest.mark.parametrize("threads", [1, 3])
def test_a_failure_of_what_makes_the_items_is_raised_too(threads: int) -> None:
    def items() -> object:
        yield 1
        raise KeyError("no more")

    with pytest.raises(KeyError):
        for_each(items(), lambda _: None, threads=threads)  # type: ignore[arg-type]


def test_an_end_of_iteration_inside_of_an_item_is_a_failure_and_no_end() -> None:
    with pytest.raises(StopIteration):
        for_each([1, 2], lambda _: next(iter(())), threads=1)
