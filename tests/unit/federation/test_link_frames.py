"""How is a stream cut into frames, and what waits to be sent?"""

from __future__ import annotations

import contextlib
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.federation.identity.members import HubName
from harch.federation.links.frames import (
    BODY_BYTES_MAX,
    FIRST_BODY_BYTES_MAX,
    Bye,
    Control,
    FrameKind,
    FrameReader,
    FrameTooLarge,
    LinkHello,
    LinkPing,
    LinkPong,
    LinkRefused,
    Outbox,
    Parted,
    decode_control,
    encode_control,
    frame,
    refusal,
)

_bodies = st.lists(st.tuples(st.sampled_from(list(FrameKind)), st.binary(max_size=300)), max_size=20)


@given(_bodies, st.data())
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(
    bodies: list[tuple[FrameKind, bytes]], data: st.DataObject
) -> None:
    stream = b"".join(frame(kind, body) for kind, body in bodies)
    reader, read, at = FrameReader(), [], 0
    while at < len(stream):
        step = data.draw(st.integers(1, len(stream) - at))
        read += reader.feed(stream[at : at + step])
        at += step
    assert read == bodies
    assert reader.fault == ""


@given(st.binary(max_size=2000))
def test_any_bytes_are_read_without_an_error_and_within_the_limit(noise: bytes) -> None:
    reader = FrameReader()
    for _, body in reader.feed(noise):
        assert len(body) <= FIRST_BODY_BYTES_MAX


def test_a_frame_above_the_limit_is_a_fault_once_it_is_announced() -> None:
    reader = FrameReader()
    announced = struct.pack("!IB", FIRST_BODY_BYTES_MAX + 1, 0)
    assert reader.feed(frame(FrameKind.MESSAGE, b"good") + announced) == [(FrameKind.MESSAGE, b"good")]
    assert "the limit is 65536" in reader.fault
    reader = FrameReader()
    reader.body_bytes_max = BODY_BYTES_MAX
    assert reader.feed(announced) == []
    assert reader.fault == ""
    with pytest.raises(FrameTooLarge):
        frame(FrameKind.MESSAGE, b"x" * (BODY_BYTES_MAX + 1))


@pytest.mark.parametrize(
    "message",
    [
        LinkHello(protocol_version=1, hub_id="dakar", trust_domain="d", features=("authority",), introduction=b"x"),
        LinkRefused("version", "why"),
        LinkPing(0),
        LinkPing(2**40),
        LinkPong(7),
        Bye(),
        Parted(),
    ],
)
def test_what_links_say_survives_the_wire(message: Control) -> None:
    assert decode_control(encode_control(message)) == message


@given(st.binary(max_size=100))
def test_other_bytes_are_a_decode_error_and_nothing_else(noise: bytes) -> None:
    with contextlib.suppress(msgspec.DecodeError):
        decode_control(noise)


def test_a_greeting_of_a_later_version_is_understood_well_enough_to_refuse_it() -> None:
    later = {"type": "hello", "protocol_version": 2, "hub_id": "dakar", "trust_domain": "d", "compression": ["zstd"]}
    hello = decode_control(msgspec.msgpack.encode(later))
    assert isinstance(hello, LinkHello)
    refused = refusal(hello, own=HubName("d", "dakhla"), certified=HubName("d", "dakar"), expected=None)
    assert refused == LinkRefused("version", "dakar speaks protocol version 2; dakhla speaks version 1 only")


@pytest.mark.parametrize(
    ("said", "certified", "expected", "rule"),
    [
        ({}, HubName("d", "dakar"), "dakar", ""),
        ({}, HubName("d", "dakar"), None, ""),
        ({"trust_domain": "e"}, HubName("e", "dakar"), None, "trust_domain"),
        ({}, None, None, "certificate"),
        ({}, HubName("d", "abidjan"), None, "certificate"),
        ({}, HubName("e", "dakar"), None, "certificate"),
        ({}, HubName("d", "dakar"), "abidjan", "certificate"),
        ({"hub_id": "dakhla"}, HubName("d", "dakhla"), None, "itself"),
    ],
)
def test_a_link_needs_one_name_in_all_places(
    said: dict[str, str], certified: HubName | None, expected: str | None, rule: str
) -> None:
    hello = msgspec.structs.replace(LinkHello(protocol_version=1, hub_id="dakar", trust_domain="d"), **said)
    refused = refusal(hello, own=HubName("d", "dakhla"), certified=certified, expected=expected)
    assert (refused.rule if refused else "") == rule


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=50), st.booleans()), max_size=60), st.integers(1, 200))
def test_the_outbox_keeps_order_and_never_holds_more_than_its_limits(
    offered: list[tuple[bytes, bool]], chunk: int
) -> None:
    outbox = Outbox(messages_max=20, bytes_max=400)
    taken = []
    for sent, droppable in offered:
        room = len(outbox) < 20 // (4 if droppable else 1)
        if outbox.put(sent, droppable=droppable):
            assert room
            taken.append(sent)
    assert len(taken) <= 20
    assert sum(map(len, taken)) <= 400
    out = []
    while len(outbox):
        out.append(outbox.take(chunk))
    assert b"".join(out) == b"".join(taken)
    assert outbox.put(b"x" * 400, droppable=False), "what was taken makes room"


def test_gossip_never_takes_the_room_of_work() -> None:
    outbox = Outbox(messages_max=8, bytes_max=1000)
    assert [outbox.put(b"g", droppable=True) for _ in range(3)] == [True, True, False]
    assert [outbox.put(b"w", droppable=False) for _ in range(7)] == [True] * 6 + [False]
    outbox.clear()
    assert len(outbox) == 0
    assert outbox.put(b"g", droppable=True)
