"""Who gets a link? Real TLS on loopback: only members with a valid certificate of the right name."""

from __future__ import annotations

import ssl
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from links_world import (
    Hub,
    Note,
    RawPeer,
    context_without_certificate,
    federation,
    hello_of,
    running,
)

from harch.base.clock import SystemClock
from harch.federation.identity.authority import FederationAuthority
from harch.federation.identity.certificates import issue, make_request
from harch.federation.identity.hub_identity import HubIdentity
from harch.federation.identity.members import HubName
from harch.federation.links.frames import FrameKind, LinkHello, LinkPing, LinkPong, LinkRefused, frame
from harch.testing.clock import SimClock


def certify(
    identity: HubIdentity, authority: HubIdentity, name: HubName, *, age: timedelta = timedelta(0), life_days: float = 7
) -> None:
    """Gives a hub a certificate that the authority's code would not give, signed by its real key."""
    key = Ed25519PrivateKey.generate()
    certificate = issue(
        name,
        make_request(name, key),
        authority=authority.authority,
        key=authority.folder.authority_key(),
        now=SystemClock().now() - age,
        life=timedelta(days=life_days),
    )
    identity.folder.write_hub(certificate, key)


async def test_two_hubs_of_one_federation_exchange_messages_both_ways(tmp_path: Path) -> None:
    ids = federation(tmp_path, "dakar", "abidjan")
    dakar, abidjan = Hub(ids["dakar"], ids["abidjan"]), Hub(ids["abidjan"], ids["dakar"])
    async with running(dakar, abidjan):
        await dakar.until_up("abidjan")
        await abidjan.until_up("dakar")
        assert dakar.mesh.send("abidjan", Note(1, "salut"))
        assert abidjan.mesh.send("dakar", Note(2))
        await abidjan.until(lambda: abidjan.received)
        await dakar.until(lambda: dakar.received)
    assert abidjan.received == [("dakar", Note(1, "salut"))]
    assert dakar.received == [("abidjan", Note(2))]
    assert dakar.news == [("up", "abidjan"), ("down", "abidjan", "this hub ends the link")]


@pytest.mark.parametrize("holder", ["dakar", "abidjan"])
async def test_without_a_certificate_nobody_is_greeted(tmp_path: Path, holder: str) -> None:
    """Also not by the hub that holds the authority, which lets strangers connect in order to join."""
    ids = federation(tmp_path, "dakar", "abidjan")
    hub = Hub(ids[holder])
    async with running(hub):
        peer = await RawPeer.dial(hub, context_without_certificate(ids["dakar"]))
        peer.say(hello_of(ids["abidjan" if holder == "dakar" else "dakar"]))
        answer = await peer.answer()
        if holder == "dakar":
            assert answer == LinkRefused("certificate", "the certificate names no hub")
        else:
            assert answer is None  # TLS itself has ended the connection
        await peer.end()


async def test_without_a_certificate_no_message_is_taken(tmp_path: Path) -> None:
    ids = federation(tmp_path, "dakar")
    hub = Hub(ids["dakar"], on_uncertified=lambda question: b"answer to " + question)
    async with running(hub):
        peer = await RawPeer.dial(hub, context_without_certificate(ids["dakar"]))
        peer.send(Note(1))
        await peer.end()
        stranger = await RawPeer.dial(hub, context_without_certificate(ids["dakar"]))
        stranger.write(frame(FrameKind.UNCERTIFIED, b"who"))
        assert await stranger.frame() == (FrameKind.UNCERTIFIED, b"answer to who")
        stranger.send(Note(2))  # one question, one answer, and that is all
        await stranger.end()
    assert hub.received == []


async def test_a_hub_of_another_federation_is_refused_by_both_sides(tmp_path: Path) -> None:
    ours, theirs = federation(tmp_path / "ours", "dakar"), federation(tmp_path / "theirs", "abidjan")
    dakar, abidjan = Hub(ours["dakar"], theirs["abidjan"]), Hub(theirs["abidjan"], ours["dakar"])
    async with running(dakar, abidjan):
        await dakar.until_trouble("abidjan", "is refused")
        await abidjan.until_trouble("dakar", "is refused")
        # Whoever does not care for our certificate is refused for theirs.
        context = theirs["abidjan"].client_context()
        context.verify_mode = ssl.CERT_NONE
        peer = await RawPeer.dial(dakar, context)
        peer.say(hello_of(ours["dakar"], hub_id="abidjan"))
        assert await peer.answer() is None
    assert dakar.news == []


