"""What nobody needs goes after a while, and never what somebody relies on in that moment."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from harch.content.frames import unpack_chunk
from harch.content.store import ContentStore, StoreSettings, collection
from harch.content.store.rows import delete_chunks
from harch.content.store.settings import MERGED_PACKS_MIN
from harch.testing.clock import SimClock
from harch.wire.content import ChunksStored
from unit.content_store.content_samples import (
    SampleTree,
    flip,
    frames_of,
    names_of,
    opened,
    packs_in,
    refused,
    rows_in,
    steps_of,
)

HOUR = 3600.0
KEPT = 1.25 * HOUR  # at most


def noise(count: int = 1, size: int = 3000) -> list[bytes]:
    return [os.urandom(size) for _ in range(count)]


def size_of(folder: Path) -> int:
    return sum(pack.stat().st_size for pack in packs_in(folder))


def test_what_was_sent_stays_for_an_hour_and_then_goes(store: ContentStore, clock: SimClock, folder: Path) -> None:
    (raw,) = noise()
    store.put("acme", frames_of(raw))
    clock.jump(HOUR - 1)
    assert store.collect().chunks == 0
    clock.jump(KEPT - HOUR + 1)
    collected = store.collect()
    assert collected.chunks == 1
    assert collected.bytes > 3000
    assert store.missing("acme", names_of(raw)) == names_of(raw)
    assert packs_in(folder) == []


@pytest.mark.parametrize("how", ["missing", "put"])
def test_whoever_asks_for_a_chunk_or_sends_it_again_keeps_it_for_another_hour(
    store: ContentStore, clock: SimClock, how: str
) -> None:
    raws = noise(2)
    store.put("acme", frames_of(*raws))
    clock.jump(HOUR - 1)
    if how == "missing":
        assert store.missing("acme", names_of(raws[0])) == []
    else:
        store.put("acme", frames_of(raws[0]))
    clock.jump(KEPT - HOUR + 2)
    assert store.collect().chunks == 1
    assert store.missing("acme", names_of(*raws)) == names_of(raws[1])


@pytest.mark.parametrize("after_s", [1.0, 600.0, 899.0, 901.0])
def test_the_hour_counts_from_the_last_question(store: ContentStore, clock: SimClock, after_s: float) -> None:
    """Not each one is written down."""
    (raw,) = noise()
    store.put("acme", frames_of(raw))
    clock.jump(after_s)
    store.missing("acme", names_of(raw))
    clock.jump(HOUR - 1)
    store.collect()
    assert store.missing("acme", names_of(raw)) == []


def test_what_is_released_stays_for_an_hour_too(store: ContentStore, clock: SimClock) -> None:
    tree = SampleTree({"a": noise()[0]})
    store.put("acme", tree.frames)
    store.hold("acme", tree.digest, "data:1")
    clock.jump(5 * HOUR)
    store.release("acme", "data:1")
    assert store.collect().chunks == 0
    clock.jump(KEPT + 1)
    assert store.collect().chunks == len(tree.ids)


def test_a_clock_that_was_ahead_keeps_nothing_longer(store: ContentStore, clock: SimClock) -> None:
    clock.set_wall(10 * 24 * HOUR)
    store.put("acme", frames_of(*noise()))
    clock.set_wall(-10 * 24 * HOUR)
    store.collect()
    clock.jump(KEPT + 1)
    assert store.collect().chunks == 1


def test_a_pack_that_is_mostly_garbage_is_written_anew(store: ContentStore, folder: Path) -> None:
    keep, *others = noise(20)
    tree = SampleTree({"keep": keep})
    store.put("acme", [*tree.frames, *frames_of(*others)])
    before = size_of(folder)
    store.hold("acme", tree.digest, "data:1")
    assert store.totals().bytes_garbage > 19 * 3000
    store.collect(grace_s=0)
    assert size_of(folder) < before / 4
    assert store.totals().bytes_garbage == 0
    assert [unpack_chunk(frame) for frame in store.read("acme", tree.ids)] == list(tree.raw.values())
    written = packs_in(folder)
    store.collect(grace_s=0)
    assert packs_in(folder) == written, "and not again and again"


def test_an_old_pack_goes_when_the_new_one_is_on_the_disk_and_in_the_index(
    store: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep, *others = noise(20)
    tree = SampleTree({"keep": keep})
    store.put("acme", [*tree.frames, *frames_of(*others)])
    store.hold("acme", tree.digest, "data:1")
    steps = steps_of(store, monkeypatch)
    store.collect(grace_s=0)
    removed, *rewritten = steps
    assert removed == "commit"
    assert rewritten == ["write", "sync", "commit", "delete", "commit"]


def test_a_collection_leaves_no_rows_behind(
    store: ContentStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection, "_ROWS_PER_CHANGE", 3)
    tree = SampleTree({"a": b"".join(noise(8))})
    store.put("acme", [*tree.frames, *frames_of(*noise(7))])
    store.hold("acme", tree.digest, "data:1")
    assert store.collect(grace_s=0).chunks == 7
    assert store.check().damaged == []
    store.release("acme", "data:1")
    assert store.collect(grace_s=0).chunks == len(tree.ids)
    assert rows_in(store) == {"tenants": 1}
    assert store.usage()[0].bytes_stored == store.usage()[0].bytes_raw == 0
    assert caplog.text == ""


def test_a_pack_that_is_mostly_needed_is_left_alone(store: ContentStore, folder: Path) -> None:
    tree = SampleTree({"keep": b"".join(noise(20))})
    store.put("acme", [*tree.frames, *frames_of(*noise(2))])
    store.hold("acme", tree.digest, "data:1")
    before = packs_in(folder)
    store.collect(grace_s=0)
    assert packs_in(folder) == before
    assert store.totals().bytes_garbage > 6000


def test_small_packs_of_a_tenant_are_put_together(store: ContentStore, folder: Path) -> None:
    trees = [SampleTree({"a": raw}) for raw in noise(MERGED_PACKS_MIN)]
    for tree in trees[:-1]:
        store.put("acme", tree.frames)
        store.hold("acme", tree.digest, f"data:{tree.digest}")
    store.put("other", trees[-1].frames)
    store.hold("other", trees[-1].digest, "data:1")
    store.collect(grace_s=0)
    assert len(packs_in(folder)) == MERGED_PACKS_MIN, "too few of one tenant"
    store.put("acme", trees[-1].frames)
    store.hold("acme", trees[-1].digest, "data:1")
    store.collect(grace_s=0)
    assert len(packs_in(folder)) == 2
    for tree in trees:
        assert [unpack_chunk(frame) for frame in store.read("acme", tree.ids)] == list(tree.raw.values())
    assert store.check().damaged == []


def test_packs_are_put_together_up_to_their_size(folder: Path) -> None:
    store = opened(folder, settings=StoreSettings(pack_bytes=40_000))
    trees = [SampleTree({"a": raw}) for raw in noise(16, 5000)]
    for tree in trees:
        store.put("acme", tree.frames)
        store.hold("acme", tree.digest, f"data:{tree.digest}")
    store.collect(grace_s=0)
    assert 2 <= len(packs_in(folder)) <= 3
    assert all(len(store.read("acme", tree.ids)) == len(tree.ids) for tree in trees)
    store.close()


def test_packs_with_damaged_chunks_wait_until_these_are_healed(store: ContentStore, folder: Path) -> None:
    keep, *others = noise(20)
    tree = SampleTree({"keep": keep}, piece_bytes=10_000)
    store.put("acme", [*tree.frames, *frames_of(*others)])
    store.hold("acme", tree.digest, "data:1")
    (pack,) = packs_in(folder)
    flip(pack, 300)  # in the first record, which is found only when the pack is copied
    store.collect(grace_s=0)
    assert packs_in(folder) == [pack]
    assert store.missing("acme", tree.ids) == tree.ids[:1]
    store.put("acme", tree.frames[:1])
    store.collect(grace_s=0)
    assert pack not in packs_in(folder)
    assert [unpack_chunk(frame) for frame in store.read("acme", tree.ids)] == list(tree.raw.values())


# Beside others


def test_what_a_put_found_there_is_not_collected_before_it_commits(store: ContentStore) -> None:
    old, new = noise(2)
    store.put("acme", frames_of(old))

    write = store._index.write

    def late(change: Any) -> Any:
        store._index.write = write  # type: ignore[method-assign]
        assert store.collect(grace_s=0).chunks == 0
        return write(change)

    store._index.write = late  # type: ignore[method-assign]
    assert store.put("acme", frames_of(old, new)).known == 1
    assert store.missing("acme", names_of(old, new)) == []
    assert store.collect(grace_s=0).chunks == 2, "and may go afterwards"


def test_what_is_being_removed_counts_as_missing_for_a_put(
    store: ContentStore, clock: SimClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chunk is still in the index when somebody sends it, and is gone when that is committed."""
    (raw,) = noise()
    store.put("acme", frames_of(raw))
    answers: list[ChunksStored] = []
    sender = threading.Thread(target=lambda: answers.append(store.put("acme", frames_of(raw))))

    def late(*arguments: Any, **options: Any) -> None:
        clock.jump(1)  # else a collection without grace would take what has just been sent, too
        sender.start()
        while not store._index._waiting:  # it has looked, and waits for its commit
            threading.Event().wait(0.001)
        delete_chunks(*arguments, **options)

    monkeypatch.setattr(collection, "delete_chunks", late)
    assert store.collect(grace_s=0).chunks == 1
    sender.join(30)
    assert [(answer.stored, answer.known) for answer in answers] == [(1, 0)]
    assert unpack_chunk(store.read("acme", names_of(raw))[0]) == raw


