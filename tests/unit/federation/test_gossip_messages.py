"""What goes over the wire: every message survives it, and nothing beyond its limits is read."""

from __future__ import annotations

import msgspec
import pytest

from harch.federation.gossip.messages import (
    HUBS_MAX,
    MESSAGE_BYTES_MAX,
    VALUE_BYTES_MAX,
    GossipAck,
    GossipEntry,
    GossipHeartbeat,
    HubDelta,
    KnownVersions,
    Message,
    Push,
    Syn,
    SynAck,
    decode,
    encode,
)

SIGNATURE = b"s" * 64
HEARTBEAT = GossipHeartbeat(1, 2, 3, 0, b"f" * 16, SIGNATURE)
DELTA = HubDelta(
    "dakhla", HEARTBEAT, 1, 0, (GossipEntry("a", 2, b"1", SIGNATURE), GossipEntry("b", 3, None, SIGNATURE))
)
DIGEST = {"dakhla": KnownVersions(1, 2, 3, 0), "dakar": KnownVersions()}


@pytest.mark.parametrize(
    "message", [Syn(1, DIGEST), SynAck(1, (DELTA,), DIGEST), GossipAck((DELTA, DELTA)), Push(DELTA)]
)
def test_every_message_survives_the_wire(message: Message) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        Push(HubDelta("", HEARTBEAT, 0, 0, ())),
        Push(HubDelta("h" * 65, HEARTBEAT, 0, 0, ())),
        Push(HubDelta("h", HEARTBEAT, -1, 0, ())),
        Push(HubDelta("h", HEARTBEAT, 0, 0, (GossipEntry("", 1, b"", SIGNATURE),))),
        Push(HubDelta("h", HEARTBEAT, 0, 0, (GossipEntry("a", 1, b"x" * (VALUE_BYTES_MAX + 1), SIGNATURE),))),
        Push(HubDelta("h", HEARTBEAT, 0, 0, (GossipEntry("a", 1, b"", b"short"),))),
        Push(HubDelta("h", GossipHeartbeat(1, 2, 3, 0, b"short", SIGNATURE), 0, 0, ())),
        Syn(1, {f"hub{number}": KnownVersions() for number in range(HUBS_MAX + 1)}),
    ],
)
def test_what_is_beyond_a_limit_is_not_read(message: Message) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(encode(message))


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", encode(Push(DELTA))[:-1], msgspec.msgpack.encode([5, 1]), b"\x00" * (MESSAGE_BYTES_MAX + 1)]
)
def test_what_is_no_message_is_not_read(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(data)
