"""A hub's page of metrics has figures of its links, under names that do not change by accident."""

from __future__ import annotations

from typing import Any

from harch.federation.identity.members import Address
from harch.federation.links.mesh import LinkStatus
from harch.hub.metrics import HubMetrics


def test_links_are_told_by_peer() -> None:
    def summary() -> Any:
        raise AssertionError("not asked for here")

    metrics = HubMetrics(summary)
    link = LinkStatus(
        hub_id="dakar",
        address=Address("127.0.0.1", 7724),
        up=True,
        trouble="",
        rtt_ms=35.5,
        features=(),
        bytes_sent=10,
        bytes_received=20,
        messages_sent=1,
        messages_received=2,
        messages_refused=3,
    )
    metrics.watch_links(lambda: [link])
    page = metrics.exposition().decode()
    assert 'harch_link_rtt_ms{peer="dakar"} 35.5' in page
    assert 'harch_link_messages_refused_total{peer="dakar"} 3.0' in page
    assert 'harch_link_up{peer="dakar"} 1.0' in page
