"""Which peers are asked, and which bid is taken? Pure decisions; what the law permits was decided before."""

# harch: pure

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harch.federation.offers import CapacityBid

PEERS_INVITED_MAX = 4
SOON_S = 5.0  # starts that differ by less are alike


@dataclass(frozen=True, slots=True)
class PeerOffer:
    hub_id: str
    bid: CapacityBid
    has_data: bool  # a copy of everything that the work reads
    rtt_ms: float


def peers_to_invite(candidates: Iterable[tuple[str, bool, int, float]], first: Sequence[str] = ()) -> tuple[str, ...]:
    """From `(hub, has its data, GPUs free, round trip ms)`: with the data first, then the nearest with most room.

    `first`: hubs that a plan prefers, best first; they come before all of that.
    """
    rank = {hub_id: number for number, hub_id in enumerate(first)}
    ranked = sorted(
        candidates,
        key=lambda peer: (rank.get(peer[0], len(rank)), not peer[1], _distance(peer[3]), -peer[2], peer[0]),
    )
    return tuple(hub_id for hub_id, *_ in ranked[:PEERS_INVITED_MAX])


def best_offer(offers: Sequence[PeerOffer], planned: Mapping[str, float] | None = None) -> PeerOffer | None:
    """Soonest first; then where its data are, then the better connected GPUs, cleaner, cheaper, nearer.

    `planned`: g/kWh over the whole run, by hub, as a plan weighed it. It goes before what the bids say of this moment,
    and before the links, because whoever has a plan asked for clean power.
    """
    return min(offers, key=lambda offer: _cost(offer, planned or {}), default=None)


def _cost(offer: PeerOffer, planned: Mapping[str, float]) -> tuple[float, bool, float, float, float, float, float, str]:
    bid = offer.bid
    return (
        bid.start_in_s // SOON_S,
        not offer.has_data,
        planned.get(offer.hub_id, math.inf),
        round(bid.slowdown, 1),
        bid.carbon_g_per_kwh if bid.carbon_g_per_kwh is not None else math.inf,
        bid.price_per_kwh if bid.price_per_kwh is not None else math.inf,
        offer.rtt_ms,
        offer.hub_id,
    )


def _distance(rtt_ms: float) -> int:
    """In steps: a few milliseconds more are worth less than room."""
    return int(rtt_ms // 20)
