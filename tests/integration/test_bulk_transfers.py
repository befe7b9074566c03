"""Do chunks arrive, all of them and each once, over real TLS that is cut again and again?"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from bulk_world import HOST, LARGE, Hub, Sink, WatchedClock, Wire, federation, fetch_all, random_chunks, refs, serving

from harch.base.clock import SystemClock
from harch.base.errors import HarchError
from harch.content.frames import ChunkFrame, Codec, pack_chunk
from harch.federation.bulk.fetch import FetchSettings
from harch.federation.identity.hub_identity import HubIdentity
from harch.testing.clock import SimClock
from harch.testing.ports import free_port

CHUNKS = random_chunks(40)
PAYLOAD_BYTES = sum(len(frame.payload) for frame in CHUNKS.values())


@pytest.fixture
def ids(tmp_path: Path) -> dict[str, HubIdentity]:
    return federation(tmp_path, "dakar", "abidjan")


@pytest.fixture
def hub(ids: dict[str, HubIdentity]) -> Iterator[Hub]:
    one = Hub(ids["dakar"], CHUNKS)
    with serving(one):
        yield one


def test_every_chunk_arrives_and_is_counted_at_both_ends(ids: dict[str, HubIdentity], hub: Hub) -> None:
    sink = Sink()
    steps: list[tuple[int, int]] = []
    report = fetch_all(ids["abidjan"], hub, sink=sink, progress=lambda done, total: steps.append((done, total)))
    assert sink.frames == CHUNKS
    assert sink.twice == 0
    assert (report.chunks, report.bytes_raw, report.bytes_received) == (40, PAYLOAD_BYTES, PAYLOAD_BYTES)
    assert (report.bytes_repeated, report.cuts, report.damaged, report.connections) == (0, 0, 0, 4)
    assert steps[-1] == (PAYLOAD_BYTES, PAYLOAD_BYTES)
    assert [done for done, _ in steps] == sorted({done for done, _ in steps})
    hub.server.close()
    sent = hub.server.traffic()["abidjan"]
    assert (sent.chunks, sent.bytes, sent.connections) == (40, PAYLOAD_BYTES, 4)
    assert not sent.refused


def test_compressed_and_tiny_chunks_arrive_too(ids: dict[str, HubIdentity]) -> None:
    frames = [pack_chunk(b"line %d of the log\n" % n * (1 + n % 9_000)) for n in range(0, 12_000, 7)]
    assert {frame.codec for frame in frames} == {Codec.RAW, Codec.ZSTD}
    hub, sink = Hub(ids["dakar"], {frame.id: frame for frame in frames}), Sink()
    with serving(hub):
        report = fetch_all(ids["abidjan"], hub, sink=sink)
    assert sink.frames == hub.source.frames
    assert report.bytes_received == sum(len(frame.payload) for frame in frames)


def test_chunks_are_stored_in_batches_and_not_one_by_one(ids: dict[str, HubIdentity], hub: Hub) -> None:
    sink = Sink()
    fetch_all(ids["abidjan"], hub, sink=sink, settings=FetchSettings(store_bytes=4_000_000, store_every_s=30.0))
    assert all(size >= 4_000_000 for size in sink.batches[:-1])
    assert len(sink.batches) <= 5


def test_a_small_transfer_has_one_connection_and_one_of_nothing_none(ids: dict[str, HubIdentity], hub: Hub) -> None:
    assert fetch_all(ids["abidjan"], hub, wanted=refs(CHUNKS)[:2]).connections == 1
    assert fetch_all(ids["abidjan"], hub, wanted=[]).connections == 0


@pytest.mark.parametrize("seed", range(6))
def test_cuts_at_any_byte_cost_no_byte_that_had_arrived(ids: dict[str, HubIdentity], hub: Hub, seed: int) -> None:
    """The wire hands on every byte before its cut, so whatever is received twice was thrown away."""
    rng = random.Random(seed)
    sink = Sink()
    cuts = iter([rng.randint(1, 4_000_000) for _ in range(12)])
    with Wire(hub.server.port, lambda: next(cuts, None)) as wire:
        report = fetch_all(ids["abidjan"], hub, sink=sink, port=wire.port, settings=LARGE)
    assert sink.frames == CHUNKS
    assert sink.twice == 0
    assert report.bytes_repeated == 0
    assert report.bytes_received == PAYLOAD_BYTES
    assert wire.cuts >= 4


def test_what_is_sent_again_after_a_cut_is_what_was_under_way(ids: dict[str, HubIdentity]) -> None:
    """Of a chunk of 2 MB that is cut five times in its middle the sender sends little more than 2 MB."""
    frames = random_chunks(1, 2_000_000)
    hub, sink = Hub(ids["dakar"], frames), Sink()
    cuts = iter([400_000] * 5)
    with serving(hub), Wire(hub.server.port, lambda: next(cuts, None)) as wire:
        report = fetch_all(ids["abidjan"], hub, sink=sink, port=wire.port, settings=LARGE)
        assert wire.cuts == 5
    assert sink.frames == frames
    assert report.bytes_received == 2_000_000
    assert report.cuts == 5


def test_a_wire_that_goes_dead_in_silence_is_given_up_and_replaced(ids: dict[str, HubIdentity], hub: Hub) -> None:
    limits = iter([600_000, 900_000])
    settings = FetchSettings(give_up_s=60.0, silence_s_max=0.5)
    sink = Sink()
    with Wire(hub.server.port, lambda: next(limits, None), silent=True) as wire:
        report = fetch_all(ids["abidjan"], hub, sink=sink, port=wire.port, settings=settings)
    assert sink.frames == CHUNKS
    assert report.bytes_repeated == 0
    assert report.cuts >= 2


def test_a_hub_that_restarts_is_found_again(ids: dict[str, HubIdentity]) -> None:
    port = free_port()
    first, second = Hub(ids["dakar"], CHUNKS), Hub(ids["dakar"], CHUNKS)
    for hub in (first, second):
        hub.server._listen = hub.server._listen._replace(port=port)
    second.source.tickets = first.source.tickets
    reads = iter(range(1_000))
    restarted = threading.Event()

    def restart() -> None:
        first.server.close()
        second.server.start()

    def before_read() -> None:
        if next(reads) == 3:
            threading.Thread(target=restart).start()
            restarted.set()

    first.source.before_read = before_read
    sink = Sink()
    first.server.start()
    try:
        fetch_all(ids["abidjan"], first, sink=sink, port=port, settings=LARGE)
    finally:
        second.server.close()
    assert restarted.is_set()
    assert sink.frames == CHUNKS
    assert sink.twice == 0


def test_without_progress_it_is_given_up_with_the_reason(ids: dict[str, HubIdentity]) -> None:
    hub = Hub(ids["dakar"], CHUNKS)
    with pytest.raises(HarchError, match=r"no progress for 0\.3 s: 127\.0\.0\.1:.*refused") as caught:
        fetch_all(ids["abidjan"], hub, port=free_port(), settings=FetchSettings(give_up_s=0.3))
    assert caught.value.code == "E1140"
    assert caught.value.meta == {"hub": "dakar", "bytes_done": 0, "bytes": PAYLOAD_BYTES}


def test_a_peer_that_drips_does_not_hold_a_transfer_forever(ids: dict[str, HubIdentity], hub: Hub) -> None:
    """A few bytes now and then are no progress."""
    with Wire(hub.server.port, lambda: 4_000) as wire, pytest.raises(HarchError, match="no progress for 1 s"):
        fetch_all(ids["abidjan"], hub, port=wire.port, settings=FetchSettings(give_up_s=1.0, connections=1))
    assert wire.connections < 30  # it waits before it dials again


def test_who_is_cut_off_at_once_dials_less_and_less_often(ids: dict[str, HubIdentity], hub: Hub) -> None:
    settings = FetchSettings(give_up_s=1.5, connections=1)
    with Wire(hub.server.port, lambda: 1) as wire, pytest.raises(HarchError, match="no progress"):
        fetch_all(ids["abidjan"], hub, port=wire.port, settings=settings, jitter=lambda: 1.0)
    assert 2 <= wire.connections <= 5  # after 0.2, 0.4, 0.8 seconds


def test_a_connection_that_is_slow_but_goes_on_is_not_cut(ids: dict[str, HubIdentity]) -> None:
    clock = SimClock(SystemClock().now())
    clock.jump(1_000)
    hub = Hub(ids["dakar"], CHUNKS)
    reads = 0

    def before_read() -> None:
        nonlocal reads
        reads += 1
        clock.jump(6)

    hub.source.before_read = before_read
    with serving(hub):
        report = fetch_all(ids["abidjan"], hub, clock=clock, settings=FetchSettings(connections=1, silence_s_max=10.0))
    assert reads > 3
    assert report.seconds == 6 * reads
    assert report.cuts == 0


def test_a_connection_that_brings_a_few_bytes_now_and_then_is_replaced(ids: dict[str, HubIdentity]) -> None:
    frames = random_chunks(300, 100)
    clock = WatchedClock(SystemClock().now())
    hub, sink = Hub(ids["dakar"], frames), Sink()

    hub.source.before_read = lambda: clock.jump_and_be_seen(6)
    with serving(hub):
        report = fetch_all(
            ids["abidjan"], hub, sink=sink, clock=clock, settings=FetchSettings(connections=1, silence_s_max=10.0)
        )
    assert sink.frames == frames
    assert report.cuts >= 1
    assert report.bytes_repeated == 0


def test_what_has_arrived_before_a_failure_is_stored(ids: dict[str, HubIdentity], hub: Hub) -> None:
    limits = iter([3_000_000])
    sink, settings = Sink(), FetchSettings(give_up_s=1.0, connections=1)
    with Wire(hub.server.port, lambda: next(limits, 1)) as wire, pytest.raises(HarchError):
        fetch_all(ids["abidjan"], hub, sink=sink, port=wire.port, settings=settings)
    assert len(sink.frames) == 7
    missing = [ref for ref in refs(CHUNKS) if ref.id not in sink.frames]
    fetch_all(ids["abidjan"], hub, sink=sink, wanted=missing)
    assert sink.frames == CHUNKS
    assert sink.twice == 0


def test_a_cancelled_transfer_ends_at_once_and_keeps_what_it_has(ids: dict[str, HubIdentity], hub: Hub) -> None:
    cancelled = threading.Event()
    hub.source.before_read = lambda: cancelled.set() if hub.server.traffic()["abidjan"].chunks > 4 else None
    sink = Sink()
    with pytest.raises(HarchError, match="it was cancelled"):
        fetch_all(ids["abidjan"], hub, sink=sink, cancelled=cancelled, settings=FetchSettings(window_bytes=1_000_000))
    assert 0 < len(sink.frames) < len(CHUNKS)
    assert not [thread for thread in threading.enumerate() if thread.name == "bulk-fetch"]


def test_a_store_that_refuses_ends_the_transfer_with_its_own_error(ids: dict[str, HubIdentity], hub: Hub) -> None:
    def refuse(batch: list[ChunkFrame]) -> None:
        raise HarchError("E1103", "the quota is used up")

    with pytest.raises(HarchError) as caught:
        fetch_all(ids["abidjan"], hub, sink=refuse)
    assert caught.value.code == "E1103"


def test_a_slow_store_slows_the_transfer_down_and_memory_stays_bounded(ids: dict[str, HubIdentity], hub: Hub) -> None:
    """While nothing is stored, no more is read than may wait."""
    settings = FetchSettings(store_bytes=1_000_000, unstored_bytes_max=2_000_000, connections=2)
    most = 0

    class Slow(Sink):
        def __call__(self, batch: list[ChunkFrame]) -> None:
            nonlocal most
            most = max(most, sum(len(frame.payload) for frame in batch))
            super().__call__(batch)
            threading.Event().wait(0.02)

    sink = Slow()
    fetch_all(ids["abidjan"], hub, sink=sink, settings=settings)
    assert sink.frames == CHUNKS
    assert most <= 2_000_000 + 2 * 400_000


def test_two_hubs_fetch_from_each_other_at_the_same_time(ids: dict[str, HubIdentity], hub: Hub) -> None:
    other = Hub(ids["abidjan"], random_chunks(30, seed=2))
    sinks = [Sink(), Sink()]
    with serving(other):
        threads = [
            threading.Thread(target=fetch_all, args=(ids["abidjan"], hub), kwargs={"sink": sinks[0]}),
            threading.Thread(target=fetch_all, args=(ids["dakar"], other), kwargs={"sink": sinks[1]}),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sinks[0].frames == CHUNKS
    assert sinks[1].frames == other.source.frames


def test_a_port_that_is_taken_is_named(ids: dict[str, HubIdentity], hub: Hub) -> None:
    other = Hub(ids["abidjan"], {})
    other.server._listen = other.server._listen._replace(port=hub.server.port)
    with pytest.raises(HarchError, match=f"cannot listen for bulk transfers on {HOST}:{hub.server.port}") as caught:
        other.server.start()
    assert caught.value.code == "E1004"
