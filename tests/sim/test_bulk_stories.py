"""Does a transfer end with every chunk, whatever happens to its connections? Seeded schedules, without a network.

Connections deliver in any order and any pieces, and are cut at any byte; some peers lie. What must hold: every chunk
arrives once and unharmed, nothing that arrived is sent again, and no peer makes the receiver keep more than it wants.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from harch.base.errors import HarchError
from harch.content.frames import ChunkFrame, pack_chunk, unpack_chunk
from harch.content.model import CHUNK_BYTES_MAX, ChunkRef
from harch.federation.bulk.plan import FetchPlan
from harch.federation.bulk.protocol import (
    BULK_VERSION,
    BulkFault,
    BulkHello,
    ReceiverSession,
    SenderSession,
    encode_hello,
)
from harch.federation.links.frames import PROTOCOL_VERSION, LinkHello

HELLO = BulkHello(
    version=BULK_VERSION,
    hub=LinkHello(protocol_version=PROTOCOL_VERSION, hub_id="dakar", trust_domain="harch.internal"),
    ticket=b"t",
)
CONNECTIONS = 4
STEPS_MAX = 100_000


def chunks(rng: random.Random) -> dict[bytes, ChunkFrame]:
    found = {}
    for _ in range(rng.randint(1, 40)):
        raw = rng.randbytes(rng.choice((10, 3_000, 40_000, 200_000)))
        frame = pack_chunk(raw if rng.random() < 0.7 else raw[:10] * (len(raw) // 10))
        found[frame.id] = frame
    return found


@dataclass
class Connection:
    """Both ends, and what is on its way between them."""

    receiver: ReceiverSession = field(default_factory=ReceiverSession)
    sender: SenderSession = field(default_factory=SenderSession)
    under_way: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self.sender.feed(encode_hello(HELLO))
        self.under_way += encode_hello(HELLO)


class World:
    """One transfer. `lie` may change a chunk before it is sent."""

    def __init__(self, seed: int, *, cut_chance: float = 0.0, lie_chance: float = 0.0) -> None:
        self.rng = random.Random(seed)
        self.frames = chunks(self.rng)
        self.cut_chance, self.lie_chance = cut_chance, lie_chance
        refs = [ChunkRef(frame.id, frame.size) for frame in self.frames.values()]
        self.plan = FetchPlan(refs, connections=CONNECTIONS, window_bytes=500_000)
        self.connections = {number: Connection() for number in range(CONNECTIONS)}
        self.arrived: Counter[bytes] = Counter()
        self.received = self.wasted = self.cuts = self.faults = 0

    def run(self) -> None:
        for _ in range(STEPS_MAX):
            if self.plan.is_done:
                return
            number = self.rng.randrange(CONNECTIONS)
            try:
                self.step(number, self.connections[number])
            except BulkFault:
                self.faults += 1
                self.replace(number)
            if self.rng.random() < self.cut_chance:
                self.cuts += 1
                self.replace(self.rng.randrange(CONNECTIONS))
        raise AssertionError("the transfer does not end")

    def step(self, number: int, connection: Connection) -> None:
        requests, held = self.plan.assign(number)
        if requests:
            connection.sender.feed(connection.receiver.request(requests, held))
        for request in connection.sender.next_batch():
            head, rest = connection.sender.encode(request, self.frames[request.id])
            sent = bytearray(head + bytes(rest))
            if self.rng.random() < self.lie_chance:
                sent[self.rng.randrange(len(sent))] ^= 1 + self.rng.randrange(255)
            connection.under_way += sent
        space = connection.receiver.space()
        count = min(self.rng.choice((1, 40, 1_000, 30_000)), len(space), len(connection.under_way))
        space[:count] = connection.under_way[:count]
        del connection.under_way[:count]
        before = connection.receiver.payload_bytes
        complete = connection.receiver.received(count)
        self.received += connection.receiver.payload_bytes - before
        for frame in complete:
            self.take(number, frame)

    def take(self, number: int, frame: ChunkFrame) -> None:
        try:
            raw = unpack_chunk(frame)
        except HarchError:
            self.wasted += len(frame.payload)
            self.plan.damaged(number, frame.id)
            return
        assert raw == unpack_chunk(self.frames[frame.id])
        self.arrived[frame.id] += 1
        self.plan.arrived(number, frame.id)

    def replace(self, number: int) -> None:
        receiver = self.connections[number].receiver
        partial = receiver.partial()
        self.plan.lost(number, [*([partial] if partial else []), *receiver.unused()])
        self.connections[number] = Connection()
        assert self.plan.bytes_held <= CONNECTIONS * CHUNK_BYTES_MAX

    @property
    def payload_bytes(self) -> int:
        return sum(len(frame.payload) for frame in self.frames.values())


@pytest.mark.parametrize("seed", range(60))
def test_every_chunk_arrives_once_and_no_byte_of_it_twice_whatever_is_cut(seed: int) -> None:
    world = World(seed, cut_chance=0.02 * (seed % 4))
    world.run()
    assert world.arrived == Counter(list(world.frames))
    assert world.received == world.payload_bytes
    assert world.plan.bytes_done == world.plan.bytes_total


def test_many_cuts_were_among_them() -> None:
    worlds = [World(seed, cut_chance=0.06) for seed in range(3, 43, 4)]
    for world in worlds:
        world.run()
    assert sum(world.cuts for world in worlds) > 100


@pytest.mark.parametrize("seed", range(40))
def test_a_peer_that_lies_is_found_out_and_costs_no_more_than_its_own_connection(seed: int) -> None:
    """Whatever byte of whatever chunk it changes: nothing wrong is taken, and the honest rest arrives."""
    world = World(seed, cut_chance=0.01, lie_chance=0.05)
    with contextlib.suppress(HarchError):  # the same chunk was damaged twice
        world.run()
    assert world.plan.is_done == (world.arrived == Counter(list(world.frames)))
    assert all(count == 1 for count in world.arrived.values())


def test_lies_were_among_them_that_heads_and_hashes_gave_away() -> None:
    worlds = [World(seed, lie_chance=0.05) for seed in range(40)]
    for world in worlds:
        with contextlib.suppress(HarchError):
            world.run()
    assert sum(world.faults for world in worlds) > 5
    assert sum(world.wasted > 0 for world in worlds) > 5
