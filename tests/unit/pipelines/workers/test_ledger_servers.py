"""A lost ledger connection is made anew to a server that the hub named, never to one that a server told of."""

from __future__ import annotations

from urllib.parse import urlparse

from nats.aio.client import Server

from harch.pipelines.workers.actor import RECONNECT_S, _named_servers


def server(url: str, reconnects: int = 0) -> Server:
    return Server(uri=urlparse(url), reconnects=reconnects)


def test_servers_that_the_cluster_told_of_are_not_used() -> None:
    choose = _named_servers(("nats://10.1.0.1:4222", "tls://ma-2.example:4333"))
    told = [server("nats://10.2.0.1:4222"), server("nats://10.1.0.1:4222", 3), server("tls://ma-2.example:4333", 1)]
    chosen, wait_s = choose(told, {})
    assert chosen is told[2]
    assert wait_s == RECONNECT_S
    assert choose(told[:2], {})[0] is told[1]
