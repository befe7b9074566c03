"""Who gets chunks? Real TLS on loopback: members with a valid certificate and a ticket of their own, and those only."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from bulk_world import (
    HOST,
    QUICK,
    Hub,
    RawPeer,
    Sink,
    WatchedClock,
    federation,
    fetch_all,
    random_chunks,
    refs,
    serving,
    until,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from harch.base.clock import SystemClock
from harch.base.errors import HarchError
from harch.base.listen.gate import ConnectionGate, ListenLimits
from harch.content.frames import ChunkFrame, Codec
from harch.content.model import ChunkRef
from harch.federation.bulk import server as server_module
from harch.federation.bulk.fetch import FAULTS_MAX, FetchSettings
from harch.federation.bulk.limits import BulkLimits, TransferClass
from harch.federation.bulk.protocol import (
    BULK_VERSION,
    BulkHello,
    BulkRefused,
    ChunkRequest,
    encode_hello,
    encode_requests,
)
from harch.federation.bulk.sockets import TlsContexts, certificate_of
from harch.federation.identity.authority import FederationAuthority
from harch.federation.identity.certificates import issue, make_request
from harch.federation.identity.hub_identity import HubIdentity, client_context
from harch.federation.identity.members import HubName
from harch.federation.links.frames import PROTOCOL_VERSION, LinkHello
from harch.testing.clock import SimClock

CHUNKS = random_chunks(12)
WITHIN_S = 20.0


@pytest.fixture
def ids(tmp_path: Path) -> dict[str, HubIdentity]:
    return federation(tmp_path, "dakar", "abidjan", "tangier")


@pytest.fixture
def hub(ids: dict[str, HubIdentity]) -> Iterator[Hub]:
    one = Hub(ids["dakar"], CHUNKS)
    with serving(one):
        yield one


def certify(identity: HubIdentity, authority: HubIdentity, name: HubName, *, age: timedelta = timedelta(0)) -> None:
    """Gives a hub a certificate that the authority's code would not give, signed by its real key."""
    key = Ed25519PrivateKey.generate()
    certificate = issue(
        name,
        make_request(name, key),
        authority=authority.authority,
        key=authority.folder.authority_key(),
        now=SystemClock().now() - age,
        life=timedelta(days=7),
    )
    identity.folder.write_hub(certificate, key)


def renew(identity: HubIdentity, authority: HubIdentity) -> None:
    request = identity.request_certificate()
    identity.install(FederationAuthority(authority).certify(identity.hub_id, request, now=SystemClock().now()))


def refused(run: Callable[[], object], words: str, code: str = "E1140") -> None:
    with pytest.raises(HarchError, match=words) as caught:
        run()
    assert caught.value.code == code


@contextmanager
def impostor(context: ssl.SSLContext, answer: Callable[[ssl.SSLSocket], None]) -> Iterator[int]:
    """A server that does as it likes with each connection, one after the other."""
    listener = socket.create_server((HOST, 0))

    def serve() -> None:
        while True:
            try:
                raw, _ = listener.accept()
            except OSError:
                return
            with raw:
                try:
                    with context.wrap_socket(raw, server_side=True) as secured:
                        answer(secured)
                except OSError:
                    continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


# Who may fetch


def test_a_ticket_that_never_was_is_refused_with_the_reason(ids: dict[str, HubIdentity], hub: Hub) -> None:
    refused(lambda: fetch_all(ids["abidjan"], hub, ticket=b"x" * 32), "abidjan shows a ticket that does not hold")
    assert set(hub.server.traffic()["abidjan"].refused) == {"ticket"}


def test_the_ticket_of_another_hub_opens_nothing(ids: dict[str, HubIdentity], hub: Hub) -> None:
    stolen = hub.ticket("tangier")
    refused(lambda: fetch_all(ids["abidjan"], hub, ticket=stolen), "a ticket that does not hold")
    assert fetch_all(ids["tangier"], hub, ticket=stolen).chunks == 12


def test_an_expired_ticket_opens_nothing(ids: dict[str, HubIdentity], hub: Hub) -> None:
    old = hub.ticket("abidjan", now=SystemClock().now() - timedelta(hours=2))
    refused(lambda: fetch_all(ids["abidjan"], hub, ticket=old), "a ticket that does not hold")


