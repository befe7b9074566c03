"""Does the kernel send no faster than the link of the fleet file allows, and does everybody get a share?"""

from __future__ import annotations

import math
import os
import socket
import struct
import threading
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from bulk_world import Hub, RawPeer, federation, fetch_all, random_chunks, refs, serving, until

from harch.base.clock import SystemClock
from harch.federation.bulk import server as server_module
from harch.federation.bulk import sockets
from harch.federation.bulk.limits import BulkLimits, TransferClass
from harch.federation.bulk.pacing import START_BYTES_PER_S
from harch.federation.identity.hub_identity import HubIdentity
from harch.federation.links.tls_connection import KEEPALIVE_EVERY_S, KEEPALIVE_IDLE_S, KEEPALIVE_PROBES
from harch.testing.clock import SimClock

CHUNKS = random_chunks(8)
SO_MAX_PACING_RATE = 47


@pytest.fixture
def ids(tmp_path: Path) -> dict[str, HubIdentity]:
    return federation(tmp_path, "dakar", "abidjan", "tangier")


def rates(hub: Hub) -> dict[str, list[float]]:
    """What the kernel lets each connection send per second, by peer."""
    found: dict[str, list[float]] = {}
    for one in list(hub.server._connections.values()):
        (rate,) = struct.unpack("Q", one.sock.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 8))
        found.setdefault(one.hub_id, []).append(math.inf if rate == 2**64 - 1 else rate)
    return found


def open_connection(stack: ExitStack, hub: Hub, identity: HubIdentity, ticket: bytes) -> RawPeer:
    peer = stack.enter_context(RawPeer(hub, identity))
    peer.greet(ticket)
    peer.request(refs(CHUNKS)[0])
    assert len(peer.frames(1)) == 1
    return peer


def test_connections_to_one_peer_share_the_limit_of_its_link(ids: dict[str, HubIdentity]) -> None:
    hub = Hub(ids["dakar"], CHUNKS, limits=BulkLimits(6_000_000, 45))
    with serving(hub), ExitStack() as stack:
        state = hub.ticket("abidjan", transfer_class=TransferClass.STATE)
        content = hub.ticket("abidjan")
        open_connection(stack, hub, ids["abidjan"], state)
        assert rates(hub)["abidjan"] == [6_000_000]
        for _ in range(2):
            open_connection(stack, hub, ids["abidjan"], content)
        until(lambda: sum(rates(hub)["abidjan"]) < 6_000_001)
        open_connection(stack, hub, ids["tangier"], hub.ticket("tangier"))
        assert rates(hub)["tangier"] == [6_000_000]  # that is another link


def test_without_a_limit_it_starts_gently(ids: dict[str, HubIdentity]) -> None:
    hub = Hub(ids["dakar"], CHUNKS)
    with serving(hub), ExitStack() as stack:
        open_connection(stack, hub, ids["abidjan"], hub.ticket("abidjan"))
        assert 0 < rates(hub)["abidjan"][0] <= 2 * START_BYTES_PER_S


def test_what_was_found_out_about_a_way_is_remembered_for_a_while(ids: dict[str, HubIdentity]) -> None:
    clock = SimClock(SystemClock().now())
    hub = Hub(ids["dakar"], CHUNKS, clock=clock)
    with serving(hub):
        fetch_all(ids["abidjan"], hub)
        first = hub.server._paces["abidjan"]
        until(lambda: not hub.server.connections)
        fetch_all(ids["abidjan"], hub)
        assert hub.server._paces["abidjan"] is first
        until(lambda: not hub.server.connections)
        clock.jump(server_module.KEEP_PACE_S + 1)
        fetch_all(ids["abidjan"], hub, ticket=hub.ticket("abidjan", now=clock.now() - timedelta(seconds=1)))
        assert hub.server._paces["abidjan"] is not first


def test_a_limit_that_changes_holds_for_the_next_connections(ids: dict[str, HubIdentity]) -> None:
    hub = Hub(ids["dakar"], CHUNKS, limits=BulkLimits(6_000_000, 45))
    with serving(hub), ExitStack() as stack:
        ticket = hub.ticket("abidjan")
        open_connection(stack, hub, ids["abidjan"], ticket)
        hub.limits = BulkLimits(2_000_000, 45)
        open_connection(stack, hub, ids["abidjan"], ticket)
        until(lambda: sum(rates(hub)["abidjan"]) <= 2_000_001)


def test_connections_let_everything_else_go_first_and_notice_cuts(ids: dict[str, HubIdentity]) -> None:
    hub = Hub(ids["dakar"], CHUNKS)
    with serving(hub), ExitStack() as stack:
        open_connection(stack, hub, ids["abidjan"], hub.ticket("abidjan"))
        (connection,) = hub.server._connections.values()
        sock = connection.sock
        assert sock.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == sockets.TRAFFIC_CLASS
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY) == sockets.PRIORITY_BULK
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == sockets.UNSENT_BYTES_MAX
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == sockets.USER_TIMEOUT_MS
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == KEEPALIVE_IDLE_S
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == KEEPALIVE_EVERY_S
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == KEEPALIVE_PROBES


def test_its_threads_have_a_lower_priority_than_the_event_loop() -> None:
    found: list[int] = []

    def look() -> None:
        sockets.lower_priority()
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [min(own + sockets.NICE, 19)]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own
