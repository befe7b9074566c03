"""How are the other hubs, seen from here? What gossip and links know of them, and no old figure as a fresh one."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from harch.base.clock import Clock
from harch.federation.gossip.machine import Gossip
from harch.federation.gossip.membership import GossipView, LivenessState
from harch.federation.identity.hub_identity import HubIdentity
from harch.federation.links.mesh import LinkStatus, Mesh
from harch.hub.federation.messages import Summaries
from harch.hub.views import PeerReach, PeerView

ALONE = "this hub belongs to no federation: create one with `harch hub init`, or join one with `harch hub join`"


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
        others = [hub_id for hub_id in self._urls if hub_id not in {*members, *retired, me}]
        return [
            *(self._view(hub_id, links.get(hub_id)) for hub_id in members),
            *outside(others, self._urls, retired=False, why="not a member of this federation"),
            *outside(retired, self._urls, retired=True, why="has been retired"),
        ]

    def says_it_has_retired(self, hub_id: str) -> bool:
        return hub_id in self._gossip.peers and self._view(hub_id, None).reach is PeerReach.RETIRED

    def forget(self, hub_id: str) -> None:
        self._summaries.forget(hub_id)

    def _view(self, hub_id: str, link: LinkStatus | None) -> PeerView:
        seen = self._gossip.view(hub_id, self._clock.monotonic_s())
        return peer_view(seen, link, self._urls.get(hub_id, ""), self._summaries, self._clock.now())


class PeerDirectory:
    """The other hubs, seen from here. A hub of a federation attaches its lookout; one on its own has none."""

    def __init__(self, urls: dict[str, str]) -> None:
        self.urls = urls
        self._lookout: Lookout | None = None

    def attach(self, lookout: Lookout) -> None:
        self._lookout = lookout

    def views(self) -> list[PeerView]:
        if self._lookout is None:
            return outside(self.urls, self.urls, retired=False, why=ALONE)
        return self._lookout.views()


def peer_view(view: GossipView, link: LinkStatus | None, url: str, summaries: Summaries, now: datetime) -> PeerView:
    """`url`: where its API is believed to be until it says so itself."""
    age_s = view.age_s
    summary = summaries.of(view, now - timedelta(seconds=age_s or 0.0))
    up = link is not None and link.up
    reach = _reach(view.standing, up)
    if summary is not None and summary.status == PeerReach.RETIRED:
        reach = PeerReach.RETIRED
    return PeerView(
        hub_id=view.hub,
        url=summary.url if summary is not None else url,
        reachable=reach is PeerReach.LINKED and summary is not None,
        age_s=None if age_s is None else round(age_s, 1),
        summary=summary,
        error=_trouble(reach, view, link)
        if reach is not PeerReach.LINKED
        else ""
        if summary
        else "has not reported its state",
        rtt_ms=round(link.rtt_ms, 1) if link is not None and link.rtt_ms is not None else None,
        reach=reach,
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
            reach=PeerReach.RETIRED if retired else PeerReach.NOT_MEMBER,
        )
        for hub_id in hub_ids
    ]


def _reach(standing: LivenessState, up: bool) -> PeerReach:
    match standing:
        case LivenessState.ALIVE:
            return PeerReach.LINKED if up else PeerReach.CUT_OFF
        case LivenessState.SUSPECTED:
            return PeerReach.SUSPECTED
        case LivenessState.UNHEARD:
            return PeerReach.UNHEARD


def _trouble(reach: PeerReach, view: GossipView, link: LinkStatus | None) -> str:
    no_link = f"no link: {link.trouble}" if link is not None and not link.up else ""
    match reach:
        case PeerReach.CUT_OFF:
            return f"{no_link or 'no link'}; it is alive, as {view.via or 'another hub'} relays"
        case PeerReach.SUSPECTED:
            return "; ".join(part for part in (f"suspected: silent for {view.age_s or 0.0:.0f} s", no_link) if part)
        case PeerReach.RETIRED:
            return "has been retired"
        case _:
            return "; ".join(part for part in ("no contact since this hub started", no_link) if part)
