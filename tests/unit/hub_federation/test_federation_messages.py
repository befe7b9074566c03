"""Everything that hubs say travels as bytes and comes out the same; nothing else is understood."""

from __future__ import annotations

import msgspec
import pytest

from harch.federation import offers as o
from harch.federation.gossip import messages as gossip
from harch.federation.identity import members as identity
from harch.federation.identity.members import Address
from harch.hub.federation.messages import (
    Encoder,
    ErrorReply,
    LogReply,
    LogRequest,
    PeerMessage,
    PieceReply,
    PieceRequest,
    TelemetryReply,
    TelemetryRequest,
    WorkReply,
    WorkRequest,
    decode,
)
from unit.hub_federation.samples import GRANT, LEASE, ROW

MESSAGES: tuple[PeerMessage, ...] = (
    gossip.Syn(1, {"dakar": gossip.KnownVersions(2, 3, 4, 0)}),
    gossip.GossipAck(()),
    o.Grants((GRANT,)),
    o.Granted(taken=(LEASE,), refused=((LEASE, "no"),)),
    o.Bids(number=4, bids=(o.CapacityBid(ref=0, bid_id="b"),), refusals={1: "no room"}),
    o.LeaseRenewed(number=1, leases=(LEASE,)),
    identity.CertificateRenewed(b"certificate"),
    identity.RenewRequest(b"request", Address("10.0.0.7", 7721)),
    WorkRequest(number=1, tenant=None),
    WorkReply(number=1, rows=(ROW,), total=7),
    LogRequest(number=2, workload_id="wl_1", attempt=None, rank=0, offset=-10, bytes_max=100),
    LogReply(number=2, offset=5, data=b"\x00\xff", eof=True),
    TelemetryRequest(number=3, question=b"q", within_s=10.0),
    TelemetryReply(number=3, answer_id="ans_1", bytes_total=7, data=b"begin"),
    PieceRequest(number=4, answer_id="ans_1", offset=5),
    PieceReply(number=4, data=b"\xff\x00"),
    ErrorReply(number=2, code="E0301", message="no"),
)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_what_is_said_is_what_is_heard(message: PeerMessage) -> None:
    heard = decode(Encoder().encode(message))
    assert (type(heard), heard) == (type(message), message)


@pytest.mark.parametrize("body", [b"", b"\x00", b"\x93\x09\x01\x02", msgspec.msgpack.encode({"type": "unknown"})])
def test_anything_else_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(body)


def test_one_message_for_many_is_encoded_once() -> None:
    encoder = Encoder()
    first, second = encoder.encode(MESSAGES[0]), encoder.encode(MESSAGES[0])
    assert first is second
    assert encoder.encode(MESSAGES[1]) != first
