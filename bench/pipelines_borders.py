"""How fast do aggregates cross a border? Windows per second, and how long one takes, between two hubs on loopback.

All of the way is real: the export stream of a message engine, both border servers, the tunnel over the federation's
TLS between them, and receipts. What takes the windows in only counts them. Everything runs in one process beside three
servers, so that it measures the hub's part too.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import uvloop

from harch.base.clock import SystemClock
from harch.base.config import Home
from harch.federation.identity.authority import make_federation
from harch.federation.identity.members import Address
from harch.hub.pipelines.cross_border.servers import BorderServer, BorderTunnel
from harch.hub.pipelines.cross_border.transfer import ExportLane, FeatureReader, ImportLane, RowTaker, TransferTally
from harch.hub.pipelines.engine_backends import OwnServers
from harch.pipelines.client.aio import AioClient
from harch.pipelines.engine.borders import BorderOffer, HubBorder, Want, plan_links
from harch.pipelines.engine.jetstream_admin import JetStreamAdmin
from harch.pipelines.engine.keys import KeyFolder
from harch.pipelines.engine.layout import CONTROLLER, EngineLayout
from harch.pipelines.engine.settings import EngineSettings
from harch.pipelines.engine.streams import DesiredStreams, bucket_stream, plan_streams
from harch.pipelines.sense.edge import Permit
from harch.pipelines.sense.features import FeatureBatch, encode_features, feature_schema
from harch.pipelines.sense.gate import PolicyTable
from harch.pipelines.sense.settings import HttpSource, SenseSettings
from harch.pipelines.spec.deployment import ExportOffer, assemble_domain
from harch.pipelines.wire.rows import RowFormat
from harch.pipelines.workers.deployment import LaneSizes, export_stream
from harch.pipelines.workers.names import names_of
from harch.pipelines.workers.shared_state import Policies
from harch.sovereignty.tags import Classification, Tag
from verdict import conditions

CLOCK = SystemClock()
NAMES = names_of("MA", "fields")
BEGAN_NS = round(CLOCK.now().timestamp() * 1e9) - 3600 * 1_000_000_000
DEVICES = 100
SENSE = SenseSettings(
    sources=(HttpSource(name="web"),),
    devices=tuple(f"field-{number}" for number in range(DEVICES)),
    devices_max=DEVICES,
    statistics=("count", "mean", "min", "max"),
)
TABLE = PolicyTable(1, {"dakhla": 0, "dakar": 1})
TAG = Tag(
    process_in=("MA", "SN"),
    rest_in=("MA", "SN"),
    transit_in=("MA", "MR", "SN"),
    may_cross_borders=True,
    frameworks=(),
    classification=Classification.PUBLIC,
    encrypt_at_rest=False,
    encrypt_in_transit=False,
    key_in=(),
)
COUNTRIES = {"dakhla": "MA", "dakar": "SN"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=2000, help="that wait when the border opens")
    parser.add_argument("--single", type=int, default=100, help="that are told one by one, ten a second")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(measure(Path(folder), arguments.windows, arguments.single))


def window(seq: int) -> bytes:
    batch = FeatureBatch(
        pipeline="fields",
        partition=0,
        window_start_ns=seq,
        window_end_ns=BEGAN_NS + seq * 1_000_000,
        seq=seq,
        juris_mask=0b11,
        policy_version=1,
        device=np.arange(DEVICES, dtype=np.uint32),
        metric=np.zeros(DEVICES, np.uint16),
        names=SENSE.statistics,
        matrix=np.random.default_rng(seq).random((DEVICES, 4)),
    )
    return encode_features(batch, feature_schema(SENSE), source=1)


class Receiver:
    """Counts what arrives, and remembers when."""

    def __init__(self) -> None:
        self.at_s: list[float] = []
        self.bytes = 0

    async def take(self, body: bytes, kind: str) -> bytes:
        self.at_s.append(time.perf_counter())
        self.bytes += len(body)
        return b""

    async def has(self, count: int) -> None:
        while len(self.at_s) < count:
            await asyncio.sleep(0.002)


async def measure(folder: Path, windows: int, single: int) -> None:
    keys = KeyFolder(folder / "keys")
    place = OwnServers(
        "dakhla",
        "MA",
        folder / "engine",
        settings=EngineSettings(),
        keys=keys,
        clock=CLOCK,
        on_event=lambda event: None,
    )
    domain, _ = assemble_domain("ma", "MA", place.servers_of("ma"), [], keys.public_key)
    await place.ready(EngineLayout(domains=(domain,)))
    client = AioClient(place.controller("ma").options(CONTROLLER))
    await client.connect()
    admin = JetStreamAdmin(client)
    closing: list[Callable[[], Awaitable[None]]] = [client.close, place.stop]
    try:
        state = bucket_stream(NAMES.state_bucket, "MA", max_bytes=16 << 20)
        wanted = DesiredStreams(streams=(export_stream(NAMES, LaneSizes()), state))
        await admin.apply(plan_streams(wanted, await admin.found()))
        for seq in range(1, windows + 1):
            await client.publish_stored(NAMES.exported(0), window(seq), msg_id=f"1/fields/0/{seq}")
        receiver = Receiver()
        began_s = time.perf_counter()
        closing[:0] = await opened(folder, admin, receiver)
        await receiver.has(1)
        first_s = time.perf_counter()
        await receiver.has(windows)
        took_s = receiver.at_s[-1] - receiver.at_s[0]
        waits_ms = []
        for number in range(single):
            seq = windows + number + 1
            told_s = time.perf_counter()
            await client.publish_stored(NAMES.exported(0), window(seq), msg_id=f"1/fields/0/{seq}")
            await receiver.has(seq)
            waits_ms.append((receiver.at_s[-1] - told_s) * 1000)
            await asyncio.sleep(0.1)
    finally:
        for close in closing:
            await close()
    cuts = statistics.quantiles(waits_ms, n=100)
    print(f"conditions: {conditions()}")
    print(f"the border is open after {first_s - began_s:.2f} s (two servers started, one link)")
    print(
        f"{windows} windows of {DEVICES} devices and 4 features: {windows / took_s:.0f} windows/s, "
        f"{windows * DEVICES / took_s:.0f} rows/s, each once and in order: {len(receiver.at_s) == windows + single}"
    )
    print(f"one window, from its stream to the other side: p50 {cuts[49]:.0f} ms, p99 {cuts[98]:.0f} ms")


async def opened(folder: Path, admin: JetStreamAdmin, receiver: Receiver) -> list[Callable[[], Awaitable[None]]]:
    """Both borders, joined; answers what has to be closed."""
    places = {"dakhla": ("127.0.0.1", 1), "dakar": ("127.0.0.1", 2)}
    identities = make_federation(Home(folder / "home"), places, now=CLOCK.now())
    servers, tunnels, borders = {}, {}, {}
    for hub, country in COUNTRIES.items():
        server = BorderServer(hub, folder / hub, KeyFolder(folder / hub), clock=CLOCK, on_event=lambda event: None)
        tunnel = BorderTunnel(identities[hub], CLOCK, welcome=lambda other: "")
        port = await tunnel.listen("127.0.0.1", 0, server.border_port)
        offers = (BorderOffer(pipeline="fields", export="means", tag=TAG, hubs=("dakar",)),) if country == "MA" else ()
        wants = (Want("dakhla", "fields", "means"),) if country == "SN" else ()
        servers[hub], tunnels[hub] = server, tunnel
        borders[hub] = HubBorder(
            country=country, host="127.0.0.1", port=port, key=server.key, offers=offers, wants=wants
        )
    lanes = []
    for hub, other in (("dakhla", "dakar"), ("dakar", "dakhla")):
        plans = plan_links(hub, borders[hub], {other: borders[other]}, lambda lane, tag: True)
        there = Address(borders[other].host, borders[other].port)
        doors = {other: await tunnels[hub].way_to(other, there)} if plans[0].dials else {}
        await servers[hub].become(borders[hub], plans, doors)
        lanes.append((*plans[0].out, *plans[0].into)[0])
    tally = TransferTally()
    sends = ExportLane(
        lanes[0],
        ExportOffer(name="means", columns=(), tag=TAG, hubs=("dakar",)),
        FeatureReader(SENSE),
        NAMES,
        Policies(TABLE),
        admin=lambda: admin,
        border=servers["dakhla"].client,
        clock=CLOCK,
        count=tally.of(lanes[0]),
    )
    taker = RowTaker(
        SENSE, HttpSource(name="web", rows=RowFormat(values={"v0": "mean", "v1": "max"})), Permit(1, 1), "web"
    )
    takes = ImportLane(
        lanes[1],
        taker,
        receiver.take,
        border=servers["dakar"].client,
        clock=CLOCK,
        count=tally.of(lanes[1]),
    )
    tasks = [asyncio.create_task(lane.run()) for lane in (takes, sends)]

    async def end() -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    return [end, *(tunnel.close for tunnel in tunnels.values()), *(server.stop for server in servers.values())]


if __name__ == "__main__":
    main()
