"""What exactly do the rules say, why not, and by which way may data travel?

Each rule once, in words and sets; the quickest path whose every link the tag allows.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Collection
from heapq import heappop, heappush

from msgspec import Struct

from harch.base.rejection import Rejection, RuleOutcome, rejected
from harch.sovereignty.geography import LegalSite, Passage, Terrain
from harch.sovereignty.tags import Classification, Tag

# What exactly do the rules say, and why not? Each rule once, in words and sets: the slow path that explains.
#
# `compiled` says the same in masks. Both are compared with each other and with an oracle; where they disagree, it is
# no.


Outcomes = tuple[RuleOutcome, ...]
_NO_TAG = RuleOutcome(rule="tag", passed=False, detail="untagged data is never permitted", nearest_fix="tag the data")
_NO_SITE = RuleOutcome(rule="site", passed=False, detail="unknown hub", nearest_fix="choose a hub of the fleet")


def explain_process(tag: Tag | None, site: LegalSite | None) -> Outcomes:
    """May it be processed at that site? Work writes scratch, so what must be encrypted at rest must be so here too."""
    if tag is None or site is None:
        return _unknown(tag, site)
    return (_country("process_in", tag.process_in, site), _frameworks(tag, site), *_at_rest(tag, site))


def explain_rest(tag: Tag | None, site: LegalSite | None) -> Outcomes:
    """May a copy of it be kept at that site?"""
    if tag is None or site is None:
        return _unknown(tag, site)
    return (_country("rest_in", tag.rest_in, site), _frameworks(tag, site), *_at_rest(tag, site))


def explain_arrival(tag: Tag | None, site: LegalSite | None) -> Outcomes:
    """May it arrive there at all? It must be permitted to rest or to be processed, else it has no business there."""
    if tag is None or site is None:
        return _unknown(tag, site)
    return (_country("arrive_in", {*tag.process_in, *tag.rest_in}, site), _frameworks(tag, site), *_at_rest(tag, site))


def explain_view(tag: Tag | None, site: LegalSite | None, *, at_home: bool) -> Outcomes:
    """May it be looked at from that site? Looking is processing; `restricted` data is looked at only where it is."""
    if tag is None or site is None:
        return _unknown(tag, site)
    restricted = tag.classification is Classification.RESTRICTED
    classification = RuleOutcome(
        rule="classification",
        passed=at_home or not restricted,
        detail=f"is {tag.classification} and would be seen {'where it is' if at_home else 'at another hub'}",
        nearest_fix="" if at_home or not restricted else "view it at the hub where it is",
    )
    return (_country("process_in", tag.process_in, site), _frameworks(tag, site), classification)


def explain_passage(tag: Tag, passage: Passage) -> Outcomes:
    """May it travel on that link?"""
    crossed = set(passage.countries_crossed)
    outside = sorted(crossed.difference(tag.transit_in))
    borders = tag.may_cross_borders or not passage.is_international
    encryption = passage.encrypted or not tag.encrypt_in_transit
    return (
        RuleOutcome(
            rule="transit_in",
            passed=bool(crossed) and not outside,
            detail=f"crosses {_listed(crossed) or 'an unknown country'}; may cross {_listed(tag.transit_in) or 'none'}",
            nearest_fix=f"needs a route without {_listed(outside)}" if outside else "",
        ),
        RuleOutcome(
            rule="may_cross_borders",
            passed=borders,
            detail="crosses a border" if passage.is_international else "stays inside one country",
            nearest_fix="" if borders else "needs a route inside one country",
        ),
        RuleOutcome(
            rule="encrypt_in_transit",
            passed=encryption,
            detail=f"the link is {'encrypted' if passage.encrypted else 'not declared encrypted'}",
            nearest_fix="" if encryption else "encrypt the link and declare it encrypted",
        ),
    )


def passes(outcomes: Outcomes) -> bool:
    return all(outcome.passed for outcome in outcomes)


def may_take(tag: Tag, passage: Passage) -> bool:
    """The rules of `explain_passage`, without words."""
    return (
        bool(passage.countries_crossed)
        and all(code in tag.transit_in for code in passage.countries_crossed)
        and (tag.may_cross_borders or not passage.is_international)
        and (passage.encrypted or not tag.encrypt_in_transit)
    )


def _unknown(tag: Tag | None, site: LegalSite | None) -> Outcomes:
    return (*((_NO_TAG,) if tag is None else ()), *((_NO_SITE,) if site is None else ()))


def _country(rule: str, allowed: Collection[str], site: LegalSite) -> RuleOutcome:
    passed = site.country is not None and site.country in allowed
    listed = _listed(allowed) or "no country"
    return RuleOutcome(
        rule=rule,
        passed=passed,
        detail=f"{site.hub} is in {site.country or 'an unknown country'}; allowed: {listed}",
        nearest_fix="" if passed else (f"choose a hub in {listed}" if allowed else "not allowed anywhere"),
    )


def _frameworks(tag: Tag, site: LegalSite) -> RuleOutcome:
    missing = [law for law in tag.frameworks if law not in site.frameworks]
    return RuleOutcome(
        rule="frameworks",
        passed=not missing,
        detail=f"needs {_listed(tag.frameworks) or 'none'}; {site.hub} is under or upholds "
        f"{_listed(site.frameworks) or 'none'}",
        nearest_fix=f"choose a hub under {_listed(missing)}, or declare that {site.hub} upholds it" if missing else "",
    )


def _at_rest(tag: Tag, site: LegalSite) -> Outcomes:
    if not tag.encrypt_at_rest:
        return (RuleOutcome(rule="encrypt_at_rest", passed=True, detail="encryption at rest is not required"),)
    has_key = any(code in site.keys_in for code in tag.key_in)
    return (
        RuleOutcome(
            rule="encrypt_at_rest",
            passed=site.encrypts_at_rest,
            detail=f"{site.hub} {'encrypts' if site.encrypts_at_rest else 'is not declared to encrypt'} at rest",
            nearest_fix="" if site.encrypts_at_rest else f"encrypt storage and scratch at {site.hub}, and declare it",
        ),
        RuleOutcome(
            rule="key_in",
            passed=has_key,
            detail=f"keys may be held in {_listed(tag.key_in) or 'no country'}; {site.hub} uses key stores in "
            f"{_listed(site.keys_in) or 'no country'}",
            nearest_fix=""
            if has_key
            else f"give {site.hub} a key store in {_listed(tag.key_in) or 'an allowed country'}",
        ),
    )


def _listed(words: Collection[str]) -> str:
    listed = sorted(words)
    return ", ".join(listed) if len(listed) <= 12 else f"{', '.join(listed[:12])} and {len(listed) - 12} more"


# By which way may data travel? The quickest path whose every link and country its tag allows, or why there is none.


BLOCKED_LISTED_MAX = 4
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
        return Rejection(
            f"{source} -> {target}", "disagreement", "two checks of the same route disagree", "report this as a bug"
        )
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
    return (*found, Rejection(subject, "route", _blocked(terrain, tag, source), "needs a link allowed by its tag"))


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
        return "no link to it"
    more_walls = f"; and {len(walls) - BLOCKED_LISTED_MAX} more links" if len(walls) > BLOCKED_LISTED_MAX else ""
    return "no allowed route: " + "; ".join(walls[:BLOCKED_LISTED_MAX]) + more_walls
