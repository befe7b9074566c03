"""What do links do with messages? Order, limits, faults of a peer, restarts, and renewal without loss."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
from links_world import Hub, Note, RawPeer, federation, hello_of, running

from harch.base.clock import SystemClock
from harch.federation.identity.authority import FederationAuthority
from harch.federation.identity.hub_identity import HubIdentity
from harch.federation.links.frames import (
    BODY_BYTES_MAX,
    Bye,
    FrameKind,
    FrameTooLarge,
    LinkHello,
    LinkPing,
    LinkPong,
    LinkRefused,
    Parted,
    encode_control,
    frame,
)
from harch.federation.links.peer import PING_EVERY_S, PONG_WITHIN_S
from harch.testing.clock import SimClock


def numbers(hub: Hub, sender: str) -> list[int]:
    return [note.number for hub_id, note in hub.received if hub_id == sender]


@asynccontextmanager
async def deaf(identity: HubIdentity) -> AsyncIterator[None]:
    """A hub that greets whoever comes, and then reads no more."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write(frame(FrameKind.CONTROL, encode_control(hello_of(identity))))

    address, context = identity.member.address, identity.server_context()
    async with await asyncio.start_server(greet, *address, ssl=context, limit=1024):
        yield


async def test_messages_arrive_whole_and_in_order_whatever_their_size(tmp_path: Path) -> None:
    ids = federation(tmp_path, "dakar", "abidjan")
    dakar, abidjan = Hub(ids["dakar"], ids["abidjan"]), Hub(ids["abidjan"])
    texts = ["", "x" * 100, "y" * 70_000, "z" * 900_000, "é" * 1000, "w" * 300_000]
    async with running(dakar, abidjan):
        await dakar.until_up("abidjan")
        for number in range(300):
            assert dakar.mesh.send("abidjan", Note(number, texts[number % 6] if number < 12 else "small"))
        await abidjan.until(lambda: len(abidjan.received) == 300)
    assert numbers(abidjan, "dakar") == list(range(300))
    assert [note.text for _, note in abidjan.received[:6]] == texts


async def test_a_message_above_the_limit_is_a_fault_of_the_sender(tmp_path: Path) -> None:
    ids = federation(tmp_path, "dakar", "abidjan")
    dakar, abidjan = Hub(ids["dakar"], ids["abidjan"]), Hub(ids["abidjan"])
    async with running(dakar, abidjan):
        await dakar.until_up("abidjan")
        with pytest.raises(FrameTooLarge):
            dakar.mesh.send("abidjan", Note(1, "x" * (BODY_BYTES_MAX + 1)))
        assert dakar.mesh.send("abidjan", Note(2))
        await abidjan.until(lambda: abidjan.received)
    assert numbers(abidjan, "dakar") == [2]


async def test_without_a_link_nothing_is_taken(tmp_path: Path) -> None:
    ids = federation(tmp_path, "dakar", "abidjan")
    dakar = Hub(ids["dakar"], ids["abidjan"])
    async with running(dakar):
        assert not dakar.mesh.send("abidjan", Note(1))
        assert not dakar.mesh.send("nobody", Note(1))
        assert dakar.mesh.rtt_ms("abidjan") is None
        assert dakar.mesh.broadcast(Note(1)) == 0


_FAULTS = {
    "a body that is no message": frame(FrameKind.MESSAGE, b"\xc1garbage"),
    "a message of another program": frame(FrameKind.MESSAGE, b"\x81\xa4type\xa3spy"),
    "control that is none": frame(FrameKind.CONTROL, b"\xff"),
    "an empty control": frame(FrameKind.CONTROL, b""),
    "a kind that does not exist": frame(FrameKind.MESSAGE, b"")[:4] + b"\x09",
    "more than a frame may hold": struct.pack("!IB", BODY_BYTES_MAX + 1, 0),
    "another protocol": b"GET / HTTP/1.1\r\nHost: hub\r\n\r\n",
}


@pytest.mark.parametrize("fault", _FAULTS)
async def test_a_peer_that_misbehaves_loses_its_own_connection_only(tmp_path: Path, fault: str) -> None:
    ids = federation(tmp_path, "dakar", "abidjan", "tangier")
    dakar, tangier = Hub(ids["dakar"]), Hub(ids["tangier"], ids["dakar"])
    async with running(dakar, tangier):
        await tangier.until_up("dakar")
        bad = await RawPeer.of(ids["abidjan"], dakar)
        bad.send(Note(1))
        bad.write(_FAULTS[fault])
        bad.send(Note(2))
        await bad.end()
        tangier.mesh.send("dakar", Note(3))
        await dakar.until(lambda: numbers(dakar, "tangier"))
        good_again = await RawPeer.of(ids["abidjan"], dakar)
        good_again.send(Note(4))
        await dakar.until(lambda: 4 in numbers(dakar, "abidjan"))
        good_again.close()
        assert numbers(dakar, "abidjan") == [1, 4]
        assert tangier.news == [("up", "dakar")]