async def test_a_certificate_of_another_hub_does_not_pass_for_the_one_dialled(tmp_path: Path) -> None:
    ids = federation(tmp_path, "dakar", "abidjan", "tangier")
    certify(ids["tangier"], ids["dakar"], HubName("harch.internal", "abidjan"))
    ids["tangier"] = ids["abidjan"]  # what a thief of abidjan's certificate can say: "I am abidjan"
    dakar = Hub(ids["dakar"])
    dakar.mesh.add_peer("tangier", ids["abidjan"].member.address)  # but tangier was dialled
    thief = Hub(ids["abidjan"])
    async with running(dakar, thief):
        await dakar.until_trouble("tangier", "tangier was dialled, abidjan answered")


async def test_a_greeting_must_name_the_hub_of_the_certificate(tmp_path: Path) -> None:
    ids = federation(tmp_path, "dakar", "abidjan", "tangier")
    dakar = Hub(ids["dakar"])
    async with running(dakar):
        peer = await RawPeer.dial(dakar, ids["abidjan"].client_context())
        peer.say(hello_of(ids["tangier"]))
        refused = await peer.answer()
        await peer.end()
    assert isinstance(refused, LinkRefused)
    assert refused.reason == "the certificate names spiffe://harch.internal/hub/abidjan, the greeting tangier"


async def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    ids = federation(tmp_path, "dakar", "abidjan")
    certify(ids["abidjan"], ids["dakar"], ids["abidjan"].name, age=timedelta(days=8))
    late = HubIdentity(ids["abidjan"].folder)
    dakar, abidjan = Hub(ids["dakar"], late), Hub(late, ids["dakar"])
    async with running(dakar, abidjan):
        await dakar.until_trouble("abidjan", "is refused: certificate has expired")
        await abidjan.until_trouble("dakar", "no greeting")
    assert dakar.news == []
    assert abidjan.news == []


async def test_an_open_link_ends_when_its_certificate_does(tmp_path: Path) -> None:
    ids = federation(tmp_path, "dakar", "abidjan")
    clock = SimClock(ids["abidjan"].certificate.not_after - timedelta(seconds=5))
    dakar = Hub(ids["dakar"], clock=clock)
    async with running(dakar):
        peer = await RawPeer.of(ids["abidjan"], dakar)
        peer.say(LinkPing(1))
        assert await peer.answer() == LinkPong(1)
        clock.jump(6)
        peer.say(LinkPing(2))
        answer = await peer.answer()
        await peer.end()
    assert answer == LinkRefused("certificate", "the certificate of abidjan has expired")


async def test_a_retired_hub_loses_its_links_and_gets_no_others(tmp_path: Path) -> None:
    ids = federation(tmp_path, "dakar", "abidjan")
    dakar, abidjan = Hub(ids["dakar"], ids["abidjan"]), Hub(ids["abidjan"], ids["dakar"])
    async with running(dakar, abidjan):
        await abidjan.until_up("dakar")
        await dakar.until_up("abidjan")
        FederationAuthority(ids["dakar"]).retire("abidjan", now=SystemClock().now())
        dakar.mesh.remove_peer("abidjan", "abidjan has been retired")
        await abidjan.until(lambda: ("down", "dakar", "refused: abidjan has been retired") in abidjan.news)
        await abidjan.until_trouble("dakar", "refused: abidjan has been retired")
        assert not dakar.mesh.send("abidjan", Note(1))


async def test_an_unknown_version_is_refused_with_the_reason(tmp_path: Path) -> None:
    ids = federation(tmp_path, "dakar", "abidjan")
    dakar = Hub(ids["dakar"])
    async with running(dakar):
        peer = await RawPeer.dial(dakar, ids["abidjan"].client_context())
        peer.say(hello_of(ids["abidjan"], protocol_version=99))
        refused = await peer.answer()
        await peer.end()
    assert refused == LinkRefused("version", "abidjan speaks protocol version 99; dakar speaks version 1 only")


async def test_a_newcomer_introduces_itself_where_it_is_not_known_yet(tmp_path: Path) -> None:
    """Tangier joined while dakar could not hear the authority: its signed record is enough."""
    ids = federation(tmp_path, "abidjan", "dakar", "tangier")
    record = ids["tangier"].roster.record("tangier")
    assert record is not None
    ids["dakar"].folder.write_members([r for r in ids["dakar"].roster.records() if r != record])
    dakar = Hub(HubIdentity(ids["dakar"].folder))
    assert dakar.identity.roster.get("tangier") is None
    async with running(dakar):
        peer = await RawPeer.dial(dakar, ids["tangier"].client_context())
        peer.say(hello_of(ids["tangier"], introduction=b""))
        assert await peer.answer() == LinkRefused("member", "tangier is not known as a member")
        await peer.end()
        peer = await RawPeer.dial(dakar, ids["tangier"].client_context())
        peer.say(hello_of(ids["tangier"]))
        assert isinstance(await peer.answer(), LinkHello)
        peer.close()
    assert dakar.identity.roster.get("tangier") is not None