def test_a_chunk_outside_of_the_grant_ends_the_connection_and_is_counted(ids: dict[str, HubIdentity], hub: Hub) -> None:
    permitted, *others = refs(CHUNKS)
    with RawPeer(hub, ids["abidjan"]) as peer:
        peer.greet(hub.ticket("abidjan", [permitted.id]))
        peer.request(permitted)
        assert peer.frames(1) == [CHUNKS[permitted.id]]
        peer.request(permitted, others[0])
        assert peer.frames(1) == []  # not even the permitted one beside it
        refusal = peer.end()
    assert refusal == BulkRefused(rule="protocol", reason="requested a chunk that its ticket does not permit")
    assert hub.server.traffic()["abidjan"].refused == {"protocol": 1}
    assert hub.server.traffic()["abidjan"].chunks == 1


def test_a_chunk_that_is_not_there_is_an_error_of_its_own(ids: dict[str, HubIdentity], hub: Hub) -> None:
    absent = ChunkRef(b"n" * 32, 100)
    ticket = hub.ticket("abidjan", [absent.id])
    refused(lambda: fetch_all(ids["abidjan"], hub, ticket=ticket, wanted=[absent]), "is not here", "E1102")


def test_without_a_certificate_nobody_is_greeted_also_not_by_the_hub_of_the_authority(
    ids: dict[str, HubIdentity], hub: Hub
) -> None:
    assert ids["dakar"].folder.has_authority
    context = client_context(ids["dakar"].authority, None)
    with socket.create_connection((HOST, hub.server.port)) as raw, context.wrap_socket(raw) as secured:
        secured.settimeout(WITHIN_S)
        with pytest.raises(ssl.SSLError, match="certificate required"):
            secured.recv(1)
    assert hub.server.traffic() == {}


def test_a_hub_of_another_federation_is_refused_by_both_sides(tmp_path: Path, ids: dict[str, HubIdentity]) -> None:
    theirs = federation(tmp_path / "theirs", "dakar")
    stranger = Hub(theirs["dakar"], CHUNKS)
    settings = FetchSettings(give_up_s=0.3)
    with serving(stranger):
        refused(lambda: fetch_all(ids["abidjan"], stranger, settings=settings), "certificate verify failed")
    ours = Hub(ids["dakar"], CHUNKS)
    context = client_context(theirs["dakar"].authority, theirs["dakar"].folder.hub_file)
    context.verify_mode = ssl.CERT_NONE
    with serving(ours), socket.create_connection((HOST, ours.server.port)) as raw, context.wrap_socket(raw) as secured:
        secured.settimeout(WITHIN_S)
        with pytest.raises(ssl.SSLError, match="unknown ca"):
            secured.recv(1)


def test_a_greeting_must_name_the_hub_of_the_certificate(ids: dict[str, HubIdentity], hub: Hub) -> None:
    with RawPeer(hub, ids["abidjan"]) as peer:
        peer.greet(hub.ticket("tangier"), hub_id="tangier")
        refusal = peer.end()
    assert refusal is not None
    assert refusal.reason == "the certificate names spiffe://harch.internal/hub/abidjan, the greeting tangier"
    assert hub.server.traffic()["abidjan"].refused == {"certificate": 1}


def test_an_expired_certificate_is_refused(ids: dict[str, HubIdentity], hub: Hub) -> None:
    certify(ids["abidjan"], ids["dakar"], ids["abidjan"].name, age=timedelta(days=8))
    late = HubIdentity(ids["abidjan"].folder)
    refused(lambda: fetch_all(late, hub, settings=FetchSettings(give_up_s=0.3)), "no progress")
    assert hub.server.traffic() == {}


def test_a_hub_that_speaks_another_version_is_refused_with_the_reason(ids: dict[str, HubIdentity], hub: Hub) -> None:
    with RawPeer(hub, ids["abidjan"]) as peer:
        peer.greet(hub.ticket("abidjan"), version=99)
        assert peer.end() == BulkRefused(rule="version", reason=f"version 99; this hub knows {BULK_VERSION}")


def test_a_hub_of_another_trust_domain_is_refused(ids: dict[str, HubIdentity], hub: Hub) -> None:
    with RawPeer(hub, ids["abidjan"]) as peer:
        elsewhere = LinkHello(protocol_version=PROTOCOL_VERSION, hub_id="abidjan", trust_domain="elsewhere.example")
        peer.sock.sendall(encode_hello(BulkHello(version=BULK_VERSION, hub=elsewhere, ticket=hub.ticket("abidjan"))))
        refusal = peer.end()
    assert refusal is not None
    assert refusal.rule == "trust_domain"


