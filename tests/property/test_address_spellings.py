"""However an address is spelt: what the proof reads is what the client would connect to, or the address is refused."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterable
from typing import Any
from unittest import mock

import httpcore
import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harch.base.guarded_http import http_address
from harch.base.hosts import address_of, read_host
from harch.pipelines.act.settings import SqlSink
from harch.pipelines.act.sinks.addresses import nats_target, postgres_target, sink_hosts

HOSTS = st.sampled_from(
    [
        "127.0.0.1",
        "10.77.0.1",
        "localhost",
        "LocalHost.",
        "localhost.evil.example",
        "evil.example",
        "EVIL.example.",
        "2130706433",
        "0177.0.0.1",
        "0x7f.0.0.1",
        "127.1",
        "127.0.0.1.",
        "[::1]",
        "[::ffff:10.77.0.1]",
        "[::ffff:7f00:1]",
        "[0:0:0:0:0:0:0:1]",
        "[fe80::1%25eth0]",
        "[fe80::1%eth0]",
        "127.0.0.1%2eevil.example",
        "%31%32%37.0.0.1",
        "bücher.example",
        "ex。ample",
        "１２７.0.0.1",
        "a..b",
        "",
        "0.0.0.0",
    ]
)
GLUE = st.sampled_from(["", "@", ":", "/", "\\", "?", "#", "%40", "?@", "#@", "\\@", ":@", ",", ";", " ", "\t", "//"])
PORTS = st.sampled_from(["", ":", ":80", ":8099", ":0", ":99999", ":-1", ":8 0"])
PATHS = st.sampled_from(["", "/", "/valves", "/valves?x=1", "?x=@127.0.0.1", "#@127.0.0.1", "/{device}"])


class Recorder(httpcore.AsyncNetworkBackend):
    """The bottom of the real client: hears which host it would connect to, and lets it connect to nobody."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    async def connect_tcp(self, host: str, port: int, *_: Any, **__: Any) -> Any:
        self.asked.append((host, port))
        raise httpcore.ConnectError("nobody")


def sent_to(url: str) -> tuple[str, int] | None:
    """The host and port that httpx hands to the network, without anything of ours in between."""
    recorder = Recorder()

    async def send() -> None:
        transport = httpx.AsyncHTTPTransport(trust_env=False)
        transport._pool = httpcore.AsyncConnectionPool(network_backend=recorder)
        async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
            await client.post(url, timeout=1)

    with contextlib.suppress(httpx.HTTPError, httpx.InvalidURL, UnicodeError, ValueError, TypeError, OverflowError):
        asyncio.run(send())
    return recorder.asked[0] if recorder.asked else None


@settings(max_examples=300, deadline=None)
@given(before=HOSTS, glue=GLUE, host=HOSTS, port=PORTS, path=PATHS)
@example(before="evil.example:8099", glue="?@", host="127.0.0.1", port="", path="/valves")
@example(before="", glue="", host="[::ffff:10.77.0.1]", port=":80", path="")
@example(before="user:pass", glue="@", host="LocalHost.", port=":80", path="")
def test_an_http_address_leads_where_the_proof_says(before: str, glue: str, host: str, port: str, path: str) -> None:
    url = f"http://{before if glue else ''}{glue}{host}{port}{path}"
    try:
        read = http_address(url)
    except ValueError:
        return  # refused
    asked = sent_to(url)
    assert asked is not None, f"{url!r} was read as {read.host}, and the client refuses it"
    assert (read_host(asked[0]), asked[1]) == (read.host, read.port)


@given(host=st.one_of(HOSTS, st.ip_addresses().map(str), st.text(max_size=20)))
def test_a_host_has_one_spelling_which_the_resolver_reads_in_the_same_way(host: str) -> None:
    try:
        read = read_host(host)
    except ValueError:
        return
    assert read_host(read) == read
    assert read == read.lower()
    address = address_of(read)
    try:
        found = socket.getaddrinfo(host.strip("[]"), 1, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except OSError:
        assert address is None, "what we take for an address the resolver takes for a name"
        return
    assert address is not None, "what we take for a name the resolver takes for an address"
    assert {str(address_of(at[0])) for *_, at in found} == {str(address)}


def libpq_hosts(url: str) -> set[str]:
    """What psycopg gives to libpq for each attempt, after names are looked up."""
    conninfo = pytest.importorskip("psycopg.conninfo")

    def looked_up(host: str, *_: Any, **__: Any) -> list[Any]:
        return [(2, 1, 6, "", (host, 1))]  # a name stands for itself

    with mock.patch("psycopg._conninfo_attempts.socket.getaddrinfo", looked_up):
        attempts: Iterable[dict[str, Any]] = conninfo.conninfo_attempts(conninfo.conninfo_to_dict(url))
    return {str(one.get("hostaddr") or one.get("host") or "") for one in attempts}


@settings(max_examples=300, deadline=None)
@given(
    hosts=st.lists(st.tuples(HOSTS, PORTS), max_size=3),
    host=st.lists(st.sampled_from(["10.77.0.1", "evil.example", "/tmp", "localhost", "127.1"]), max_size=2),
    address=st.lists(st.sampled_from(["10.77.0.1", "127.0.0.1", "evil.example", "::ffff:10.77.0.1"]), max_size=2),
    glue=st.sampled_from([",", "%2c", "%2C"]),
)
@example(hosts=[("127.0.0.1", "")], host=["10.77.0.1"], address=[], glue=",")
@example(hosts=[("127.0.0.1", ""), ("10.77.0.1", "")], host=[], address=[], glue=",")
def test_a_database_is_where_libpq_would_look_for_it(
    hosts: list[tuple[str, str]], host: list[str], address: list[str], glue: str
) -> None:
    pytest.importorskip("psycopg")
    query = "&".join(f"{name}={glue.join(found)}" for name, found in (("host", host), ("hostaddr", address)) if found)
    url = f"postgresql://{','.join(name + port for name, port in hosts)}/x{'?' if query else ''}{query}"
    read = {one.host for one in sink_hosts(SqlSink(url=url, statement="select 1"), {}) if not one.problem}
    try:
        target = postgres_target(url)
    except ValueError:
        assert read == set()
        return
    asked = {one for one in libpq_hosts(url) if one and not one.startswith("/")}
    assert {read_host(one) for one in asked} == {one.connected for one in target.hosts if not one.is_socket}
    assert {read_host(one) for one in asked} <= read


@given(before=HOSTS, glue=GLUE, host=HOSTS, port=PORTS, path=PATHS)
def test_a_message_server_is_read_once_and_the_client_is_told_what_was_read(
    before: str, glue: str, host: str, port: str, path: str
) -> None:
    try:
        target = nats_target(f"nats://{before if glue else ''}{glue}{host}{port}{path}")
    except ValueError:
        return
    assert read_host(target.host) == target.host
    assert 0 < target.port < 65_536
