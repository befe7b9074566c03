"""What is stored can be read, by its tenant, for as long as the quota allows; nobody else reads anything."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from harch.content.frames import Codec, decode_frames, encode_frame, pack_chunk, unpack_chunk
from harch.content.model import CHUNK_BYTES_MAX
from harch.content.store import ContentStore, StoreSettings
from harch.content.store import chunks as chunks_module
from harch.content.store.settings import IDS_MAX
from harch.testing.clock import SimClock
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

TEXT, NOISE = b"the same line again\n" * 500, os.urandom(30_000)


def test_what_was_put_is_read_in_the_order_asked_for_and_still_compressed(store: ContentStore) -> None:
    answer = store.put("acme", frames_of(TEXT, NOISE))
    assert (answer.stored, answer.known) == (2, 0)
    assert len(NOISE) < answer.bytes < len(NOISE) + 1000
    noise, text, again = store.read("acme", names_of(NOISE, TEXT, NOISE))
    assert [unpack_chunk(frame) for frame in (noise, text, again)] == [NOISE, TEXT, NOISE]
    assert (noise.codec, text.codec) == (Codec.RAW, Codec.ZSTD)


def test_only_what_is_not_there_is_missing_each_once_and_in_order(store: ContentStore) -> None:
    store.put("acme", frames_of(TEXT))
    one, text, two = names_of(b"one", TEXT, b"two")
    assert store.missing("acme", [two, text, one, two]) == [two, one]


def test_a_question_about_what_was_just_sent_writes_nothing(
    store: ContentStore, clock: SimClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients ask for thousands of chunks at a time."""
    store.put("acme", frames_of(TEXT))
    steps = steps_of(store, monkeypatch)
    clock.jump(600)
    store.missing("acme", names_of(TEXT, NOISE))
    assert steps == []
    clock.jump(600)
    store.missing("acme", names_of(TEXT, NOISE))
    assert steps == ["commit"]


def test_what_is_known_is_not_stored_again(store: ContentStore, folder: Path) -> None:
    store.put("acme", frames_of(TEXT))
    answer = store.put("acme", frames_of(TEXT, b"new", b"new"))
    assert (answer.stored, answer.known) == (1, 1)
    assert store.put("acme", frames_of(TEXT)).stored == 0
    assert len(packs_in(folder)) == 2
    assert store.usage()[0].chunks == 2


def test_tenants_share_nothing(store: ContentStore) -> None:
    store.put("acme", frames_of(TEXT))
    assert store.missing("other", names_of(TEXT)) == names_of(TEXT)
    with refused("E1102") as absent:
        store.read("other", names_of(TEXT))
    assert absent.value.meta["missing"] == [names_of(TEXT)[0].hex()]
    assert store.put("other", frames_of(TEXT)).stored == 1


def test_a_chunk_that_is_not_what_its_name_says_is_refused_with_all_that_came_with_it(
    store: ContentStore, folder: Path
) -> None:
    good, bad = frames_of(TEXT, NOISE)
    wrong_bytes = bad._replace(payload=b"x" + bad.payload[1:])
    wrong_size = bad._replace(size=bad.size - 1)
    for wrong in (wrong_bytes, wrong_size, bad._replace(payload=b""), bad._replace(size=0)):
        with refused("E1101"):
            store.put("acme", [good, wrong])
    too_large = pack_chunk(bytes(CHUNK_BYTES_MAX + 1))
    with refused("E1101"):
        store.put("acme", [too_large])
    assert store.missing("acme", names_of(TEXT)) == names_of(TEXT)
    assert packs_in(folder) == []


def test_what_fails_after_packs_were_written_leaves_none_behind(folder: Path) -> None:
    store = opened(folder, settings=StoreSettings(pack_bytes=20_000))
    *good, bad = frames_of(*(os.urandom(15_000) for _ in range(4)))
    with refused("E1101"):
        store.put("acme", [*good, bad._replace(size=3)])
    assert packs_in(folder) == []
    assert store.usage()[0].bytes_stored == 0
    store.close()