def test_a_class_that_the_link_does_not_carry_is_refused(ids: dict[str, HubIdentity], hub: Hub) -> None:
    hub.limits = BulkLimits(1e9, 10, dedicated=True)
    ahead = hub.ticket("abidjan", transfer_class=TransferClass.BACKGROUND)
    refused(lambda: fetch_all(ids["abidjan"], hub, ticket=ahead), "dedicated to state", "E1141")
    assert fetch_all(ids["abidjan"], hub).chunks == 12


# Whom to fetch from


def test_a_ticket_is_shown_to_no_other_hub_than_the_expected_one(ids: dict[str, HubIdentity]) -> None:
    seen = bytearray()
    with impostor(TlsContexts(ids["tangier"]).server(), lambda sock: seen.extend(sock.recv(4096))) as port:
        hub = Hub(ids["dakar"], CHUNKS)
        refused(lambda: fetch_all(ids["abidjan"], hub, port=port), "dakar was dialled, tangier answered")
    assert not seen


def test_nothing_is_fetched_from_a_retired_hub(ids: dict[str, HubIdentity], hub: Hub) -> None:
    FederationAuthority(ids["dakar"]).retire("tangier", now=SystemClock().now())
    ids["abidjan"].learn(ids["dakar"].roster.records())
    retired = Hub(ids["tangier"], CHUNKS)
    with serving(retired):
        refused(lambda: fetch_all(ids["abidjan"], retired), "tangier has been retired")


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (lambda frame: frame._replace(id=bytes(32)), "was not requested"),
        (lambda frame: frame._replace(size=frame.size - 1, payload=frame.payload[1:]), "where 400000 were wanted"),
    ],
    ids=["another chunk", "another size"],
)
def test_a_peer_that_sends_what_nobody_wants_is_given_up(
    ids: dict[str, HubIdentity], lie: Callable[[ChunkFrame], ChunkFrame], words: str
) -> None:
    hub = Hub(ids["dakar"], CHUNKS)
    session_class = server_module.SenderSession

    class Lying(session_class):
        def encode(self, request: ChunkRequest, frame: ChunkFrame) -> tuple[bytes, memoryview]:
            changed = lie(frame)
            return super().encode(request._replace(size=changed.size), changed)

    sink = Sink()
    server_module.SenderSession = Lying
    try:
        with serving(hub):
            refused(lambda: fetch_all(ids["abidjan"], hub, sink=sink, settings=FetchSettings(connections=1)), words)
    finally:
        server_module.SenderSession = session_class
    assert sink.frames == {}
    assert hub.server.traffic()["abidjan"].connections == FAULTS_MAX


def test_bytes_that_are_not_what_their_name_says_are_never_stored(ids: dict[str, HubIdentity]) -> None:
    hub = Hub(ids["dakar"], CHUNKS)
    wanted, bad = refs(CHUNKS), refs(CHUNKS)[5].id
    hub.source.frames[bad] = ChunkFrame(bad, 400_000, Codec.RAW, bytes(400_000))
    sink = Sink()
    with serving(hub):
        refused(lambda: fetch_all(ids["abidjan"], hub, sink=sink, wanted=wanted), "arrived damaged 2 times", "E1101")
    assert bad not in sink.frames
    assert all(sink.frames[name] == CHUNKS[name] for name in sink.frames)


def test_bytes_that_were_damaged_once_are_fetched_again(ids: dict[str, HubIdentity]) -> None:
    hub, sink = Hub(ids["dakar"], CHUNKS), Sink()
    bad = refs(CHUNKS)[5].id
    hub.source.frames[bad] = ChunkFrame(bad, 400_000, Codec.RAW, bytes(400_000))
    reads = iter(range(1_000))

    def mend() -> None:
        if next(reads) >= 3:
            hub.source.frames[bad] = CHUNKS[bad]

    hub.source.before_read = mend
    with serving(hub):
        report = fetch_all(ids["abidjan"], hub, sink=sink, settings=FetchSettings(connections=1))
    assert sink.frames == CHUNKS
    assert (report.damaged, report.bytes_repeated) == (1, 400_000)


# What holds while connections are open


def paused(hub: Hub, then: Callable[[], None], after_reads: int = 1) -> None:
    """Does something in the middle of a transfer."""
    reads = iter(range(1_000))
    hub.source.before_read = lambda: then() if next(reads) == after_reads else None


