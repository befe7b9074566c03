"""Do chunks come out of a bulk connection as they went in, however it is cut, and does no byte string break an end?"""

from __future__ import annotations

import contextlib
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from harch.content.frames import ChunkFrame, pack_chunk
from harch.federation.bulk.protocol import (
    BULK_VERSION,
    REQUESTED_MAX,
    BulkFault,
    BulkHello,
    ChunkRequest,
    PartialChunk,
    ReceiverSession,
    SenderSession,
    encode_hello,
    encode_requests,
)
from harch.federation.links.frames import PROTOCOL_VERSION, LinkHello

SIZES = st.sampled_from([1, 7, 4_000, 16_384, 70_000, 200_000])
HELLO = BulkHello(
    version=BULK_VERSION,
    hub=LinkHello(protocol_version=PROTOCOL_VERSION, hub_id="dakar", trust_domain="harch.internal"),
    ticket=b"t",
)


@st.composite
def chunks(draw: st.DrawFn) -> dict[bytes, ChunkFrame]:
    """Up to eight; some can be compressed."""
    found = {}
    for number, size in enumerate(draw(st.lists(SIZES, min_size=1, max_size=8))):
        line = draw(st.binary(min_size=1, max_size=8)) + bytes([number])
        raw = (line * (size // len(line) + 1))[:size]
        frame = pack_chunk(raw)
        found[frame.id] = frame
    return found


def greeted() -> SenderSession:
    session = SenderSession()
    session.feed(encode_hello(HELLO))
    return session


def sent_by(session: SenderSession, frames: dict[bytes, ChunkFrame]) -> bytes:
    parts = [encode_hello(HELLO)]
    while batch := session.next_batch():
        for request in batch:
            parts += map(bytes, session.encode(request, frames[request.id]))
    return b"".join(parts)


def receive(session: ReceiverSession, data: bytes, rng: random.Random) -> list[ChunkFrame]:
    """In pieces of any size that fits into the space, many of them tiny."""
    complete = []
    while data:
        space = session.space()
        assert len(space)
        count = min(len(space), len(data), rng.choice((1, 5, 60, 5_000, 100_000)))
        space[:count] = data[:count]
        data = data[count:]
        complete += session.received(count)
    return complete


@given(chunks(), st.integers(0, 2**32))
def test_chunks_arrive_whole_and_no_byte_of_them_twice_however_often_the_stream_is_cut(
    frames: dict[bytes, ChunkFrame], seed: int
) -> None:
    rng = random.Random(seed)
    wanted = {frame.id: ChunkRequest(frame.id, frame.size) for frame in frames.values()}
    held: dict[bytes, PartialChunk] = {}
    arrived: list[ChunkFrame] = []
    received = 0
    while wanted:
        receiver, sender = ReceiverSession(), greeted()
        requests = [
            ChunkRequest(one.id, one.size, len(held[one.id].begun), held[one.id].length) if one.id in held else one
            for one in wanted.values()
        ]
        sender.feed(receiver.request(requests, held.values()))
        stream = sent_by(sender, frames)
        cut = rng.randint(len(stream) // 3, len(stream))
        for frame in receive(receiver, stream[:cut], rng):
            arrived.append(frame)
            del wanted[frame.id]
        received += receiver.payload_bytes
        partial = receiver.partial()
        held = {one.id: one for one in (*receiver.unused(), *([partial] if partial else []))}
    assert sorted(arrived) == sorted(frames.values())
    assert received == sum(len(frame.payload) for frame in frames.values())


@given(st.lists(st.lists(st.integers(1, 2**21), max_size=30), max_size=10), st.integers(0, 2**32))
def test_a_sender_reads_the_same_requests_however_they_come(sizes: list[list[int]], seed: int) -> None:
    rng = random.Random(seed)
    wanted = [[ChunkRequest(rng.randbytes(32), size) for size in some] for some in sizes]
    stream = encode_hello(HELLO) + b"".join(map(encode_requests, wanted))
    session = SenderSession()
    while stream:
        count = rng.choice((1, 3, 50, 5_000))
        session.feed(stream[:count])
        stream = stream[count:]
    read: list[ChunkRequest] = []
    while batch := session.next_batch():
        read += batch
    assert session.hello == HELLO
    assert read == [request for some in wanted for request in some]


@settings(max_examples=200)
@given(st.binary(max_size=400), st.integers(0, 300), st.integers(0, 2**32))
def test_any_bytes_are_answered_by_a_fault_or_by_waiting_for_more(noise: bytes, at: int, seed: int) -> None:
    frame = pack_chunk(b"some content " * 40)
    receiver, sender = ReceiverSession(), greeted()
    sender.feed(receiver.request([ChunkRequest(frame.id, frame.size)]))
    good = sent_by(sender, {frame.id: frame})
    with contextlib.suppress(BulkFault):
        for complete in receive(receiver, good[:at] + noise + good[at:], random.Random(seed)):
            assert (complete.id, complete.size) == (frame.id, frame.size)
    requests = encode_hello(HELLO) + encode_requests([ChunkRequest(frame.id, frame.size)] * 3)
    session = SenderSession()
    with contextlib.suppress(BulkFault):
        session.feed(requests[:at] + noise + requests[at:])
    assert len(session) <= REQUESTED_MAX
