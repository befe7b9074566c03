"""How are the other hubs, seen from here? What gossip and links know of them, and no old figure as a fresh one."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from harch.federation.gossip.liveness import Standing
from harch.federation.gossip.news import HubView
from harch.federation.links.mesh import LinkStatus
from harch.hub.federation.published import Summaries
from harch.hub.views import PeerView, Sight


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