def test_a_hub_that_is_retired_meanwhile_is_cut_off(ids: dict[str, HubIdentity]) -> None:
    clock = SimClock(SystemClock().now())
    hub = Hub(ids["dakar"], CHUNKS, clock=clock)
    with serving(hub), RawPeer(hub, ids["abidjan"]) as peer:
        peer.greet(hub.ticket("abidjan"))
        peer.request(refs(CHUNKS)[0])
        assert len(peer.frames(1)) == 1
        FederationAuthority(ids["dakar"]).retire("abidjan", now=SystemClock().now())
        clock.jump(2)
        peer.end()
        refused(lambda: fetch_all(ids["abidjan"], hub, settings=QUICK), "abidjan has been retired")
        assert hub.server.traffic()["abidjan"].refused["member"] >= 2


def test_an_open_connection_ends_with_the_certificate_of_its_peer(ids: dict[str, HubIdentity]) -> None:
    clock = SimClock(ids["abidjan"].certificate.not_after - timedelta(seconds=5))
    hub = Hub(ids["dakar"], CHUNKS, clock=clock)
    with serving(hub), RawPeer(hub, ids["abidjan"]) as peer:
        peer.greet(hub.ticket("abidjan"))
        peer.request(refs(CHUNKS)[0])
        assert len(peer.frames(1)) == 1
        clock.jump(6)
        peer.end()
    assert hub.server.traffic()["abidjan"].refused == {"certificate": 1}


def test_a_transfer_goes_on_with_renewed_certificates_at_both_ends(ids: dict[str, HubIdentity], hub: Hub) -> None:
    assert fetch_all(ids["abidjan"], hub).chunks == 12
    for name in ("dakar", "abidjan"):
        renew(ids[name], ids["dakar"])
    with RawPeer(hub, ids["abidjan"]) as peer:
        shown = certificate_of(peer.sock)
        assert shown is not None
        assert shown.not_after == ids["dakar"].certificate.not_after
        peer.greet(hub.ticket("abidjan"))
        peer.request(refs(CHUNKS)[0])
        assert len(peer.frames(1)) == 1
    assert fetch_all(ids["abidjan"], hub).chunks == 12


def test_a_certificate_that_ends_in_the_middle_of_a_transfer_ends_its_connections(
    ids: dict[str, HubIdentity], hub: Hub
) -> None:
    clock = WatchedClock(ids["dakar"].certificate.not_after - timedelta(seconds=5))
    hub.source.before_read = lambda: clock.jump_and_be_seen(6)

    def wait_long() -> float:
        clock.jump(30)
        return 1.0

    words = "no progress for 60 s: the certificate of dakar has expired"
    settings = FetchSettings(connections=1, silence_s_max=1e9)
    refused(lambda: fetch_all(ids["abidjan"], hub, clock=clock, jitter=wait_long, settings=settings), words)


def test_a_dropped_peer_and_an_ended_transfer_lose_their_connections(ids: dict[str, HubIdentity], hub: Hub) -> None:
    first, second = hub.ticket("abidjan"), hub.ticket("abidjan")
    with RawPeer(hub, ids["abidjan"]) as one, RawPeer(hub, ids["abidjan"]) as other:
        for peer, ticket in ((one, first), (other, second)):
            peer.greet(ticket)
            peer.request(refs(CHUNKS)[0])
            assert len(peer.frames(1)) == 1
        hub.server.end_transfer(first, "it was stopped")
        one.end()
        other.request(refs(CHUNKS)[1])
        assert len(other.frames(1)) == 1
        hub.server.drop("abidjan", "it has left")
        other.end()


# Limits


def test_a_peer_has_a_limited_number_of_connections_and_still_gets_everything(ids: dict[str, HubIdentity]) -> None:
    hub, sink = Hub(ids["dakar"], CHUNKS, per_peer_max=2), Sink()
    with serving(hub):
        report = fetch_all(ids["abidjan"], hub, sink=sink, settings=FetchSettings(connections=4))
    assert sink.frames == CHUNKS
    assert hub.server.traffic()["abidjan"].refused["busy"] >= 1
    assert report.chunks == 12


def test_who_never_greets_is_not_waited_for(ids: dict[str, HubIdentity]) -> None:
    clock = SimClock(SystemClock().now())
    hub = Hub(ids["dakar"], CHUNKS, clock=clock)
    with (
        serving(hub),
        RawPeer(hub, ids["abidjan"]) as mute,
        socket.create_connection((HOST, hub.server.port), timeout=WITHIN_S) as plain,
    ):
        until(lambda: hub.server.connections == 2)
        clock.jump(6)
        mute.end()
        assert plain.recv(100) == b""
    assert hub.server.connections == 0