def test_a_chunk_that_a_put_has_just_brought_back_survives_the_collection_that_chose_it(
    store: ContentStore, clock: SimClock
) -> None:
    (raw,) = noise()
    store.put("acme", frames_of(raw))
    clock.jump(2 * HOUR)
    write = store._index.write

    def late(change: Any) -> Any:
        store._index.write = write  # type: ignore[method-assign]
        store.put("acme", frames_of(raw))
        return write(change)

    store._index.write = late  # type: ignore[method-assign]
    store.collect()
    assert store.missing("acme", names_of(raw)) == []
    assert unpack_chunk(store.read("acme", names_of(raw))[0]) == raw


def test_a_tree_that_loses_a_chunk_while_it_is_taken_hold_of_is_incomplete(
    store: ContentStore, clock: SimClock
) -> None:
    tree = SampleTree({"a": noise()[0]})
    store.put("acme", tree.frames)
    clock.jump(2 * HOUR)
    store.tree("acme", tree.digest)
    keys_of = store._trees._keys_of

    def late(*arguments: Any) -> Any:
        keys = keys_of(*arguments)
        store._trees._keys_of = keys_of  # type: ignore[method-assign]
        assert store.collect().chunks == len(tree.ids)
        return keys

    store._trees._keys_of = late  # type: ignore[method-assign]
    with refused("E1104") as incomplete:
        store.hold("acme", tree.digest, "data:1")
    assert len(incomplete.value.meta["missing"]) == len(tree.ids)  # type: ignore[arg-type]
    assert store.holders() == []
    store.put("acme", tree.frames)
    store.hold("acme", tree.digest, "data:1")
    assert store.check().missing == []


