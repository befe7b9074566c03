"""Who is stopped, where, and by what?

The four gates: admission, offer, load, and the audit of what runs; and migrations, replicas, pipeline edges and
telemetry.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from harch.base.rejection import Rejection, rejected
from harch.sovereignty.compiled import Rules
from harch.sovereignty.geography import LegalSite
from harch.sovereignty.rules import explain_process, explain_rest, explain_transfer, explain_view, quickest_way
from harch.sovereignty.tags import DataObject, Tag

# Who is stopped, where, and by what? The four gates: admission, offer, load, and the audit of what runs.
#
# Each is a pure function to a verdict with every reason. The first two use the compiled rules; admission also asks the
# slow rules, and where the two disagree it refuses, because one of them is wrong.


class AccessRequest(Struct, frozen=True, kw_only=True):
    """A workload as the gates see it: where it may run, and the data that it names."""

    id: str
    countries_allowed: tuple[str, ...] = ()  # as in its specification: empty means that it names no limit of its own
    reads: tuple[DataObject, ...] = ()
    not_found: tuple[str, ...] = ()  # names of data that the catalog does not have


class SovereigntyGate(StrEnum):
    ADMISSION = "admission"
    OFFER = "offer"
    LOAD = "load"
    AUDIT = "audit"


class GateVerdict(Struct, frozen=True, kw_only=True):
    """`allowed` only without any rejection. `scrub_after`: what the work leaves at the hub may not rest there."""

    gate: SovereigntyGate
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


class GateAction(StrEnum):
    """What to do about a violation. Whatever it is, somebody is notified."""

    PAUSE = "pause"
    SCRUB = "scrub"
    ALERT = "alert"


class RunningWork(Struct, frozen=True, kw_only=True):
    """Work that runs now, and where."""

    access: AccessRequest
    hub: str


class Violation(Struct, frozen=True, kw_only=True):
    """Something that must not be, with what to do, in this order."""

    subject: str
    hub: str
    actions: tuple[GateAction, ...]
    rejections: tuple[Rejection, ...]


def eligible_mask(rules: Rules, access: AccessRequest) -> int:
    """The hubs that may run this work, by `Rules.bits`: for candidate sets, before any score is computed."""
    if access.not_found:
        return 0
    mask = rules.hubs_in(access.countries_allowed) if access.countries_allowed else rules.mask_of(rules.bits)
    for data in access.reads:
        compiled = rules.compile(data.tag)
        reachable = 0
        for hub in data.hubs:
            if data.tag is not None and hub in rules.bits:
                reachable |= compiled.reach[rules.bits[hub]]
        mask &= compiled.process & reachable
    return mask


def admit(rules: Rules, access: AccessRequest, hub: str) -> GateVerdict:
    """Gate 1: may this hub take the work on, with every piece of data that it names?"""
    allowed = bool(eligible_mask(rules, access) & rules.mask_of((hub,)))
    return _verdict(SovereigntyGate.ADMISSION, rules, access, hub, allowed)


def before_offer(rules: Rules, access: AccessRequest, candidates: Iterable[str]) -> OfferVerdict:
    """Gate 2: only hubs that may run the work ever hear of it."""
    mask = eligible_mask(rules, access)
    eligible: list[str] = []
    rejections: list[Rejection] = []
    for hub in dict.fromkeys(candidates):
        if mask & rules.mask_of((hub,)):
            eligible.append(hub)
        else:
            rejections += _verdict(SovereigntyGate.OFFER, rules, access, hub, False).rejections
    return OfferVerdict(subject=access.id, eligible=tuple(eligible), rejections=tuple(rejections))


def before_load(access: AccessRequest, own: LegalSite) -> GateVerdict:
    """Gate 3: the agent asks again, of its own country and safeguards only, whatever the hub says."""
    found = [*_missing(access), *_residency(access, own)]
    for data in access.reads:
        found += rejected(f"{data.name} at {own.hub}", explain_process(data.tag, own))
    return GateVerdict(
        gate=SovereigntyGate.LOAD,
        subject=access.id,
        hub=own.hub,
        allowed=not found,
        rejections=tuple(found),
        scrub_after=any(not _passes_rest(data.tag, own) for data in access.reads),
    )


def audit_running(rules: Rules, running: Iterable[RunningWork]) -> tuple[Violation, ...]:
    """Gate 4: what runs where it must not is paused, its scratch is scrubbed, and somebody is notified.

    The way that data took is not asked again: it is there, and a link that has closed since makes that no wrong.
    """
    violations = []
    for work in running:
        access = work.access
        site = rules.terrain.site(work.hub) or LegalSite(hub=work.hub, country=None)
        reasons = before_load(access, site).rejections
        if not reasons and not all(rules.may_process(data.tag, work.hub) for data in access.reads):
            reasons = (_disagreement(access, work.hub),)
        if reasons:
            scrub = (GateAction.SCRUB,) if access.reads else ()
            actions = (GateAction.PAUSE, *scrub, GateAction.ALERT)
            violations.append(Violation(subject=access.id, hub=work.hub, actions=actions, rejections=reasons))
    return tuple(violations)


def audit_resting(rules: Rules, objects: Iterable[DataObject], running: Iterable[RunningWork]) -> tuple[Violation, ...]:
    """Gate 4 for copies: one that rests where it may not is scrubbed, unless work that may read it there still does."""
    in_use = {
        (data.id, work.hub) for work in running for data in work.access.reads if rules.may_process(data.tag, work.hub)
    }
    return tuple(
        Violation(
            subject=data.id,
            hub=hub,
            actions=(GateAction.SCRUB, GateAction.ALERT) if data.tag is not None else (GateAction.ALERT,),
            rejections=rejected(f"{data.name} at {hub}", explain_rest(data.tag, rules.terrain.site(hub))),
        )
        for data in objects
        for hub in data.hubs
        if not rules.may_rest(data.tag, hub) and (data.id, hub) not in in_use
    )


def _verdict(gate: SovereigntyGate, rules: Rules, access: AccessRequest, hub: str, allowed: bool) -> GateVerdict:
    """The compiled answer with the reasons of the slow rules; a yes needs both, and a no needs a reason."""
    reasons = explain_work(rules, access, hub)
    if allowed == bool(reasons):
        reasons = (*reasons, _disagreement(access, hub))
    return GateVerdict(
        gate=gate,
        subject=access.id,
        hub=hub,
        allowed=allowed and not reasons,
        rejections=reasons,
        scrub_after=any(not rules.may_rest(data.tag, hub) for data in access.reads),
    )


def explain_work(rules: Rules, access: AccessRequest, hub: str) -> tuple[Rejection, ...]:
    """Every rule that keeps this work, and each piece of data that it names, from this hub. Slow; for people."""
    terrain = rules.terrain
    site = terrain.site(hub)
    found = [*_missing(access), *_residency(access, site or LegalSite(hub=hub, country=None))]
    if site is None:
        found.append(Rejection(hub, "site", f"the hub `{hub}` is not known", "choose a hub of the fleet"))
    for data in access.reads:
        subject = f"{data.name} at {hub}"
        found += rejected(subject, explain_process(data.tag, site))
        if not data.hubs:
            found.append(Rejection(subject, "location", "no known copy", "name the hub that has it"))
        ways = [explain_transfer(terrain, data.tag, source, hub) for source in data.hubs]
        if ways and all(ways):  # every copy has a reason why it cannot come
            found += [reason for reasons in ways for reason in reasons if reason.rule in ("route", "site", "tag")]
    return tuple(dict.fromkeys(found))


def _missing(access: AccessRequest) -> list[Rejection]:
    return [
        Rejection(access.id, "data", f"names data `{name[:64]}`, which is not known", "add and tag it first")
        for name in access.not_found
    ]


def _residency(access: AccessRequest, site: LegalSite) -> list[Rejection]:
    if not access.countries_allowed or site.country in access.countries_allowed:
        return []
    listed = ", ".join(access.countries_allowed)
    where = site.country or "an unknown country"
    return [Rejection(site.hub, "residency", f"is in {where}; allowed: {listed}", f"choose a hub in {listed}")]


def _passes_rest(tag: Tag | None, site: LegalSite) -> bool:
    return all(outcome.passed for outcome in explain_rest(tag, site))


def _disagreement(access: AccessRequest, hub: str) -> Rejection:
    return Rejection(
        f"{access.id} at {hub}",
        "disagreement",
        "two checks of one rule disagree, so it is no",
        "report this as a fault",
    )


# What else can carry data somewhere? Migrations, replicas, pipeline edges and telemetry, each with its check.
#
# They are small values on purpose: the rooms that offer, migrate and stream build them from what they have, ask here,
# and act only on an empty answer.


class WorkOffer(Struct, frozen=True, kw_only=True):
    """Work that its owner would like to see run at one of some other hubs."""

    access: AccessRequest
    owner: str
    candidates: tuple[str, ...]


class Migration(Struct, frozen=True, kw_only=True):
    """Running work that would go from one hub to another, with its checkpoint."""

    access: AccessRequest
    checkpoint: DataObject
    source: str
    target: str


class Replica(Struct, frozen=True, kw_only=True):
    """A further copy of data, kept at another hub."""

    data: DataObject
    source: str
    target: str


class PipelineEdge(Struct, frozen=True, kw_only=True):
    """A stream from a stage at one hub to a stage at another."""

    pipeline: str
    stream: Tag | None
    source: str
    target: str


class TelemetryExport(Struct, frozen=True, kw_only=True):
    """Logs, metrics or traces of something with this tag, shown at another hub; `stored` if they are kept there."""

    stream: Tag | None
    source: str
    viewer: str
    stored: bool


def check_offer(rules: Rules, offer: WorkOffer) -> OfferVerdict:
    """Which candidates may hear of the work. The owner needs no offer."""
    return before_offer(rules, offer.access, (hub for hub in offer.candidates if hub != offer.owner))


def check_migration(rules: Rules, migration: Migration) -> tuple[Rejection, ...]:
    """The work and its data must be welcome at the target, and the checkpoint must be able to get and be used there."""
    checkpoint = migration.checkpoint.tag
    terrain = rules.terrain
    subject = f"{migration.checkpoint.name} at {migration.target}"
    reasons = (
        *explain_work(rules, migration.access, migration.target),
        *rejected(subject, explain_process(checkpoint, terrain.site(migration.target))),
        *explain_transfer(terrain, checkpoint, migration.source, migration.target),
    )
    allowed = (
        bool(eligible_mask(rules, migration.access) & rules.mask_of((migration.target,)))
        and rules.may_move(checkpoint, migration.source, migration.target)
        and rules.may_process(checkpoint, migration.target)
    )
    return _agreed(subject, reasons, allowed)


def check_replica(rules: Rules, replica: Replica) -> tuple[Rejection, ...]:
    """A copy must be able to get there, and to rest there."""
    tag = replica.data.tag
    subject = f"{replica.data.name} at {replica.target}"
    reasons = (
        *rejected(subject, explain_rest(tag, rules.terrain.site(replica.target))),
        *explain_transfer(rules.terrain, tag, replica.source, replica.target),
    )
    allowed = rules.may_move(tag, replica.source, replica.target) and rules.may_rest(tag, replica.target)
    return _agreed(subject, reasons, allowed)


def check_edge(rules: Rules, edge: PipelineEdge) -> tuple[Rejection, ...]:
    """Messages must be able to get to the next stage, and to be processed there."""
    subject = f"{edge.pipeline}: {edge.source} -> {edge.target}"
    reasons = (
        *rejected(subject, explain_process(edge.stream, rules.terrain.site(edge.target))),
        *explain_transfer(rules.terrain, edge.stream, edge.source, edge.target),
    )
    allowed = rules.may_move(edge.stream, edge.source, edge.target) and rules.may_process(edge.stream, edge.target)
    return _agreed(subject, reasons, allowed)


def check_export(rules: Rules, export: TelemetryExport) -> tuple[Rejection, ...]:
    """Telemetry must be able to get there and be looked at there; if it is kept, it must be able to rest there too."""
    terrain, tag = rules.terrain, export.stream
    subject = f"telemetry: {export.source} -> {export.viewer}"
    viewer = terrain.site(export.viewer)
    reasons = rejected(subject, explain_view(tag, viewer, at_home=export.source == export.viewer))
    if quickest_way(terrain, tag, export.source, export.viewer) is None:
        reasons = (*reasons, Rejection(subject, "route", "no allowed route leads there", "view it where it is"))
    allowed = rules.may_see(tag, export.source, export.viewer)
    if export.stored:
        reasons = (*reasons, *rejected(subject, explain_rest(tag, viewer)))
        allowed = allowed and rules.may_rest(tag, export.viewer)
    return _agreed(subject, reasons, allowed)


def _agreed(subject: str, reasons: tuple[Rejection, ...], allowed: bool) -> tuple[Rejection, ...]:
    """Compiled and slow rules must say the same; where they do not, it is no."""
    unique = tuple(dict.fromkeys(reasons))
    if allowed == bool(unique):
        return (
            *unique,
            Rejection(subject, "disagreement", "two checks of the same rule disagree", "report this as a bug"),
        )
    return unique
