"""How fast may bulk transfers use a link, and how do they share it?

The fleet file says what a link carries and what of it bulk transfers may take. A dedicated link is there for moving
state. Where two hubs have no link, the narrowest one on the quickest way between them counts.
"""

# harch: pure

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from harch.base.errors import HarchError
from harch.fleet.model import Fleet, Link

# The rest is for gossip, leases and requests, and for everything else on the same fibre that HarchOS knows nothing of.
SHARE_MAX = 0.8
DEDICATED_SHARE_MAX = 0.95
BYTES_PER_S_PER_GBPS = 1e9 / 8
UNLIMITED = math.inf


class TransferClass(StrEnum):
    """What a transfer is for. Whose is further up gets more of a link that is too narrow for all."""

    STATE = "state"  # checkpoints: work stands still until they have arrived
    CONTENT = "content"  # code, environments, images, data that work waits for
    BACKGROUND = "background"  # copies made ahead of need


WEIGHTS: Mapping[TransferClass, float] = {
    TransferClass.STATE: 8.0,
    TransferClass.CONTENT: 4.0,
    TransferClass.BACKGROUND: 1.0,
}


class BulkLimits(NamedTuple):
    """Of the way to one peer, each direction."""

    bytes_per_s: float
    rtt_ms: float
    dedicated: bool = False


def limits_of(fleet: Fleet, hub_id: str) -> dict[str, BulkLimits]:
    """To every hub that links lead to, directly or through others."""
    ways: dict[str, BulkLimits] = {}
    links = {other: list(fleet.links_of(other)) for other in (hub.id for hub in fleet.hubs)}
    direct = {_other_end(link, hub_id): link for link in links.get(hub_id, ())}
    queue: list[tuple[float, str, BulkLimits]] = [(0.0, hub_id, BulkLimits(UNLIMITED, 0.0, dedicated=True))]
    while queue:
        _, reached, way = heapq.heappop(queue)
        if reached in ways:
            continue
        # Packets take the link where there is one, even if a detour were quicker.
        ways[reached] = _limits(direct[reached]) if reached in direct else way
        for link in links[reached]:
            longer = _joined(ways[reached], _limits(link))
            heapq.heappush(queue, (longer.rtt_ms, _other_end(link, reached), longer))
    ways.pop(hub_id, None)
    return ways


def usable_gbps(link: Link) -> float:
    """What bulk transfers may take of a link, each direction."""
    if link.reserved_gbps:
        return link.reserved_gbps
    return link.bandwidth_gbps * (DEDICATED_SHARE_MAX if link.dedicated else SHARE_MAX)


def refusal(limits: BulkLimits | None, transfer_class: TransferClass) -> str:
    """Why nothing of this class may go that way; empty if it may."""
    if limits is None:
        return "no link leads there"
    if limits.dedicated and transfer_class is TransferClass.BACKGROUND:
        return "the link is dedicated to state, and copies ahead of need do not take it"
    return ""


def require(limits: BulkLimits | None, transfer_class: TransferClass, *, peer: str) -> BulkLimits:
    """Raises E1141."""
    why = refusal(limits, transfer_class)
    if limits is None or why:
        raise HarchError(
            "E1141",
            f"nothing of class `{transfer_class}` may go to {peer}: {why}",
            hint="see `[[links]]` of the fleet file",
        )
    return limits


def preferred_sources(
    hubs: Iterable[str], limits: Mapping[str, BulkLimits], transfer_class: TransferClass
) -> list[str]:
    """Those that may send, the best way first: dedicated links, then the widest, then the nearest."""
    usable = [hub for hub in hubs if not refusal(limits.get(hub), transfer_class)]
    return sorted(
        usable, key=lambda hub: (not limits[hub].dedicated, -limits[hub].bytes_per_s, limits[hub].rtt_ms, hub)
    )


def _limits(link: Link) -> BulkLimits:
    return BulkLimits(usable_gbps(link) * BYTES_PER_S_PER_GBPS, link.rtt_ms, link.dedicated)


def _joined(one: BulkLimits, other: BulkLimits) -> BulkLimits:
    """A way is as wide as its narrowest link, and dedicated if all of it is."""
    return BulkLimits(
        min(one.bytes_per_s, other.bytes_per_s), one.rtt_ms + other.rtt_ms, one.dedicated and other.dedicated
    )


def _other_end(link: Link, hub_id: str) -> str:
    return link.ends[1] if link.ends[0] == hub_id else link.ends[0]


class Flow(NamedTuple):
    """One connection that sends: its transfer, what that is worth, and how much it can use at most."""

    transfer: bytes
    transfer_class: TransferClass
    bytes_per_s_max: float = UNLIMITED


def shares(flows: Sequence[Flow], bytes_per_s: float) -> list[float]:
    """What each flow may send per second: by the weight of its transfer, and what one cannot use goes to the others.

    A transfer gets no more for having more connections.
    """
    if math.isinf(bytes_per_s):
        return [flow.bytes_per_s_max for flow in flows]
    connections: dict[bytes, int] = {}
    for flow in flows:
        connections[flow.transfer] = connections.get(flow.transfer, 0) + 1
    weights = [WEIGHTS[flow.transfer_class] / connections[flow.transfer] for flow in flows]
    given = [0.0] * len(flows)
    left, weight_left = bytes_per_s, sum(weights)
    # Those who need least for their weight first: whoever they leave something to comes later.
    for at in sorted(range(len(flows)), key=lambda at: flows[at].bytes_per_s_max / weights[at]):
        given[at] = min(flows[at].bytes_per_s_max, left * weights[at] / weight_left) if weight_left > 0 else 0.0
        left, weight_left = left - given[at], weight_left - weights[at]
    return given
