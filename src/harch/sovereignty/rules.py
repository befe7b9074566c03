"""What exactly do the rules say, and why not? Each rule once, in words and sets: the slow path that explains.

`compiled` says the same in masks. Both are compared with each other and with an oracle; where they disagree, it is no.
"""

from __future__ import annotations

from collections.abc import Collection

from harch.base.rejection import RuleOutcome
from harch.sovereignty.tags import Classification, Tag
from harch.sovereignty.terrain import Passage, Site

Outcomes = tuple[RuleOutcome, ...]
_NO_TAG = RuleOutcome(
    rule="tag", passed=False, detail="no tag is known, and what is unknown permits nothing", nearest_fix="tag the data"
)
_NO_SITE = RuleOutcome(
    rule="site", passed=False, detail="this hub is not known", nearest_fix="choose a hub of the fleet"
)


def explain_process(tag: Tag | None, site: Site | None) -> Outcomes:
    """May it be processed at that site? Work writes scratch, so what must be encrypted at rest must be so here too."""
    if tag is None or site is None:
        return _unknown(tag, site)
    return (_country("process_in", tag.process_in, site), _frameworks(tag, site), *_at_rest(tag, site))


def explain_rest(tag: Tag | None, site: Site | None) -> Outcomes:
    """May a copy of it be kept at that site?"""
    if tag is None or site is None:
        return _unknown(tag, site)
    return (_country("rest_in", tag.rest_in, site), _frameworks(tag, site), *_at_rest(tag, site))


def explain_arrival(tag: Tag | None, site: Site | None) -> Outcomes:
    """May it arrive there at all? It must be permitted to rest or to be processed, else it has no business there."""
    if tag is None or site is None:
        return _unknown(tag, site)
    return (_country("arrive_in", {*tag.process_in, *tag.rest_in}, site), _frameworks(tag, site), *_at_rest(tag, site))


def explain_view(tag: Tag | None, site: Site | None, *, at_home: bool) -> Outcomes:
    """May it be looked at from that site? Looking is processing; `restricted` data is looked at only where it is."""
    if tag is None or site is None:
        return _unknown(tag, site)
    restricted = tag.classification is Classification.RESTRICTED
    classification = RuleOutcome(
        rule="classification",
        passed=at_home or not restricted,
        detail=f"is {tag.classification} and would be seen {'where it is' if at_home else 'at another hub'}",
        nearest_fix="" if at_home or not restricted else "look at it on the hub where it is",
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
            detail=f"crosses {_listed(crossed) or 'a country that is not known'}; may travel over "
            f"{_listed(tag.transit_in) or 'none'}",
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
            nearest_fix="" if encryption else "encrypt the link and declare it so",
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


def _unknown(tag: Tag | None, site: Site | None) -> Outcomes:
    return (*((_NO_TAG,) if tag is None else ()), *((_NO_SITE,) if site is None else ()))


def _country(rule: str, allowed: Collection[str], site: Site) -> RuleOutcome:
    passed = site.country is not None and site.country in allowed
    listed = _listed(allowed) or "no country"
    return RuleOutcome(
        rule=rule,
        passed=passed,
        detail=f"{site.hub} stands in {site.country or 'a country that is not known'}; allowed: {listed}",
        nearest_fix="" if passed else (f"choose a hub in {listed}" if allowed else "nowhere is allowed"),
    )


def _frameworks(tag: Tag, site: Site) -> RuleOutcome:
    missing = [law for law in tag.frameworks if law not in site.frameworks]
    return RuleOutcome(
        rule="frameworks",
        passed=not missing,
        detail=f"needs {_listed(tag.frameworks) or 'none'}; {site.hub} is under or upholds "
        f"{_listed(site.frameworks) or 'none'}",
        nearest_fix=f"choose a hub under {_listed(missing)}, or declare that {site.hub} upholds it" if missing else "",
    )


def _at_rest(tag: Tag, site: Site) -> Outcomes:
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
    shown = sorted(words)
    return ", ".join(shown) if len(shown) <= 12 else f"{', '.join(shown[:12])} and {len(shown) - 12} more"