async def test_before_its_greeting_nobody_may_send_much(tmp_path: Path) -> None:
    ids = federation(tmp_path, "dakar", "abidjan")
    dakar = Hub(ids["dakar"])
    async with running(dakar):
        peer = await RawPeer.dial(dakar, ids["abidjan"].client_context())
        peer.write(struct.pack("!IB", 100_000, FrameKind.CONTROL))
        await peer.end()


async def test_the_round_trip_is_measured_and_bytes_are_counted(tmp_path: Path) -> None:
    ids = federation(tmp_path, "dakar", "abidjan")
    dakar, abidjan = Hub(ids["dakar"], ids["abidjan"]), Hub(ids["abidjan"], ids["dakar"])
    async with running(dakar, abidjan):
        await dakar.until_up("abidjan")
        dakar.mesh.send("abidjan", Note(1, "x" * 1000))
        await abidjan.until(lambda: abidjan.received)
        async with asyncio.timeout(10):
            while dakar.mesh.rtt_ms("abidjan") is None:
                await asyncio.sleep(0.01)
        (there,), (here,) = dakar.mesh.status(), abidjan.mesh.status()
    assert dakar.mesh.features("abidjan") == ()
    assert abidjan.mesh.rtt_ms("dakar") is None  # stopped
    assert there.bytes_sent > 1000
    assert here.bytes_received > 1000
    assert (there.messages_sent, here.messages_received) == (1, 1)
    assert there.rtt_ms is not None
    assert there.rtt_ms >= 0


async def test_a_peer_that_restarts_is_found_again(tmp_path: Path) -> None:
    ids = federation(tmp_path, "dakar", "abidjan")
    dakar, abidjan = Hub(ids["dakar"], ids["abidjan"]), Hub(ids["abidjan"], ids["dakar"])
    async with running(dakar):
        async with running(abidjan):
            await dakar.until_up("abidjan")
            await abidjan.until_up("dakar")
        await dakar.until(lambda: not dakar.mesh.is_up("abidjan"))
        assert not dakar.mesh.send("abidjan", Note(1))
        again = Hub(ids["abidjan"], ids["dakar"])
        async with running(again):
            await dakar.until_up("abidjan")
            assert dakar.mesh.send("abidjan", Note(2))
            await again.until(lambda: again.received)
    assert [news[:2] for news in dakar.news[:3]] == [("up", "abidjan"), ("down", "abidjan"), ("up", "abidjan")]


async def test_peers_come_and_go_while_it_runs(tmp_path: Path) -> None:
    ids = federation(tmp_path, "dakar", "abidjan")
    dakar, abidjan = Hub(ids["dakar"]), Hub(ids["abidjan"])
    async with running(dakar, abidjan):
        dakar.mesh.add_peer("abidjan", ids["abidjan"].member.address)
        await dakar.until_up("abidjan")
        dakar.mesh.remove_peer("abidjan")
        await dakar.until(lambda: ("down", "abidjan", "this hub ends the link") in dakar.news)
        assert dakar.mesh.status() == []
        dakar.mesh.add_peer("abidjan", ids["abidjan"].member.address)
        await dakar.until_up("abidjan")


async def test_a_peer_that_does_not_read_fills_its_own_queue_and_nobody_elses(tmp_path: Path) -> None:
    ids = federation(tmp_path, "dakar", "abidjan", "tangier")
    dakar, tangier = Hub(ids["dakar"], ids["tangier"]), Hub(ids["tangier"])

    async with deaf(ids["abidjan"]), running(dakar, tangier):
        dakar.mesh.add_peer("abidjan", ids["abidjan"].member.address)
        await dakar.until_up("abidjan")
        await dakar.until_up("tangier")
        dropped_at = kept_at = None
        for number in count():
            if not dakar.mesh.send("abidjan", Note(number, "x" * 100_000), droppable=True) and dropped_at is None:
                dropped_at = number
                assert dakar.mesh.send("abidjan", Note(number, "what counts still goes in"))
            if dropped_at is not None and not dakar.mesh.send("abidjan", Note(number, "x" * 100_000)):
                kept_at = number
                break
            await asyncio.sleep(0)
        assert dropped_at is not None
        assert dropped_at < kept_at
        refused = {status.hub_id: status.messages_refused for status in dakar.mesh.status()}
        assert refused["abidjan"] > 0
        assert refused["tangier"] == 0
        assert dakar.mesh.send("tangier", Note(7))
        await tangier.until(lambda: tangier.received)


async def test_a_peer_that_answers_no_more_loses_its_link(tmp_path: Path) -> None:
    """Its kernel still acknowledges everything, so nothing but the missing answers tells."""
    ids = federation(tmp_path, "dakar", "abidjan")
    clock = SimClock(SystemClock().now())
    dakar = Hub(ids["dakar"], ids["abidjan"], clock=clock)
    async with deaf(ids["abidjan"]), running(dakar):
        await dakar.until_up("abidjan")
        await clock.advance(PONG_WITHIN_S + 2 * PING_EVERY_S)
        await dakar.until(lambda: ("down", "abidjan", "no answer for 10 s") in dakar.news)


