"""How are the other hubs, seen from here? What gossip and links know of them, and no old figure as a fresh one."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from harch.base.clock import Clock
from harch.federation.gossip.liveness import Standing
from harch.federation.gossip.machine import Gossip
from harch.federation.gossip.news import HubView
from harch.federation.identity.identity import HubIdentity
from harch.federation.links.mesh import LinkStatus, Mesh
from harch.hub.federation.published import Summaries
from harch.hub.views import PeerView, Sight


class Lookout:
    """All other hubs of the federation and of the fleet. `urls`: where the APIs of the latter are believed to be."""

    def __init__(
        self, identity: HubIdentity, gossip: Gossip, mesh: Mesh[Any], clock: Clock, urls: dict[str, str]
    ) -> None:
        self._identity, self._gossip, self._mesh, self._clock, self._urls = identity, gossip, mesh, clock, urls
        self._summaries = Summaries()

    def views(self) -> list[PeerView]:
        """Members first, in the order of the fleet; then those that are none, or no more."""
        links = {link.hub_id: link for link in self._mesh.status()}
        order = {hub_id: number for number, hub_id in enumerate(self._urls)}
        members = sorted(self._gossip.peers, key=lambda hub_id: order.get(hub_id, len(order)))
        me = self._identity.hub_id
        retired = [member.hub_id for member in self._identity.roster if member.retired and member.hub_id != me]
        strangers = [hub_id for hub_id in self._urls if hub_id not in {*members, *retired, me}]
        return [
            *(self._view(hub_id, links.get(hub_id)) for hub_id in members),
            *outside(strangers, self._urls, retired=False, why="no member of this federation"),
            *outside(retired, self._urls, retired=True, why="has been retired"),
        ]

    def says_it_has_retired(self, hub_id: str) -> bool:
        return hub_id in self._gossip.peers and self._view(hub_id, None).sight is Sight.RETIRED

    def forget(self, hub_id: str) -> None:
        self._summaries.forget(hub_id)

    def _view(self, hub_id: str, link: LinkStatus | None) -> PeerView:
        seen = self._gossip.view(hub_id, self._clock.monotonic_s())
        return peer_view(seen, link, self._urls.get(hub_id, ""), self._summaries, self._clock.now())


def peer_view(view: HubView, link: LinkStatus | None, url: str, summaries: Summaries, now: datetime) -> PeerView:
    """`url`: where its API is believed to be until it says so itself."""
    age_s = view.age_s
    summary = summaries.of(view, now - timedelta(seconds=age_s or 0.0))
    up = link is not None and link.up
    sight = _sight(view.standing, up)
    if summary is not None and summary.status == Sight.RETIRED:
        sight = Sight.RETIRED
    return PeerView(
        hub_id=view.hub,
        url=summary.url if summary is not None else url,
        reachable=sight is Sight.LINKED and summary is not None,
        age_s=None if age_s is None else round(age_s, 1),
        summary=summary,
        error=_trouble(sight, view, link) if sight is not Sight.LINKED else "" if summary else "has not told its state",
        rtt_ms=round(link.rtt_ms, 1) if link is not None and link.rtt_ms is not None else None,
        sight=sight,
        via="" if view.via == view.hub else view.via,
    )


def outside(hub_ids: Iterable[str], urls: dict[str, str], *, retired: bool, why: str) -> list[PeerView]:
    """Hubs that are not, or no longer, part of the federation."""
    return [
        PeerView(
            hub_id=hub_id,
            url=urls.get(hub_id, ""),
            reachable=False,
            age_s=None,
            summary=None,
            error=why,
            sight=Sight.RETIRED if retired else Sight.STRANGER,
        )
        for hub_id in hub_ids
    ]


def _sight(standing: Standing, up: bool) -> Sight:
    match standing:
        case Standing.ALIVE:
            return Sight.LINKED if up else Sight.CUT_OFF
        case Standing.SUSPECTED:
            return Sight.SUSPECTED
        case Standing.UNHEARD:
            return Sight.UNHEARD


def _trouble(sight: Sight, view: HubView, link: LinkStatus | None) -> str:
    no_link = f"no link: {link.trouble}" if link is not None and not link.up else ""
    match sight:
        case Sight.CUT_OFF:
            return f"{no_link or 'no link'}; it is alive, as {view.via or 'another hub'} relays"
        case Sight.SUSPECTED:
            return "; ".join(part for part in (f"suspected: silent for {view.age_s or 0.0:.0f} s", no_link) if part)
        case Sight.RETIRED:
            return "has been retired"
        case _:
            return "; ".join(part for part in ("never heard since this hub started", no_link) if part)
