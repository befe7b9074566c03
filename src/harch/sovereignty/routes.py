"""By which way may data travel? The quickest path whose every link and country its tag allows, or why there is none."""

from __future__ import annotations

from heapq import heappop, heappush

from msgspec import Struct

from harch.base.rejection import Rejection, rejected
from harch.sovereignty.rules import explain_arrival, explain_passage, may_take
from harch.sovereignty.tags import Tag
from harch.sovereignty.terrain import Passage, Terrain

BLOCKED_SHOWN_MAX = 4
Way = tuple[Passage, ...]


class TransferPlan(Struct, frozen=True, kw_only=True):
    """One allowed way, to be followed as it stands: its hubs in order, and the countries crossed between them."""

    source: str
    target: str
    hubs: tuple[str, ...]
    countries_crossed: tuple[str, ...]
    rtt_ms: float
    encrypted: bool  # on every link of the way


def plan_transfer(terrain: Terrain, tag: Tag | None, source: str, target: str) -> TransferPlan | Rejection:
    """The allowed way with the least round trip, fewest hops among equals. A refusal is the first of its reasons."""
    refusals = explain_transfer(terrain, tag, source, target)
    if refusals:
        return refusals[0]
    way = quickest_way(terrain, tag, source, target)
    if way is None:  # explain_transfer found one, so the two disagree, and then it is no
        return Rejection(f"{source} -> {target}", "disagreement", "two checks of one route disagree", "report this")
    hubs = _hubs(source, way)
    return TransferPlan(
        source=source,
        target=target,
        hubs=hubs,
        countries_crossed=_countries(terrain, hubs, way),
        rtt_ms=sum(passage.rtt_ms for passage in way),
        encrypted=all(passage.encrypted for passage in way),
    )


def explain_transfer(terrain: Terrain, tag: Tag | None, source: str, target: str) -> tuple[Rejection, ...]:
    """Every reason why data at `source` may not go to `target`; empty if it may."""
    subject = f"{source} -> {target}"
    found = rejected(subject, explain_arrival(tag, terrain.site(target)))
    if terrain.site(source) is None:
        return (*found, Rejection(subject, "site", f"the hub `{source}` is not known", "choose a hub of the fleet"))
    if tag is None or terrain.site(target) is None or quickest_way(terrain, tag, source, target) is not None:
        return found
    return (*found, Rejection(subject, "route", _blocked(terrain, tag, source), "needs a link that its tag allows"))


def quickest_way(terrain: Terrain, tag: Tag | None, source: str, target: str) -> Way | None:
    """The links to take, none if it is there already; None if no way is allowed."""
    if tag is None or terrain.site(source) is None or terrain.site(target) is None:
        return None
    # Ties are broken by hops and then by hub ids, so that equal snapshots give equal plans.
    heap: list[tuple[float, int, tuple[str, ...], Way]] = [(0.0, 0, (source,), ())]
    done: set[str] = set()
    while heap:
        rtt_ms, hops, hubs, way = heappop(heap)
        here = hubs[-1]
        if here == target:
            return way
        if here in done:
            continue
        done.add(here)
        for passage in terrain.passages_of(here):
            there = passage.ends[passage.ends[0] == here]
            if there not in done and terrain.site(there) is not None and may_take(tag, passage):
                heappush(heap, (rtt_ms + passage.rtt_ms, hops + 1, (*hubs, there), (*way, passage)))
    return None


def _hubs(source: str, way: Way) -> tuple[str, ...]:
    hubs = [source]
    for passage in way:
        hubs.append(passage.ends[passage.ends[0] == hubs[-1]])
    return tuple(hubs)


def _countries(terrain: Terrain, hubs: tuple[str, ...], way: Way) -> tuple[str, ...]:
    """In the order of travel. A link lists its countries from its first end to its second."""
    crossed = [site.country for site in (terrain.site(hubs[0]),) if site is not None and site.country is not None]
    for here, passage in zip(hubs, way, strict=False):  # one hub more than links
        crossed += passage.countries_crossed if passage.ends[0] == here else reversed(passage.countries_crossed)
    return tuple(dict.fromkeys(crossed))


def _blocked(terrain: Terrain, tag: Tag, source: str) -> str:
    """The links at which every way ends: those that leave what can be reached from the source."""
    reached = {source}
    growing = True
    while growing:
        more = {
            end
            for passage in terrain.passages
            if reached.intersection(passage.ends) and may_take(tag, passage)
            for end in passage.ends
        }
        growing = not more <= reached
        reached |= more
    walls = []
    for passage in terrain.passages:
        if len(reached.intersection(passage.ends)) == 1:
            whys = [outcome for outcome in explain_passage(tag, passage) if not outcome.passed]
            walls.append(f"{'-'.join(passage.ends)}: {', '.join(outcome.detail for outcome in whys)}")
    if not walls:
        return "no link leads there"
    more_walls = f"; and {len(walls) - BLOCKED_SHOWN_MAX} more links" if len(walls) > BLOCKED_SHOWN_MAX else ""
    return "no allowed way: " + "; ".join(walls[:BLOCKED_SHOWN_MAX]) + more_walls
