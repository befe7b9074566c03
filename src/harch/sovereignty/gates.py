"""Who is stopped, where, and by what? The four gates: admission, offer, load, and the audit of what runs.

Each is a pure function to a verdict with every reason. The first two use the compiled rules; admission also asks the
slow rules, and where the two disagree it refuses, because one of them is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from harch.base.rejection import Rejection, rejected
from harch.sovereignty.compiled import Rules
from harch.sovereignty.routes import explain_transfer
from harch.sovereignty.rules import explain_process, explain_rest
from harch.sovereignty.tags import DataObject, Tag
from harch.sovereignty.terrain import Site


class WorkAsk(Struct, frozen=True, kw_only=True):
    """A workload as the gates see it: where it may run, and the data that it names."""

    id: str
    countries_allowed: tuple[str, ...] = ()  # as in its specification: empty means that it names no limit of its own
    reads: tuple[DataObject, ...] = ()
    not_found: tuple[str, ...] = ()  # names of data that the catalog does not have


class Gate(StrEnum):
    ADMISSION = "admission"
    OFFER = "offer"
    LOAD = "load"
    AUDIT = "audit"


class GateVerdict(Struct, frozen=True, kw_only=True):
    """`allowed` only without any rejection. `scrub_after`: what the work leaves at the hub may not rest there."""

    gate: Gate
    subject: str
    hub: str
    allowed: bool
    rejections: tuple[Rejection, ...]
    scrub_after: bool


class OfferVerdict(Struct, frozen=True, kw_only=True):
    """Which of the candidate hubs may be offered the work; all others with their reasons."""

    subject: str
    eligible: tuple[str, ...]
    rejections: tuple[Rejection, ...]


class Action(StrEnum):
    """What to do about a violation. Whatever it is, somebody is told."""

    PAUSE = "pause"
    SCRUB = "scrub"
    ALERT = "alert"


class RunningWork(Struct, frozen=True, kw_only=True):
    """Work that runs now, and where."""

    ask: WorkAsk
    hub: str


class Violation(Struct, frozen=True, kw_only=True):
    """Something that must not be, with what to do, in this order."""

    subject: str
    hub: str
    actions: tuple[Action, ...]
    rejections: tuple[Rejection, ...]


def eligible_mask(rules: Rules, ask: WorkAsk) -> int:
    """The hubs that may run this work, by `Rules.bits`: for candidate sets, before any score is computed."""
    if ask.not_found:
        return 0
    mask = rules.hubs_in(ask.countries_allowed) if ask.countries_allowed else rules.mask_of(rules.bits)
    for data in ask.reads:
        compiled = rules.compile(data.tag)
        reachable = 0
        for hub in data.hubs:
            if data.tag is not None and hub in rules.bits:
                reachable |= compiled.reach[rules.bits[hub]]
        mask &= compiled.process & reachable
    return mask


def admit(rules: Rules, ask: WorkAsk, hub: str) -> GateVerdict:
    """Gate 1: may this hub take the work on, with every piece of data that it names?"""
    allowed = bool(eligible_mask(rules, ask) & rules.mask_of((hub,)))
    return _verdict(Gate.ADMISSION, rules, ask, hub, allowed)


def before_offer(rules: Rules, ask: WorkAsk, candidates: Iterable[str]) -> OfferVerdict:
    """Gate 2: only hubs that may run the work ever hear of it."""
    mask = eligible_mask(rules, ask)
    eligible: list[str] = []
    rejections: list[Rejection] = []
    for hub in dict.fromkeys(candidates):
        if mask & rules.mask_of((hub,)):
            eligible.append(hub)
        else:
            rejections += _verdict(Gate.OFFER, rules, ask, hub, False).rejections
    return OfferVerdict(subject=ask.id, eligible=tuple(eligible), rejections=tuple(rejections))


def before_load(ask: WorkAsk, own: Site) -> GateVerdict:
    """Gate 3: the agent asks again, of its own country and safeguards only, whatever the hub says."""
    found = [*_missing(ask), *_residency(ask, own)]
    for data in ask.reads:
        found += rejected(f"{data.name} at {own.hub}", explain_process(data.tag, own))
    return GateVerdict(
        gate=Gate.LOAD,
        subject=ask.id,
        hub=own.hub,
        allowed=not found,
        rejections=tuple(found),
        scrub_after=any(not _passes_rest(data.tag, own) for data in ask.reads),
    )


def audit_running(rules: Rules, running: Iterable[RunningWork]) -> tuple[Violation, ...]:
    """Gate 4: what runs where it must not is paused, its scratch is scrubbed, and somebody is told.

    The way that data took is not asked again: it is there, and a link that has closed since makes that no wrong.
    """
    violations = []
    for work in running:
        ask = work.ask
        site = rules.terrain.site(work.hub) or Site(hub=work.hub, country=None)
        reasons = before_load(ask, site).rejections
        if not reasons and not all(rules.may_process(data.tag, work.hub) for data in ask.reads):
            reasons = (_disagreement(ask, work.hub),)
        if reasons:
            scrub = (Action.SCRUB,) if ask.reads else ()
            actions = (Action.PAUSE, *scrub, Action.ALERT)
            violations.append(Violation(subject=ask.id, hub=work.hub, actions=actions, rejections=reasons))
    return tuple(violations)


def audit_resting(rules: Rules, objects: Iterable[DataObject], running: Iterable[RunningWork]) -> tuple[Violation, ...]:
    """Gate 4 for copies: one that rests where it may not is scrubbed, unless work that may read it there still does."""
    in_use = {
        (data.id, work.hub) for work in running for data in work.ask.reads if rules.may_process(data.tag, work.hub)
    }
    return tuple(
        Violation(
            subject=data.id,
            hub=hub,
            actions=(Action.SCRUB, Action.ALERT) if data.tag is not None else (Action.ALERT,),
            rejections=rejected(f"{data.name} at {hub}", explain_rest(data.tag, rules.terrain.site(hub))),
        )
        for data in objects
        for hub in data.hubs
        if not rules.may_rest(data.tag, hub) and (data.id, hub) not in in_use
    )


def _verdict(gate: Gate, rules: Rules, ask: WorkAsk, hub: str, allowed: bool) -> GateVerdict:
    """The compiled answer with the reasons of the slow rules; a yes needs both, and a no needs a reason."""
    reasons = explain_work(rules, ask, hub)
    if allowed == bool(reasons):
        reasons = (*reasons, _disagreement(ask, hub))
    return GateVerdict(
        gate=gate,
        subject=ask.id,
        hub=hub,
        allowed=allowed and not reasons,
        rejections=reasons,
        scrub_after=any(not rules.may_rest(data.tag, hub) for data in ask.reads),
    )


def explain_work(rules: Rules, ask: WorkAsk, hub: str) -> tuple[Rejection, ...]:
    """Every rule that keeps this work, and each piece of data that it names, from this hub. Slow; for people."""
    terrain = rules.terrain
    site = terrain.site(hub)
    found = [*_missing(ask), *_residency(ask, site or Site(hub=hub, country=None))]
    if site is None:
        found.append(Rejection(hub, "site", f"the hub `{hub}` is not known", "choose a hub of the fleet"))
    for data in ask.reads:
        subject = f"{data.name} at {hub}"
        found += rejected(subject, explain_process(data.tag, site))
        if not data.hubs:
            found.append(Rejection(subject, "location", "no copy of it is known", "say at which hub it is"))
        ways = [explain_transfer(terrain, data.tag, source, hub) for source in data.hubs]
        if ways and all(ways):  # every copy has a reason why it cannot come
            found += [reason for reasons in ways for reason in reasons if reason.rule in ("route", "site", "tag")]
    return tuple(dict.fromkeys(found))


def _missing(ask: WorkAsk) -> list[Rejection]:
    return [
        Rejection(ask.id, "data", f"names data `{name[:64]}` that is not known", "add and tag it first")
        for name in ask.not_found
    ]


def _residency(ask: WorkAsk, site: Site) -> list[Rejection]:
    if not ask.countries_allowed or site.country in ask.countries_allowed:
        return []
    listed = ", ".join(ask.countries_allowed)
    where = site.country or "a country that is not known"
    return [Rejection(site.hub, "residency", f"stands in {where}; allowed: {listed}", f"choose a hub in {listed}")]


def _passes_rest(tag: Tag | None, site: Site) -> bool:
    return all(outcome.passed for outcome in explain_rest(tag, site))


def _disagreement(ask: WorkAsk, hub: str) -> Rejection:
    return Rejection(
        f"{ask.id} at {hub}", "disagreement", "two checks of one rule disagree, so it is no", "report this as a fault"
    )
