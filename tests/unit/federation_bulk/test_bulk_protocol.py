"""What ends of bulk connections send each other, and what they refuse to take."""

from __future__ import annotations

import struct

import pytest
from bulk_samples import TICKET, answers, fill, frames_of, greeted_sender, hello, raw_chunk, raw_frame

from harch.content.frames import ChunkFrame, Codec, frame_head
from harch.content.model import CHUNK_BYTES_MAX
from harch.federation.bulk.protocol import (
    HELLO_BYTES_MAX,
    READ_BYTES_MAX,
    READ_CHUNKS_MAX,
    REQUEST_CHUNKS_MAX,
    REQUESTED_MAX,
    BulkFault,
    BulkRefused,
    ChunkRequest,
    PartialChunk,
    ReceiverSession,
    RecordKind,
    SenderSession,
    encode_hello,
    encode_refused,
    encode_requests,
)


def requests_of(frames: dict[bytes, ChunkFrame]) -> list[ChunkRequest]:
    return [ChunkRequest(frame.id, frame.size) for frame in frames.values()]


def record(kind: int, body: bytes, *, length: int | None = None) -> bytes:
    return struct.pack("!BI", kind, len(body) if length is None else length) + body


def chunk_record(frame: ChunkFrame, *, offset: int = 0, length: int | None = None) -> bytes:
    body = frame_head(frame) + struct.pack("!I", offset) + frame.payload[offset:]
    return record(RecordKind.CHUNK, body, length=length)


def expecting(*frames: ChunkFrame) -> ReceiverSession:
    session = ReceiverSession()
    session.request([ChunkRequest(frame.id, frame.size) for frame in frames])
    fill(session, encode_hello(hello()))
    return session


def test_what_is_requested_arrives_in_order_and_nothing_stays_behind() -> None:
    frames = frames_of([1, 100, 16_000, 300_000, CHUNK_BYTES_MAX], compressible=True)
    sender, receiver = greeted_sender(), ReceiverSession()
    sender.feed(receiver.request(requests_of(frames)))
    arrived = fill(receiver, encode_hello(hello()) + answers(sender, frames))
    assert arrived == list(frames.values())
    assert not receiver.owes
    assert receiver.partial() is None
    assert receiver.payload_bytes == sum(len(frame.payload) for frame in frames.values())


def test_the_ticket_is_shown_to_the_sender_only() -> None:
    sender = SenderSession()
    sender.feed(encode_hello(hello("abidjan", ticket=TICKET)))
    assert sender.hello is not None
    assert (sender.hello.ticket, sender.hello.hub.hub_id) == (TICKET, "abidjan")


def test_a_cut_chunk_goes_on_where_it_was_cut() -> None:
    frame = raw_frame(raw_chunk(1, 500_000))
    first = expecting(frame)
    fill(first, chunk_record(frame)[:200_000])
    partial = first.partial()
    assert partial is not None
    assert partial.begun == frame.payload[: len(partial.begun)]
    sender, second = greeted_sender(), ReceiverSession()
    request = ChunkRequest(frame.id, frame.size, len(partial.begun), partial.length)
    sender.feed(second.request([request], [partial]))
    assert fill(second, encode_hello(hello()) + answers(sender, {frame.id: frame})) == [frame]
    assert first.payload_bytes + second.payload_bytes == len(frame.payload)


def test_a_chunk_that_was_packed_anew_meanwhile_comes_whole() -> None:
    frame = raw_frame(raw_chunk(1, 5_000))
    partial = PartialChunk(frame.id, frame.size, Codec.ZSTD, 4_000, bytes(1_000))
    sender, receiver = greeted_sender(), ReceiverSession()
    sender.feed(receiver.request([ChunkRequest(frame.id, frame.size, 1_000, 4_000)], [partial]))
    assert fill(receiver, encode_hello(hello()) + answers(sender, {frame.id: frame})) == [frame]