def test_a_put_is_committed_when_its_packs_and_their_names_are_on_the_disk(
    store: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = steps_of(store, monkeypatch)
    store.put("acme", frames_of(TEXT))
    assert steps == ["commit", "write", "sync", "commit"], "the first is the key of the tenant"
    steps.clear()
    store.put("acme", frames_of(TEXT))
    assert steps == ["commit"]


def test_the_names_of_packs_are_synced(store: ContentStore, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename is lost in a power cut until its folder is on the disk."""
    synced: list[Path] = []
    monkeypatch.setattr("harch.content.store.storage._sync_folder", synced.append)
    store.put("acme", frames_of(TEXT))
    assert synced == [folder / "keys", folder / "packs"]


def test_what_is_found_damaged_while_it_is_sent_is_not_acknowledged(store: ContentStore, folder: Path) -> None:
    store.put("acme", frames_of(TEXT))
    write = store._storage.write

    def meanwhile(name: str, pieces: list[bytes]) -> None:
        (pack,) = packs_in(folder)
        flip(pack, 150)
        assert len(store.check().damaged) == 1
        write(name, pieces)

    store._storage.write = meanwhile  # type: ignore[method-assign, assignment]
    with refused("E1110"):
        store.put("acme", frames_of(TEXT, NOISE))
    store._storage.write = write  # type: ignore[method-assign]
    assert store.put("acme", frames_of(TEXT, NOISE)).stored == 1
    assert len(store.read("acme", names_of(TEXT, NOISE))) == 2


@pytest.mark.parametrize(("number", "code"), [(errno.EIO, "E1101"), (errno.EACCES, "E1110")])
def test_what_the_disk_cannot_read_is_damaged_and_what_it_may_not_read_is_not(
    store: ContentStore, monkeypatch: pytest.MonkeyPatch, number: int, code: str
) -> None:
    store.put("acme", frames_of(TEXT))

    pread = os.pread

    def fails(file: int, *place: int) -> bytes:
        if "/packs/" in os.readlink(f"/proc/self/fd/{file}"):
            raise OSError(number, os.strerror(number))
        return pread(file, *place)

    with monkeypatch.context() as patch:
        patch.setattr("harch.content.store.storage.os.pread", fails)
        with refused(code):
            store.read("acme", names_of(TEXT))
    assert bool(store.missing("acme", names_of(TEXT))) == (code == "E1101")


def test_a_disk_that_is_full_has_an_error_of_its_own_and_keeps_no_part(
    store: ContentStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    with refused("E1002"):
        store.put("acme", frames_of(TEXT))
    assert packs_in(folder) == []
    monkeypatch.undo()
    store.put("acme", frames_of(TEXT))


def test_writes_that_the_system_cuts_short_are_continued(
    store: ContentStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def little(file: int, pieces: list[bytes]) -> int:
        return os.write(file, b"".join(pieces)[:1000])

    monkeypatch.setattr(os, "writev", little)
    store.put("acme", frames_of(TEXT, NOISE, b"x"))
    assert [unpack_chunk(frame) for frame in store.read("acme", names_of(TEXT, NOISE, b"x"))] == [TEXT, NOISE, b"x"]
    assert store.check().damaged == []


def test_a_large_put_becomes_several_packs_and_one_commit(folder: Path) -> None:
    store = opened(folder, settings=StoreSettings(pack_bytes=50_000))
    raws = [os.urandom(20_000) for _ in range(10)]
    assert store.put("acme", iter(frames_of(*raws))).stored == 10
    assert len(packs_in(folder)) == 5
    assert [unpack_chunk(frame) for frame in store.read("acme", names_of(*raws))] == raws
    store.close()


def test_frames_off_the_wire_are_taken_as_they_come(store: ContentStore) -> None:
    body = b"".join(encode_frame(frame) for frame in frames_of(TEXT, NOISE))
    assert store.put("acme", decode_frames(body)).stored == 2


def test_what_was_acknowledged_is_there_after_a_restart(folder: Path) -> None:
    store = opened(folder)
    store.put("acme", frames_of(TEXT, NOISE))
    store.close()
    again = opened(folder)
    assert [unpack_chunk(frame) for frame in again.read("acme", names_of(TEXT, NOISE))] == [TEXT, NOISE]
    again.close()


def test_nothing_on_the_disk_can_be_read_but_names_and_sizes(store: ContentStore, folder: Path) -> None:
    secret = b"my private key is here " * 3  # too short to be compressed beyond recognition
    tree = SampleTree({"secret-plans/strategy.txt": secret}, piece_bytes=10_000)
    store.put("acme", [frame._replace(codec=Codec.RAW, payload=tree.raw[frame.id]) for frame in tree.frames])
    store.hold("acme", tree.digest, "data:1")
    store.close()
    everything = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    for words in (secret[:23], b"strategy.txt", b"secret-plans"):
        assert words not in everything
    assert all(path.stat().st_mode & 0o077 == 0 for path in (folder, *(folder / "packs").iterdir()))


# Limits


def test_a_question_may_not_be_longer_than_its_limit(store: ContentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("E0204"):
        store.missing("acme", [bytes(32)] * (IDS_MAX + 1))
    assert store.missing("acme", [bytes(32)] * IDS_MAX) == [bytes(32)]
    with refused("E0204"):
        store.read("acme", [bytes(32)] * 8193)
    with refused("E1101"):
        store.missing("acme", [b"short"])
    store.put("acme", frames_of(NOISE))
    monkeypatch.setattr(chunks_module, "READ_BYTES_MAX", 29_000)
    with refused("E0204"):
        store.read("acme", names_of(NOISE))
    monkeypatch.setattr(chunks_module, "IDS_MAX", 2)
    with refused("E0204"):
        store.put("acme", frames_of(b"1", b"2", b"3"))


def test_a_tenant_stores_as_much_as_its_quota_and_no_more(store: ContentStore, folder: Path) -> None:
    store.set_quota("acme", 50_000)
    store.put("acme", frames_of(NOISE))
    other = os.urandom(30_000)
    before = packs_in(folder)
    with refused("E1103") as full:
        store.put("acme", frames_of(other))
    assert full.value.meta["bytes_max"] == 50_000
    assert packs_in(folder) == before
    assert store.missing("acme", names_of(other)) == names_of(other)
    assert store.put("acme", frames_of(NOISE)).known == 1, "what is there costs nothing"
    store.put("other", frames_of(other))
    store.set_quota("acme", None)
    store.put("acme", frames_of(other))
    assert [(one.tenant, one.chunks, one.bytes_max) for one in store.usage()] == [("acme", 2, None), ("other", 1, None)]


def test_the_usual_quota_is_that_of_the_settings(folder: Path) -> None:
    store = opened(folder, settings=StoreSettings(quota_bytes=20_000))
    with refused("E1103"):
        store.put("acme", frames_of(NOISE))
    store.set_quota("acme", None)
    store.put("acme", frames_of(NOISE))
    assert store.usage()[0].bytes_max is None
    store.set_quota("acme", 0)
    assert store.usage()[0].bytes_max == 0
    store.close()


def test_two_that_fill_a_quota_at_the_same_time_do_not_both_fit(store: ContentStore) -> None:
    """The second looks again when it commits."""
    store.set_quota("acme", 50_000)
    put = store._storage.write

    def meanwhile(name: str, pieces: list[bytes]) -> None:
        store._storage.write = put  # type: ignore[method-assign]
        store.put("acme", frames_of(os.urandom(30_000)))
        put(name, pieces)

    store._storage.write = meanwhile  # type: ignore[method-assign, assignment]
    with refused("E1103"):
        store.put("acme", frames_of(os.urandom(30_000)))
    assert store.usage()[0].chunks == 1


def test_what_a_tenant_gave_up_makes_room_at_once(store: ContentStore) -> None:
    store.set_quota("acme", 50_000)
    old = SampleTree({"a": os.urandom(30_000)})
    store.put("acme", old.frames)
    store.hold("acme", old.digest, "data:old")
    new = SampleTree({"a": os.urandom(30_000)})
    with refused("E1103"):
        store.put("acme", new.frames)
    store.release("acme", "data:old")
    store.put("acme", new.frames)
    store.hold("acme", new.digest, "data:new")
    assert store.missing("acme", old.file_ids) == old.file_ids


def test_what_a_tenant_gave_up_stays_while_there_is_room(store: ContentStore) -> None:
    store.set_quota("acme", 500_000)
    old = SampleTree({"a": NOISE})
    store.put("acme", old.frames)
    store.hold("acme", old.digest, "data:old")
    store.release("acme", "data:old")
    store.put("acme", frames_of(os.urandom(30_000)))
    store.hold("acme", old.digest, "data:again")


def test_what_was_sent_and_is_not_held_yet_makes_no_room(store: ContentStore) -> None:
    store.set_quota("acme", 50_000)
    store.put("acme", frames_of(NOISE))
    with refused("E1103"):
        store.put("acme", frames_of(os.urandom(30_000)))
    assert store.missing("acme", names_of(NOISE)) == []


# Tenants, keys and locks


def test_a_forgotten_tenant_can_be_read_by_nobody_and_goes(store: ContentStore, folder: Path) -> None:
    tree = SampleTree({"a": NOISE})
    store.put("acme", tree.frames)
    store.hold("acme", tree.digest, "data:1")
    store.put("other", frames_of(TEXT))
    store.forget_tenant("acme")
    store.forget_tenant("nobody")
    assert [one.tenant for one in store.usage()] == ["other"]
    assert store.holders() == []
    for call in (lambda: store.read("acme", tree.ids[:1]), lambda: store.tree("acme", tree.digest)):
        with refused("E1102"):
            call()
    assert len(list((folder / "keys").iterdir())) == 1
    store.collect()
    assert len(packs_in(folder)) == 1
    assert rows_in(store) == {"tenants": 1, "packs": 1, "chunks": 1, "unreferenced": 1}
    assert store.put("acme", tree.frames).stored == len(tree.ids), "the name is free again"
    assert store.read("acme", tree.ids[:1])


def test_a_store_has_a_limited_number_of_tenants(store: ContentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harch.content.store.tenants.TENANTS_MAX", 2)
    for name in ("one", "two"):
        store.put(name, frames_of(TEXT))
    with refused("E1103"):
        store.put("three", frames_of(TEXT))
    assert store.put("two", frames_of(NOISE)).stored == 1


def test_a_forgotten_tenant_stays_forgotten_if_its_key_came_back(folder: Path) -> None:
    store = opened(folder)
    store.put("acme", frames_of(TEXT))
    (key,) = (folder / "keys").iterdir()
    content = key.read_bytes()
    store.forget_tenant("acme")
    store.close()
    key.write_bytes(content)  # a kill came before it was removed
    again = opened(folder)
    assert not key.exists()
    assert again.usage() == []
    again.collect()
    assert packs_in(folder) == []
    again.close()


def test_without_its_master_key_a_store_does_not_open(folder: Path) -> None:
    from harch.content.store import open_store

    opened(folder).close()
    with refused("E1110"):
        open_store(folder, master_key=bytes(32), settings=StoreSettings(), clock=SimClock())
    with pytest.raises(ValueError, match="32 bytes"):
        open_store(folder, master_key=b"short", settings=StoreSettings(), clock=SimClock())
    opened(folder).close()


def test_a_store_is_opened_once(store: ContentStore, folder: Path) -> None:
    with refused("E1110"):
        opened(folder)


def test_a_closed_store_refuses_and_closing_waits_for_calls(folder: Path) -> None:
    store = opened(folder)
    entered, may_go = threading.Event(), threading.Event()

    def slow() -> object:
        entered.set()
        assert may_go.wait(30)
        yield from frames_of(TEXT)

    stored: list[object] = []
    writer = threading.Thread(target=lambda: stored.append(store.put("acme", slow())))  # type: ignore[arg-type]
    writer.start()
    assert entered.wait(30)
    closer = threading.Thread(target=store.close)
    closer.start()
    while not store._closing.is_set():
        threading.Event().wait(0.001)
    with refused("E1110"):
        store.missing("acme", [])
    assert closer.is_alive()
    may_go.set()
    writer.join(30)
    closer.join(30)
    assert stored
    assert not closer.is_alive()
    store.close()


def test_many_threads_that_store_the_same_store_it_once(store: ContentStore) -> None:
    raws = [os.urandom(2000) for _ in range(60)]
    start = threading.Barrier(6)
    answers = []

    def work(number: int) -> None:
        start.wait(30)
        for at in range(0, 60, 10):
            answers.append(store.put("acme", frames_of(*raws[at : at + 10])))
            assert [unpack_chunk(one) for one in store.read("acme", names_of(*raws[at : at + 10]))] == raws[
                at : at + 10
            ]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(answer.stored for answer in answers) == 60
    assert sum(answer.known for answer in answers) == 5 * 60
    assert store.usage()[0].chunks == 60
    assert store.check().damaged == []