def test_a_reader_follows_a_chunk_that_is_moved_under_it(store: ContentStore, folder: Path) -> None:
    keep, *others = noise(20)
    tree = SampleTree({"keep": keep})
    store.put("acme", [*tree.frames, *frames_of(*others)])
    store.hold("acme", tree.digest, "data:1")
    read = store._storage.read

    def late(name: str, ranges: Any) -> list[bytes]:
        store._storage.read = read  # type: ignore[method-assign]
        before = packs_in(folder)
        store.collect(grace_s=0)
        assert not set(before) & set(packs_in(folder))
        return read(name, ranges)

    store._storage.read = late  # type: ignore[method-assign]
    assert [unpack_chunk(frame) for frame in store.read("acme", tree.ids)] == list(tree.raw.values())
    assert store.check().damaged == []


def test_a_collection_stops_when_the_store_is_closed(store: ContentStore, folder: Path) -> None:
    keep, *others = noise(20)
    tree = SampleTree({"keep": keep})
    store.put("acme", [*tree.frames, *frames_of(*others)])
    store.hold("acme", tree.digest, "data:1")
    before = packs_in(folder)
    store._closing.set()
    store._collector.collect(0, store._closing)
    assert packs_in(folder) == before
    store._closing.clear()


def test_nothing_is_collected_while_nobody_knows_who_holds_what(
    folder: Path, clock: SimClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(folder, clock=clock)
    tree = SampleTree({"a": noise()[0]})
    store.put("acme", tree.frames)
    store.hold("acme", tree.digest, "data:1")
    store.close()
    for path in folder.glob("index.db*"):
        path.unlink()
    again = opened(folder, clock=clock)
    assert again.has_lost_holders
    clock.jump(100 * HOUR)
    with caplog.at_level(logging.ERROR):
        assert again.collect(grace_s=0).chunks == 0
    assert "the index was lost" in caplog.text
    again.set_quota("acme", 1)
    with refused("E1103"):
        again.put("acme", frames_of(*noise()))
    assert again.missing("acme", tree.ids) == []
    again.hold("acme", tree.digest, "data:1")
    again.confirm_holders()
    assert not again.has_lost_holders
    assert again.collect(grace_s=0).chunks == 0
    again.release("acme", "data:1")
    assert again.collect(grace_s=0).chunks == len(tree.ids)
    again.close()


def test_what_must_go_is_off_the_disk_at_once_and_what_shares_its_pack_stays(store: ContentStore, folder: Path) -> None:
    secret, shared, kept = noise(3)
    leaving, staying = SampleTree({"a": secret, "b": shared}), SampleTree({"b": shared, "c": kept})
    store.put("acme", [*leaving.frames, *staying.frames])
    uploading = noise()
    store.put("acme", frames_of(*uploading))
    store.hold("acme", leaving.digest, "data:leaving")
    store.hold("acme", staying.digest, "data:staying")
    before = size_of(folder)
    store.release("acme", "data:leaving")
    assert store.missing("acme", leaving.ids) == []  # whoever asks does not keep what must go
    collected = store.scrub("acme", leaving.ids)
    assert collected.chunks == len(set(leaving.ids) - set(staying.ids))
    assert size_of(folder) < before - 2500  # the pack that held both was written anew
    gone = [name for name in leaving.file_ids if name not in staying.ids]
    assert store.missing("acme", leaving.file_ids) == gone
    assert [unpack_chunk(frame) for frame in store.read("acme", staying.file_ids)] == [
        staying.raw[name] for name in staying.file_ids
    ]
    assert store.missing("acme", names_of(*uploading)) == []  # somebody is about to make a tree of it
    assert store.scrub("nobody", leaving.ids).chunks == 0