def test_beginnings_that_a_connection_did_not_come_to_are_given_back() -> None:
    frames = [raw_frame(raw_chunk(number, 5_000)) for number in range(3)]
    held = [PartialChunk(one.id, one.size, Codec.RAW, one.size, one.payload[:10]) for one in frames]
    session = ReceiverSession()
    session.request([ChunkRequest(one.id, one.size, 10, one.size) for one in frames], held)
    fill(session, encode_hello(hello()) + chunk_record(frames[0], offset=10) + chunk_record(frames[1], offset=10)[:70])
    partial = session.partial()
    assert partial is not None
    assert partial.id == frames[1].id
    assert partial.begun[:10] == frames[1].payload[:10]
    assert session.unused() == [held[2]]


def test_a_refusal_is_read_and_kept_short() -> None:
    session = ReceiverSession()
    fill(session, encode_refused(BulkRefused(rule="ticket", reason="x" * 2_000, code="E" * 90)))
    assert session.refused == BulkRefused(rule="ticket", reason="x" * 500, code="E" * 16)


def test_of_a_chunk_of_which_only_the_head_has_come_nothing_is_kept() -> None:
    frame = raw_frame(raw_chunk(1, 5_000))
    session = expecting(frame)
    assert session.partial() is None
    fill(session, chunk_record(frame)[:50])
    assert session.partial() is None
    fill(session, chunk_record(frame)[50:51])
    partial = session.partial()
    assert partial is not None
    assert partial.begun == frame.payload[:1]


_GOOD = raw_frame(raw_chunk(1, 3_000))
_OTHER = raw_frame(raw_chunk(2, 3_000))
_LARGER = ChunkFrame(_GOOD.id, 3_001, Codec.RAW, _GOOD.payload + b"x")
_HOSTILE_CHUNKS = {
    "a chunk that nobody requested": chunk_record(_OTHER),
    "another size than the wanted one": chunk_record(_LARGER),
    "a payload that is longer than its head says": chunk_record(_GOOD, length=4_000),
    "a payload that is shorter than its head says": chunk_record(_GOOD, length=2_000),
    "a continuation that nobody requested": chunk_record(_GOOD, offset=100),
    "an impossible head": record(RecordKind.CHUNK, bytes(45)),
    "a second greeting": encode_hello(hello()),
    "a request": encode_requests([ChunkRequest(_GOOD.id, 1)]),
    "a kind that does not exist": record(9, b"x"),
    "a refusal that is none": record(RecordKind.REFUSED, b"\xc1"),
    "a refusal of a megabyte": record(RecordKind.REFUSED, b"", length=1024 * 1024),
    "the same chunk twice": chunk_record(_GOOD) * 2,
    "more after a refusal": encode_refused(BulkRefused(rule="x", reason="y")) * 2,
}


@pytest.mark.parametrize("hostile", _HOSTILE_CHUNKS)
def test_a_receiver_takes_nothing_that_it_did_not_request(hostile: str) -> None:
    session = expecting(_GOOD)
    with pytest.raises(BulkFault):
        fill(session, _HOSTILE_CHUNKS[hostile])


def test_a_receiver_takes_no_chunk_before_the_greeting() -> None:
    session = ReceiverSession()
    session.request([ChunkRequest(_GOOD.id, _GOOD.size)])
    with pytest.raises(BulkFault, match="does not greet"):
        fill(session, chunk_record(_GOOD))


def test_a_continuation_must_fit_to_what_is_held() -> None:
    session = ReceiverSession()
    held = PartialChunk(_GOOD.id, _GOOD.size, Codec.ZSTD, _GOOD.size, _GOOD.payload[:100])
    session.request([ChunkRequest(_GOOD.id, _GOOD.size, 100, _GOOD.size)], [held])
    with pytest.raises(BulkFault, match="another one"):
        fill(session, encode_hello(hello()) + chunk_record(_GOOD, offset=100))


