"""Do bulk transfers survive a real line? Emulated: packets are lost, and vanish without a word while it is cut."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bulk_world import LARGE, Hub, Sink, random_chunks, refs

from harch.base.clock import SystemClock
from harch.base.config import Home
from harch.federation.bulk.fetch import FetchSettings, TransferReport, fetch
from harch.federation.identity.authority import make_federation
from harch.federation.identity.hub_identity import HubIdentity
from harch.testing.wan import Wan

PAIR = ("dakhla", "dakar")
PORT = 7731
CHUNKS = random_chunks(60)

pytestmark = pytest.mark.needs("wan")


@contextmanager
def line(folder: Path, *, rtt_ms: float = 45.0, loss: float = 0.0) -> Iterator[tuple[Wan, Hub, HubIdentity]]:
    """Dakhla has chunks, dakar wants them."""
    with Wan(PAIR, rtt_ms=rtt_ms, loss=loss) as wan:
        addresses = {name: (wan.address(name), 7721) for name in PAIR}
        ids = make_federation(Home(folder), addresses, now=SystemClock().now())
        hub = Hub(ids["dakhla"], CHUNKS)
        hub.server._listen = hub.server._listen._replace(host=wan.address("dakhla"), port=PORT)
        wan.inside("dakhla", hub.server.start)
        try:
            yield wan, hub, ids["dakar"]
        finally:
            hub.server.close()


def fetch_over(
    wan: Wan, hub: Hub, identity: HubIdentity, sink: Sink, settings: FetchSettings = LARGE
) -> TransferReport:
    """From inside of dakar's network: its threads stay there."""
    return wan.inside(
        "dakar",
        fetch,
        (wan.address("dakhla"), PORT),
        identity,
        "dakhla",
        hub.ticket("dakar"),
        refs(CHUNKS),
        store=sink,
        settings=settings,
    )


def test_everything_arrives_over_a_line_that_loses_packets(tmp_path: Path) -> None:
    sink = Sink()
    with line(tmp_path, loss=0.01) as (wan, hub, identity):
        report = fetch_over(wan, hub, identity, sink)
    assert sink.frames == CHUNKS
    assert (report.cuts, report.bytes_repeated) == (0, 0)


def test_a_transfer_goes_on_after_cuts_of_the_line_and_no_byte_that_arrived_comes_again(tmp_path: Path) -> None:
    """Nobody says goodbye: the connections are given up because nothing comes any more."""
    sink, settings = Sink(), FetchSettings(silence_s_max=1.0, store_every_s=0.1, store_bytes=1_000_000)
    with line(tmp_path) as (wan, hub, identity):
        reads = iter(range(1_000))

        def before_read() -> None:
            if next(reads) in (3, 12):
                wan.cut(*PAIR)
                healing = threading.Timer(1.5, wan.heal, PAIR)
                healing.daemon = True
                healing.start()

        hub.source.before_read = before_read
        report = fetch_over(wan, hub, identity, sink, settings)
    assert sink.frames == CHUNKS
    assert sink.twice == 0
    assert report.cuts >= 4
    assert report.bytes_repeated == 0
    assert report.bytes_received == sum(len(frame.payload) for frame in CHUNKS.values())