async def test_who_never_greets_is_not_waited_for(tmp_path: Path) -> None:
    ids = federation(tmp_path, "dakar", "abidjan")
    clock = SimClock(SystemClock().now())
    dakar = Hub(ids["dakar"], clock=clock)
    async with running(dakar):
        mute = await RawPeer.dial(dakar, ids["abidjan"].client_context())
        ending = asyncio.create_task(mute.end())
        while not ending.done():
            await clock.advance(1)


async def test_a_greeted_peer_that_falls_silent_is_let_go(tmp_path: Path) -> None:
    ids = federation(tmp_path, "dakar", "abidjan")
    clock = SimClock(SystemClock().now())
    dakar = Hub(ids["dakar"], clock=clock)
    async with running(dakar):
        peer = await RawPeer.of(ids["abidjan"], dakar)
        await clock.advance(14)
        peer.say(LinkPing(1))
        assert await peer.answer() == LinkPong(1)
        await clock.advance(14)
        peer.say(LinkPing(2))
        assert await peer.answer() == LinkPong(2)
        await clock.advance(17)
        await peer.end()


async def test_a_new_certificate_replaces_links_without_losing_or_reordering_a_message(tmp_path: Path) -> None:
    ids = federation(tmp_path, "dakar", "abidjan")
    dakar, abidjan = Hub(ids["dakar"], ids["abidjan"]), Hub(ids["abidjan"], ids["dakar"])
    authority = FederationAuthority(ids["dakar"])
    sent = 0
    async with running(dakar, abidjan):
        await dakar.until_up("abidjan")
        await abidjan.until_up("dakar")
        for identity in (ids["dakar"], ids["abidjan"]):
            request = identity.request_certificate()
            identity.install(authority.certify(identity.hub_id, request, now=SystemClock().now()))
        first = dakar.mesh.status()[0]

        def replaced(hub: Hub) -> bool:
            peer = hub.mesh._peers  # the only way to see what nobody is meant to notice
            return all(one._link is not None and one._link.generation == 1 for one in peer.values())

        async with asyncio.timeout(20):
            while not (replaced(dakar) and replaced(abidjan)):
                for _ in range(50):
                    assert dakar.mesh.send("abidjan", Note(sent))
                    assert abidjan.mesh.send("dakar", Note(sent))
                    sent += 1
                await asyncio.sleep(0.002)
        assert dakar.mesh.send("abidjan", Note(sent))
        assert abidjan.mesh.send("dakar", Note(sent))
        await abidjan.until(lambda: len(abidjan.received) == sent + 1)
        await dakar.until(lambda: len(dakar.received) == sent + 1)
        assert dakar.news == [("up", "abidjan")]
        assert abidjan.news == [("up", "dakar")]
        assert dakar.mesh.status()[0].bytes_sent > first.bytes_sent
    assert numbers(abidjan, "dakar") == list(range(sent + 1))
    assert numbers(dakar, "abidjan") == list(range(sent + 1))
    assert HubIdentity(ids["abidjan"].folder).certificate == ids["abidjan"].certificate


async def test_bye_is_confirmed_after_everything_before_it(tmp_path: Path) -> None:
    ids = federation(tmp_path, "dakar", "abidjan")
    dakar = Hub(ids["dakar"])
    async with running(dakar):
        peer = await RawPeer.of(ids["abidjan"], dakar)
        for number in range(1000):
            peer.send(Note(number))
        peer.say(LinkPing(5))
        peer.say(Bye())
        assert await peer.answer() == LinkPong(5)
        assert await peer.answer() == Parted()
        assert len(dakar.received) == 1000
        peer.close()


async def test_a_second_greeting_on_one_connection_is_a_fault(tmp_path: Path) -> None:
    ids = federation(tmp_path, "dakar", "abidjan")
    dakar = Hub(ids["dakar"])
    async with running(dakar):
        peer = await RawPeer.of(ids["abidjan"], dakar)
        peer.say(hello_of(ids["abidjan"]))
        answer = await peer.answer()
        assert not isinstance(answer, LinkHello | LinkRefused)
        await peer.end()


async def test_an_error_of_the_hub_itself_ends_the_connection_and_nothing_else(tmp_path: Path) -> None:
    ids = federation(tmp_path, "dakar", "abidjan")
    dakar = Hub(ids["dakar"])
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    async with running(dakar):
        peer = await RawPeer.of(ids["abidjan"], dakar)
        peer.send(Note(-1))
        await peer.end()
        again = await RawPeer.of(ids["abidjan"], dakar)
        again.send(Note(14))
        await dakar.until(lambda: numbers(dakar, "abidjan") == [14])
        again.close()
