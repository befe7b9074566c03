"""What a disk does to a store is never silent: it is put right, or told, and healed when the bytes are sent again."""

from __future__ import annotations

import logging
import os
import random
import shutil
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.base.seal import LINE
from harch.content.frames import unpack_chunk
from harch.content.store import ContentStore
from harch.content.store.checking import _recount_tree
from harch.content.store.recovery import set_index_aside
from harch.testing.clock import SimClock
from unit.content_store.content_samples import (
    MASTER_KEY,
    SampleTree,
    flip,
    frames_of,
    names_of,
    opened,
    packs_in,
    refused,
)

NOISE = random.Random(5).randbytes(700)
TREE = SampleTree({"a": b"text " * 60, "b": NOISE, "c": b"x"}, piece_bytes=300)
SECOND = SampleTree({"b": NOISE, "d": b"of the second pack"}, piece_bytes=300)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A store that was closed: two packs, of which the second has what the first lacks."""
    folder = tmp_path / "made"
    store = opened(folder)
    for tree, holder in ((TREE, "data:1"), (SECOND, "data:2")):
        store.put("acme", tree.frames)
        store.hold("acme", tree.digest, holder)
    store.close()
    return folder


def first_pack(folder: Path) -> Path:
    return max(packs_in(folder), key=lambda path: path.stat().st_size)


def readable(store: ContentStore, tree: SampleTree) -> int:
    """How many chunks can be read; the others say that they cannot. None may be wrong."""
    count = 0
    for name in tree.ids:
        try:
            (frame,) = store.read("acme", [name])
        except HarchError as error:
            if error.code not in ("E1101", "E1102"):
                raise
        else:
            assert unpack_chunk(frame) == tree.raw[name]
            count += 1
    return count


def lose_index(folder: Path) -> None:
    for path in folder.glob("index.db*"):
        path.unlink()


@pytest.mark.parametrize("part", range(4))
def test_a_flipped_bit_anywhere_in_a_pack_is_noticed(
    made: Path, tmp_path: Path, part: int, caplog: pytest.LogCaptureFixture
) -> None:
    size = first_pack(made).stat().st_size
    rng = random.Random(part)
    for number in range(15):
        copy = tmp_path / f"{part}-{number}"
        shutil.copytree(made, copy)
        place = rng.randrange(size * part // 4, size * (part + 1) // 4)
        flip(first_pack(copy), place, rng.randrange(8))
        caplog.clear()
        store = opened(copy)
        left = readable(store, TREE)
        assert left >= len(TREE.ids) - 1
        checked = store.check()
        assert len(checked.damaged) == len(TREE.ids) - left
        assert checked.chunks == len(set(TREE.ids) | set(SECOND.ids))
        whole = sum(len(raw) for name, raw in (TREE.raw | SECOND.raw).items() if name.hex() not in checked.damaged)
        assert checked.bytes == whole
        assert "E1101" in caplog.text, f"nobody noticed byte {place}"
        store.put("acme", TREE.frames)
        store.collect(grace_s=0)
        caplog.clear()
        assert store.check().damaged == []
        assert readable(store, TREE) == len(TREE.ids)
        assert readable(store, SECOND) == len(SECOND.ids)
        assert caplog.text == "", "healed, and written anew where only its frame was hit"
        store.close()


@pytest.mark.parametrize("seed", range(8))
def test_a_pack_that_is_cut_anywhere_is_noticed_and_healed(made: Path, seed: int) -> None:
    pack = first_pack(made)
    os.truncate(pack, random.Random(seed).randrange(pack.stat().st_size))
    store = opened(made)
    left = readable(store, TREE)
    damaged = store.check().damaged
    assert len(damaged) == len(TREE.ids) - left
    assert sorted(name.hex() for name in store.missing("acme", TREE.ids)) == damaged
    store.put("acme", TREE.frames)
    assert readable(store, TREE) == len(TREE.ids)
    store.close()


def test_a_pack_that_is_gone_is_said_at_the_start_and_healed(made: Path, caplog: pytest.LogCaptureFixture) -> None:
    pack = first_pack(made)
    pack.unlink()
    store = opened(made)
    assert f"pack {pack.name} of the content store is gone, with {len(TREE.ids)} chunks" in caplog.text
    assert store.missing("acme", TREE.ids) == TREE.ids
    with refused("E1101"):
        store.read("acme", TREE.ids[:1])
    with refused("E1104"):
        store.hold("acme", TREE.digest, "data:3")
    store.put("acme", TREE.frames)
    store.collect(grace_s=0)
    assert readable(store, TREE) == len(TREE.ids)
    store.close()
    caplog.clear()
    opened(made).close()
    assert caplog.text == ""


def test_a_pack_that_vanishes_while_the_store_is_open_is_told_to_its_readers(made: Path) -> None:
    store = opened(made)
    first_pack(made).unlink()
    with refused("E1101") as damaged:
        store.read("acme", TREE.ids)
    assert set(damaged.value.meta["damaged"]) >= {TREE.ids[0].hex()}  # type: ignore[call-overload]
    assert len(store.check().damaged) == len(TREE.ids)
    store.close()


def test_a_chunk_of_one_tenant_cannot_be_passed_off_as_one_of_another(made: Path) -> None:
    """Somebody who can write to the disk copies a pack over that of another tenant."""
    store = opened(made)
    store.put("other", TREE.frames)
    store.close()
    packs = sorted(packs_in(made), key=lambda path: path.stat().st_mtime_ns)
    packs[-1].write_bytes(packs[0].read_bytes())
    again = opened(made)
    with refused("E1101"):
        again.read("other", TREE.ids[:1])
    again.close()


# The index


def damaged(folder: Path) -> None:
    index = folder / "index.db"
    data = bytearray(index.read_bytes())
    before = index.stat()
    data[5 * 4096 : 9 * 4096] = os.urandom(4 * 4096)
    index.write_bytes(data)
    os.utime(index, ns=(before.st_atime_ns, before.st_mtime_ns))


def overwritten(folder: Path) -> None:
    lose_index(folder)
    (folder / "index.db").write_bytes(b"this was a database " * 500)


@pytest.mark.parametrize("what", [lose_index, damaged, overwritten])
def test_an_index_that_is_gone_or_damaged_is_made_anew_from_the_packs(
    made: Path, what: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    what(made)
    store = opened(made)
    assert "E1030" in caplog.text
    assert "is made anew" in caplog.text
    assert readable(store, TREE) == len(TREE.ids)
    assert readable(store, SECOND) == len(SECOND.ids)
    assert store.holders() == []
    assert store.has_lost_holders
    assert store.collect(grace_s=0).chunks == 0
    checked = store.check()
    assert (checked.damaged, checked.missing) == ([], [])
    for tree, holder in ((TREE, "data:1"), (SECOND, "data:2")):
        store.hold("acme", tree.digest, holder)
    store.confirm_holders()
    assert store.collect(grace_s=0).chunks == 0
    store.close()
    again = opened(made)
    assert not again.has_lost_holders
    assert len(again.holders()) == 2
    again.close()


def test_an_operator_can_have_the_index_made_anew(made: Path) -> None:
    set_index_aside(made, "an operator wants it")
    store = opened(made)
    assert readable(store, TREE) == len(TREE.ids)
    assert store.has_lost_holders
    store.close()
    assert list(made.glob("index.db*.damaged"))
    assert not (made / "index.rebuild").exists()


@pytest.mark.parametrize(
    "error", [HarchError("E1002", "full"), sqlite3.OperationalError("unable to open database file")]
)
def test_an_index_that_cannot_be_opened_now_is_not_taken_for_damaged(
    made: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("harch.content.store.recovery.Index", fails)
    with refused("E1002" if isinstance(error, HarchError) else "E1110"):
        opened(made)
    assert list(made.glob("*.damaged")) == []
    monkeypatch.undo()
    store = opened(made)
    assert len(store.holders()) == 2
    store.close()


def test_a_kill_while_an_index_is_set_aside_changes_nothing(made: Path) -> None:
    """Without its log a database is older than it was; so it does not count as long as it has not gone as a whole."""
    store = opened(made)
    extra = frames_of(b"only in the log")
    store.put("acme", extra)
    shutil.copytree(made, made.parent / "killed")
    store.close()
    killed = made.parent / "killed"
    set_index_aside(killed, "it is damaged")
    (killed / "index.db.damaged").rename(killed / "index.db")  # as far as it had come, in another order
    again = opened(killed)
    assert again.has_lost_holders
    assert again.missing("acme", names_of(b"only in the log")) == []
    again.close()


def test_packs_that_an_older_index_does_not_know_are_taken_in(made: Path, caplog: pytest.LogCaptureFixture) -> None:
    backup = made.parent / "backup"
    backup.mkdir()
    for path in made.glob("index.db*"):
        shutil.copy2(path, backup)
    store = opened(made)
    store.put("acme", frames_of(b"newer"))
    store.put("other", frames_of(b"of a tenant that the backup does not know"))
    store.close()
    lose_index(made)
    for path in backup.iterdir():
        shutil.copy2(path, made)
    clock = SimClock()
    again = opened(made, clock=clock)
    assert again.missing("acme", names_of(b"newer")) == []
    assert unpack_chunk(again.read("other", names_of(b"of a tenant that the backup does not know"))[0])
    assert len(again.holders()) == 2
    clock.jump(5000)
    assert again.collect().chunks == 2, "nobody needs them"
    again.close()


def test_a_log_without_its_end_stops_collections(made: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = opened(made)
    third = SampleTree({"e": b"of the third pack"})
    store.put("acme", third.frames)
    store.hold("acme", third.digest, "data:3")
    killed = made.parent / "killed"
    shutil.copytree(made, killed)
    store.close()
    log = killed / "index.db-wal"
    (killed / "index.db-shm").unlink()
    os.truncate(log, log.stat().st_size // 2)
    again = opened(killed)
    assert "lacks" in caplog.text
    assert again.has_lost_holders
    assert readable(again, third) == len(third.ids)
    assert again.collect(grace_s=0).chunks == 0
    again.close()
    once_more = opened(killed)
    assert once_more.has_lost_holders, "until somebody has said who holds what"
    once_more.close()


def test_an_index_of_a_newer_release_is_refused_and_left_alone(made: Path) -> None:
    connection = sqlite3.connect(made / "index.db")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    (made / "index.db-sums").unlink()
    before = (made / "index.db").read_bytes()
    with refused("E1110") as unknown:
        opened(made)
    assert "version 99" in unknown.value.message
    assert (made / "index.db").read_bytes() == before


@pytest.mark.parametrize("seed", range(12))
def test_an_index_can_be_made_from_packs_that_are_damaged(
    made: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    lose_index(made)
    pack = first_pack(made)
    rng = random.Random(seed)
    flip(pack, rng.randrange(pack.stat().st_size) if seed > 3 else rng.randrange(40), rng.randrange(8))
    store = opened(made)
    left = readable(store, TREE)
    assert left >= len(TREE.ids) - 1
    damaged_now = store.check().damaged
    missing = store.missing("acme", TREE.ids)
    assert len(missing) == len(TREE.ids) - left
    assert set(damaged_now) <= {name.hex() for name in missing}
    store.put("acme", TREE.frames)
    assert readable(store, TREE) == len(TREE.ids)
    store.confirm_holders()
    store.collect(grace_s=0)
    assert packs_in(made) == []
    store.close()


def test_a_pack_whose_end_is_damaged_is_written_anew_after_its_index_was_made_from_it(
    made: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lose_index(made)
    pack = first_pack(made)
    flip(pack, pack.stat().st_size - 20)
    store = opened(made)
    store.hold("acme", TREE.digest, "data:1")
    store.confirm_holders()
    store.collect(grace_s=0)
    assert pack not in packs_in(made)
    caplog.clear()
    assert store.check().damaged == []
    assert caplog.text == ""
    assert readable(store, TREE) == len(TREE.ids)
    store.close()


def test_packs_of_which_nobody_has_the_key_are_set_aside_and_said(made: Path, caplog: pytest.LogCaptureFixture) -> None:
    lose_index(made)
    for key in (made / "keys").iterdir():
        key.unlink()
    store = opened(made)
    assert "nobody has the key" in caplog.text
    assert packs_in(made) == []
    assert len(list((made / "quarantine").iterdir())) == 2
    assert store.usage() == []
    store.close()


def test_files_that_are_no_packs_are_set_aside(made: Path, caplog: pytest.LogCaptureFixture) -> None:
    (made / "packs" / "stranger").write_bytes(b"hello")
    (made / "packs" / ".draft").write_bytes(b"what a kill left")
    store = opened(made)
    assert len(packs_in(made)) == 2
    assert "cannot be read" in caplog.text
    store.close()


# Keys and the marker


def test_a_flipped_bit_in_a_key_is_put_right_when_it_is_needed(made: Path) -> None:
    lose_index(made)
    (key,) = (made / "keys").iterdir()
    before = key.read_bytes()
    flip(key, 60, 2)
    store = opened(made)
    assert readable(store, TREE) == len(TREE.ids)
    assert key.read_bytes() == before
    store.close()


@pytest.mark.parametrize("name", ["keys", "store"])
def test_a_key_that_is_damaged_beyond_repair_stops_the_start(made: Path, name: str) -> None:
    path = made / name if name == "store" else next((made / name).iterdir())
    content = path.read_bytes()
    path.write_bytes(content[:40] + b"?" * 20 + content[60:])
    with refused("E1110"):
        opened(made)
    path.write_bytes(content)
    opened(made).close()


def test_a_flipped_bit_in_the_marker_is_put_right(made: Path) -> None:
    before = (made / "store").read_bytes()
    flip(made / "store", 50)
    opened(made).close()
    assert (made / "store").read_bytes() == before


def test_an_index_without_its_packs_is_refused(made: Path) -> None:
    (made / "store").unlink()
    with refused("E1110"):
        opened(made)


def test_packs_of_another_store_are_refused(made: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    opened(other).close()
    shutil.copy(other / "store", made / "store")
    with refused("E1110"):
        opened(made)


def test_two_keys_of_one_tenant_are_refused(made: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    store = opened(other)
    store.put("acme", TREE.frames)
    store.close()
    (key,) = (other / "keys").iterdir()
    shutil.copy(key, made / "keys" / key.name)
    with refused("E1110"):
        opened(made)


def test_the_key_of_one_tenant_cannot_be_given_to_another(made: Path) -> None:
    """Somebody who can write to the disk renames a tenant in the note, to read as another."""
    lose_index(made)
    (key,) = (made / "keys").iterdir()
    key.write_bytes(LINE.seal(LINE.unseal(key.read_bytes()).replace(b"acme", b"evil")))
    with refused("E1110"):
        opened(made)


# Counts


def test_counts_that_are_wrong_are_said_and_put_right(made: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = opened(made)
    before = store.usage(), store.totals()

    def spoil(connection: object) -> None:
        execute = connection.execute  # type: ignore[attr-defined]
        execute("UPDATE packs SET chunks_live = chunks_live + 1")
        execute("UPDATE tenants SET bytes_stored = 1")
        execute("DELETE FROM tree_chunks WHERE chunk IN (SELECT MAX(chunk) FROM tree_chunks)")
        execute("INSERT INTO unreferenced SELECT MIN(chunk), 5, 0 FROM tree_chunks")
        execute("INSERT INTO unreferenced VALUES (999999, 5, 0)")

    store._index.write(spoil)
    with caplog.at_level(logging.ERROR):
        checked = store.check()
    assert (checked.damaged, checked.missing) == ([], [])
    assert caplog.text.count("put right") == 4
    assert (store.usage(), store.totals()) == before
    caplog.clear()
    assert store.check() == checked
    assert caplog.text == ""
    store.collect(grace_s=0)
    assert readable(store, TREE) == len(TREE.ids)
    assert readable(store, SECOND) == len(SECOND.ids)
    store.close()


def test_a_check_tells_of_chunks_that_a_tree_needs_and_nobody_has(made: Path) -> None:
    store = opened(made)
    gone = TREE.file_ids[0]
    store._index.write(lambda connection: connection.execute("DELETE FROM chunks WHERE id = ?", (gone,)))
    assert store.check().missing == [gone.hex()]
    store.close()


def test_a_tree_that_is_released_during_a_check_is_not_counted_again(made: Path) -> None:
    store = opened(made)
    before = store._index.query("SELECT * FROM tree_chunks")
    assert store._index.write(lambda connection: _recount_tree(connection, tree=999, needed={1, 2})) == 0
    assert store._index.query("SELECT * FROM tree_chunks") == before
    store.close()


def test_a_check_stops_when_it_is_told_to(made: Path) -> None:
    store = opened(made)
    stop = threading.Event()
    stop.set()
    assert store.check(stop=stop).chunks == 0
    store.close()


def test_the_master_key_is_nowhere_on_the_disk(made: Path) -> None:
    everything = b"".join(path.read_bytes() for path in made.rglob("*") if path.is_file())
    assert MASTER_KEY not in everything
    assert MASTER_KEY.hex().encode() not in everything