def test_a_receiver_that_requests_nothing_more_is_let_go(ids: dict[str, HubIdentity]) -> None:
    clock = SimClock(SystemClock().now())
    hub = Hub(ids["dakar"], CHUNKS, clock=clock)
    with serving(hub), RawPeer(hub, ids["abidjan"]) as peer:
        peer.greet(hub.ticket("abidjan"))
        peer.request(refs(CHUNKS)[0])
        assert len(peer.frames(1)) == 1
        clock.jump(server_module.IDLE_S_MAX + 1)
        peer.end()


def test_a_receiver_that_takes_nothing_is_let_go(ids: dict[str, HubIdentity]) -> None:
    clock = SimClock(SystemClock().now())
    frames = random_chunks(60, 1_000_000)
    hub = Hub(ids["dakar"], frames, clock=clock)
    with serving(hub), RawPeer(hub, ids["abidjan"]) as peer:
        peer.greet(hub.ticket("abidjan"))
        peer.request(*refs(frames))
        assert len(peer.frames(1)) == 1
        while hub.server.connections:
            clock.jump(server_module.STALLED_S_MAX)
            threading.Event().wait(0.02)
    assert hub.server.traffic()["abidjan"].refused["idle"] == 1


def test_strangers_cannot_lock_peers_out(ids: dict[str, HubIdentity]) -> None:
    """Connections that say nothing give way, the oldest first."""
    gate = ConnectionGate("bulk", ListenLimits(connections_max=8, connections_per_address_max=8), descriptors=10_000)
    hub, sink = Hub(ids["dakar"], CHUNKS, gate=gate), Sink()
    with serving(hub):
        mute = [socket.create_connection((HOST, hub.server.port)) for _ in range(12)]
        fetch_all(ids["abidjan"], hub, sink=sink)
        for sock in mute:
            sock.close()
    assert sink.frames == CHUNKS
    assert gate.refused["evicted"] >= 4
    assert gate.open == 0


def test_more_strangers_than_threads_are_wanted_for_make_the_oldest_go(ids: dict[str, HubIdentity]) -> None:
    hub = Hub(ids["dakar"], CHUNKS, clock=SimClock(SystemClock().now()))
    with serving(hub), RawPeer(hub, ids["abidjan"]) as known:
        known.greet(hub.ticket("abidjan"))
        known.request(refs(CHUNKS)[0])
        assert len(known.frames(1)) == 1
        mute = [socket.create_connection((HOST, hub.server.port)) for _ in range(server_module.UNIDENTIFIED_MAX + 3)]
        mute[0].settimeout(WITHIN_S)
        assert mute[0].recv(1) == b""
        known.request(refs(CHUNKS)[1])
        assert len(known.frames(1)) == 1
        for sock in mute:
            sock.close()


def test_all_peers_together_have_a_limited_number_of_connections(
    ids: dict[str, HubIdentity], hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "CONNECTIONS_MAX", 1)
    with RawPeer(hub, ids["abidjan"]) as first, RawPeer(hub, ids["tangier"]) as second:
        first.greet(hub.ticket("abidjan"))
        first.request(refs(CHUNKS)[0])
        assert len(first.frames(1)) == 1
        second.greet(hub.ticket("tangier"))
        assert second.end() == BulkRefused(rule="busy", reason="too many bulk connections at once")


@pytest.mark.parametrize(
    "noise", [b"GET / HTTP/1.1\r\n\r\n", encode_requests([ChunkRequest(bytes(32), 1)]), b"\x00\x00\x00\x00\x02\xa1\xff"]
)
def test_a_peer_that_misbehaves_loses_its_own_connection_only(
    ids: dict[str, HubIdentity], hub: Hub, noise: bytes
) -> None:
    with RawPeer(hub, ids["tangier"]) as good, RawPeer(hub, ids["abidjan"]) as bad:
        good.greet(hub.ticket("tangier"))
        bad.sock.sendall(noise)
        bad.end()
        good.request(refs(CHUNKS)[0])
        assert len(good.frames(1)) == 1


def test_a_source_that_fails_ends_one_connection_and_the_server_goes_on(ids: dict[str, HubIdentity], hub: Hub) -> None:
    def stumble() -> None:
        raise RuntimeError("the store is upside down")

    paused(hub, stumble, after_reads=0)
    sink = Sink()
    fetch_all(ids["abidjan"], hub, sink=sink)
    assert sink.frames == CHUNKS
    assert hub.server.traffic()["abidjan"].refused == {"fault": 1}