_HOSTILE_RECEIVERS = {
    "a request before the greeting": encode_requests([ChunkRequest(_GOOD.id, 1)]),
    "a greeting without a ticket": encode_hello(hello()),
    "a greeting with half a kilobyte of ticket": encode_hello(hello(ticket=b"t" * 512)),
    "a greeting that is none": record(RecordKind.HELLO, b"\xc1"),
    "a greeting of a megabyte": record(RecordKind.HELLO, b"", length=HELLO_BYTES_MAX + 1),
}
_HOSTILE_REQUESTS = {
    "a chunk": chunk_record(_GOOD),
    "a second greeting": encode_hello(hello(ticket=TICKET)),
    "half a request": record(RecordKind.REQUEST, bytes(40)),
    "no request": record(RecordKind.REQUEST, b""),
    "a request of a megabyte": record(RecordKind.REQUEST, b"", length=1024 * 1024),
    "a chunk of no bytes": encode_requests([ChunkRequest(_GOOD.id, 0)]),
    "a chunk of three megabytes": encode_requests([ChunkRequest(_GOOD.id, 3 * 1024 * 1024)]),
    "a chunk from behind its end": encode_requests([ChunkRequest(_GOOD.id, 10, 10, 10)]),
    "a payload of three megabytes": encode_requests([ChunkRequest(_GOOD.id, 10, 0, 3 * 1024 * 1024)]),
    "too many at once": encode_requests([ChunkRequest(_GOOD.id, 10)] * (REQUESTED_MAX + 1)),
}


@pytest.mark.parametrize("hostile", _HOSTILE_RECEIVERS)
def test_a_sender_takes_nothing_but_a_greeting_first(hostile: str) -> None:
    with pytest.raises(BulkFault):
        SenderSession().feed(_HOSTILE_RECEIVERS[hostile])


@pytest.mark.parametrize("hostile", _HOSTILE_REQUESTS)
def test_a_sender_takes_no_impossible_requests(hostile: str) -> None:
    session = greeted_sender()
    with pytest.raises(BulkFault):
        session.feed(_HOSTILE_REQUESTS[hostile])


def test_a_receiver_that_lies_about_sizes_makes_the_sender_read_no_more_than_one_batch() -> None:
    frames = frames_of([200_000] * 100)
    session = greeted_sender()
    session.feed(encode_requests([ChunkRequest(name, 1) for name in frames]))
    batch = session.next_batch()
    assert len(batch) == READ_CHUNKS_MAX
    with pytest.raises(BulkFault, match="requested a chunk of 1 bytes that has 200000"):
        session.encode(batch[0], frames[batch[0].id])


def test_a_batch_is_about_as_much_as_is_read_at_once() -> None:
    session = greeted_sender()
    session.feed(encode_requests([ChunkRequest(bytes([number]) * 32, CHUNK_BYTES_MAX) for number in range(7)]))
    sizes = []
    while batch := session.next_batch():
        sizes.append(sum(request.size for request in batch))
    assert sum(sizes) == 7 * CHUNK_BYTES_MAX
    assert max(sizes) <= READ_BYTES_MAX


def test_many_requests_are_several_records() -> None:
    session = greeted_sender()
    wanted = [ChunkRequest(number.to_bytes(32, "big"), 1) for number in range(2 * REQUEST_CHUNKS_MAX + 1)]
    session.feed(encode_requests(wanted))
    assert len(session) == len(wanted)
    assert session.next_batch() == wanted[:READ_CHUNKS_MAX]


def test_small_chunks_leave_with_their_head_and_large_ones_are_not_copied() -> None:
    session = greeted_sender()
    small, large = raw_frame(raw_chunk(1, 1_000)), raw_frame(raw_chunk(2, 100_000))
    head, rest = session.encode(ChunkRequest(small.id, small.size), small)
    assert (head.endswith(small.payload), len(rest)) == (True, 0)
    head, rest = session.encode(ChunkRequest(large.id, large.size), large)
    assert rest.obj is large.payload
