"""A tree lives while somebody holds it, with every chunk that it needs, and no longer."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest

from harch.content.model import (
    ROOT_VERSION,
    ChunkRef,
    EntryKind,
    TreeEntry,
    TreeRoot,
    encode_manifest,
    encode_root,
)
from harch.content.store import ContentStore
from harch.content.store import trees as trees_module
from harch.testing.clock import SimClock
from unit.content_store.content_samples import SampleTree, flip, frames_of, names_of, opened, packs_in, refused

NOISE = os.urandom(5000)
TREE = SampleTree({"a/train.py": b"print('hello')\n", "b.bin": NOISE, "empty": b""})


def absent(store: ContentStore, tree: SampleTree) -> list[bytes]:
    return store.missing("acme", tree.ids)


def test_a_tree_can_be_read_once_all_of_its_manifest_is_there(store: ContentStore) -> None:
    store.put("acme", TREE.frames)
    found = store.tree("acme", TREE.digest)
    assert [entry.path for entry in found.entries] == ["a/train.py", "b.bin", "empty"]
    assert found.root.size_bytes == len(NOISE) + 15
    assert found.root_bytes == TREE.root.size
    assert {chunk.id for chunk in found.chunks()} == set(TREE.ids) == store.ids_of("acme", TREE.digest)
    assert store.tree("acme", TREE.digest) is found, "answered from memory"
    assert store.ids_of("acme", TREE.digest) is store.ids_of("acme", TREE.digest)


def test_chunks_outside_of_a_tree_are_told_whether_somebody_holds_it_or_not(store: ContentStore) -> None:
    other = SampleTree({"c": b"something else"})
    store.put("acme", TREE.frames + other.frames)
    strangers = {other.root.id, bytes(32)}
    asked = [*TREE.ids, *strangers]
    assert store.outside("acme", TREE.digest, asked) == strangers
    store.hold("acme", TREE.digest, "data:1")
    store._trees.ids_of = None  # type: ignore[method-assign, assignment]
    assert store.outside("acme", TREE.digest, asked) == strangers
    assert store.outside("acme", TREE.digest, []) == set()


def test_nobody_learns_by_asking_for_a_tree_of_another_tenant(store: ContentStore) -> None:
    store.put("acme", TREE.frames)
    store.hold("acme", TREE.digest, "data:1")
    with refused("E1102"):
        store.outside("other", TREE.digest, TREE.ids)


@pytest.mark.parametrize("digest", ["", "xyz", "0" * 63, "A" * 64])
def test_what_is_no_digest_is_no_tree(store: ContentStore, digest: str) -> None:
    with refused("E1105"):
        store.tree("acme", digest)
    with refused("E1105"):
        store.hold("acme", digest, "data:1")


def test_a_tree_that_is_not_here_is_told_apart_from_one_that_is_none(store: ContentStore) -> None:
    with refused("E1102"):
        store.tree("acme", TREE.digest)
    store.put("acme", frames_of(b"no tree"))
    with refused("E1105"):
        store.tree("acme", names_of(b"no tree")[0].hex())


@pytest.mark.parametrize("kept", ["nothing", "root", "root and manifest", "all but one"])
def test_a_hold_tells_which_chunks_are_missing_until_all_are_there(store: ContentStore, kept: str) -> None:
    frames = {frame.id: frame for frame in TREE.frames}
    first = {
        "nothing": [],
        "root": [TREE.root.id],
        "root and manifest": [name for name in TREE.ids if name not in TREE.file_ids],
        "all but one": [name for name in TREE.ids if name != TREE.file_ids[2]],
    }[kept]
    store.put("acme", [frames[name] for name in first])
    for _ in range({"nothing": 3, "root": 2, "root and manifest": 1, "all but one": 1}[kept]):
        with refused("E1104") as incomplete:
            store.hold("acme", TREE.digest, "data:1")
        missing = incomplete.value.meta["missing"]
        assert isinstance(missing, list)
        assert missing
        store.put("acme", [frames[bytes.fromhex(name)] for name in missing])
    store.hold("acme", TREE.digest, "data:1")
    assert store.held("acme", "data:1") == TREE.digest


def test_an_error_names_at_most_a_thousand_chunks(store: ContentStore) -> None:
    tree = SampleTree({"many": os.urandom(12_000)}, piece_bytes=10)
    store.put("acme", [frame for frame in tree.frames if frame.id not in tree.file_ids])
    with refused("E1104") as incomplete:
        store.hold("acme", tree.digest, "data:1")
    assert len(incomplete.value.meta["missing"]) == 1000  # type: ignore[arg-type]
    assert "1200 chunks" in incomplete.value.message


def test_a_held_tree_outlives_collections_and_a_released_one_does_not(store: ContentStore, folder: Path) -> None:
    store.put("acme", TREE.frames)
    store.hold("acme", TREE.digest, "data:1")
    store.hold("acme", TREE.digest, "work:w")
    assert store.ids_of("acme", TREE.digest) == set(TREE.ids)
    store.release("acme", "data:1")
    assert store.collect(grace_s=0).chunks == 0
    assert absent(store, TREE) == []
    store.release("acme", "work:w")
    store.release("acme", "work:w")
    store.release("nobody", "work:w")
    assert store.collect(grace_s=0).chunks == len(TREE.ids)
    assert absent(store, TREE) == TREE.ids
    assert packs_in(folder) == []
    with refused("E1102"):
        store.tree("acme", TREE.digest)
    with refused("E1102"):
        store.ids_of("acme", TREE.digest)


def test_a_chunk_stays_as_long_as_one_of_its_trees(store: ContentStore) -> None:
    other = SampleTree({"b.bin": NOISE, "c": b"something else"})
    for tree, holder in ((TREE, "data:1"), (other, "data:2")):
        store.put("acme", tree.frames)
        store.hold("acme", tree.digest, holder)
    store.release("acme", "data:1")
    store.collect(grace_s=0)
    assert absent(store, other) == []
    assert set(absent(store, TREE)) == set(TREE.ids) - set(other.ids)
    assert store.check().damaged == []


def test_a_holder_holds_one_tree_and_giving_it_another_releases_the_first(store: ContentStore) -> None:
    other = SampleTree({"c": b"something else"})
    store.put("acme", TREE.frames + other.frames)
    store.hold("acme", TREE.digest, "data:1")
    store.hold("acme", other.digest, "data:1")
    assert store.held("acme", "data:1") == other.digest
    store.collect(grace_s=0)
    assert absent(store, TREE) == TREE.ids
    store.hold("acme", other.digest, "data:1")
    store.collect(grace_s=0)
    assert absent(store, other) == []


def test_a_hold_ends_at_its_time_unless_it_was_prolonged(store: ContentStore, clock: SimClock) -> None:
    other = SampleTree({"c": b"something else"})
    store.put("acme", TREE.frames + other.frames)
    for tree, holder in ((TREE, "snapshot:1"), (other, "snapshot:2")):
        store.hold("acme", tree.digest, holder, until=clock.now() + timedelta(seconds=60))
    clock.jump(59)
    store.hold("acme", other.digest, "snapshot:2", until=clock.now() + timedelta(seconds=60))
    clock.jump(2)
    store.collect(grace_s=0)
    assert absent(store, TREE) == TREE.ids
    assert [(hold.holder, hold.until) for hold in store.holders()] == [
        ("snapshot:2", clock.now() + timedelta(seconds=58))
    ]


def test_holds_survive_a_restart(folder: Path) -> None:
    store = opened(folder)
    store.put("acme", TREE.frames)
    store.hold("acme", TREE.digest, "data:1")
    store.close()
    again = opened(folder)
    assert [tuple(hold) for hold in again.holders()] == [("acme", "data:1", TREE.digest, None)]
    assert again.held("acme", "data:2") is None
    assert again.held("nobody", "data:1") is None
    again.collect(grace_s=0)
    assert absent(again, TREE) == []
    again.close()


@pytest.mark.parametrize("holder", ["", "x" * 300])
def test_a_holder_has_a_name_of_reasonable_length(store: ContentStore, holder: str) -> None:
    store.put("acme", TREE.frames)
    with refused("E0201"):
        store.hold("acme", TREE.digest, holder)


def test_trees_that_lie_about_sizes_are_refused(store: ContentStore) -> None:
    """Downloads, quotas and progress count on them."""
    for lie in (SampleTree({"a": NOISE}, chunk_lie=1), SampleTree({"a": NOISE}, root_lie=1)):
        store.put("acme", lie.frames)
        with refused("E1105"):
            store.hold("acme", lie.digest, "data:1")
    assert store.holders() == []
    assert store.collect(grace_s=0).chunks


def test_a_second_mention_of_a_chunk_cannot_lie_either(store: ContentStore) -> None:
    (name,) = names_of(NOISE)
    entries = [
        TreeEntry("a", EntryKind.FILE, chunks=(ChunkRef(name, 5000),)),
        TreeEntry("b", EntryKind.FILE, chunks=(ChunkRef(name, 4000),)),
    ]
    manifest = encode_manifest(entries)
    root = encode_root(TreeRoot(ROOT_VERSION, 9000, 2, (ChunkRef(names_of(manifest)[0], len(manifest)),)))
    store.put("acme", frames_of(NOISE, manifest, root))
    with refused("E1105"):
        store.hold("acme", names_of(root)[0].hex(), "data:1")


def test_a_manifest_of_another_size_than_its_root_says_is_refused(store: ContentStore) -> None:
    manifest = encode_manifest([])
    root = encode_root(TreeRoot(ROOT_VERSION, 0, 0, (ChunkRef(names_of(manifest)[0], len(manifest) + 1),)))
    store.put("acme", frames_of(manifest, root))
    with refused("E1105"):
        store.tree("acme", names_of(root)[0].hex())


def test_a_tree_with_a_damaged_chunk_is_incomplete_until_somebody_sends_it_again(
    store: ContentStore, folder: Path
) -> None:
    store.put("acme", TREE.frames)
    store.hold("acme", TREE.digest, "data:1")
    (pack,) = packs_in(folder)
    flip(pack, 200)
    (damaged,) = store.check().damaged
    with refused("E1104") as incomplete:
        store.hold("acme", TREE.digest, "data:2")
    assert incomplete.value.meta["missing"] == [damaged]
    assert store.missing("acme", TREE.ids) == [bytes.fromhex(damaged)]
    store.put("acme", [frame for frame in TREE.frames if frame.id.hex() == damaged])
    store.hold("acme", TREE.digest, "data:2")
    store.collect(grace_s=0)
    assert store.check().damaged == []
    assert len(store.read("acme", TREE.ids)) == len(TREE.ids)


def test_a_tree_whose_manifest_is_damaged_can_still_be_released(folder: Path) -> None:
    store = opened(folder)
    store.put("acme", TREE.frames)
    store.hold("acme", TREE.digest, "data:1")
    store.close()
    (pack,) = packs_in(folder)
    pack.write_bytes(bytes(pack.stat().st_size))
    again = opened(folder)
    with refused("E1101"):
        again.tree("acme", TREE.digest)
    with refused("E1104"):
        again.hold("acme", TREE.digest, "data:2")
    again.release("acme", "data:1")
    assert again.collect(grace_s=0).chunks == len(TREE.ids)
    assert packs_in(folder) == []
    again.close()


def test_memory_for_trees_has_a_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees_module, "TREE_CACHE_ENTRIES", 12)
    store = opened(folder)
    trees = [SampleTree({"a": b"%d" % number, "b": b"x"}) for number in range(6)]
    for tree in trees:
        store.put("acme", tree.frames)
    found = [store.tree("acme", tree.digest) for tree in trees]
    assert store.tree("acme", trees[-1].digest) is found[-1]
    assert store.tree("acme", trees[0].digest) is not found[0]
    large = SampleTree({str(number): b"x" for number in range(20)})
    store.put("acme", large.frames)
    assert store.tree("acme", large.digest) is not store.tree("acme", large.digest)
    assert store.tree("acme", trees[0].digest).digest == trees[0].digest
    store.close()
