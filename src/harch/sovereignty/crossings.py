"""What else can carry data somewhere? Migrations, replicas, pipeline edges and telemetry, each with its check.

They are small values on purpose: the rooms that offer, migrate and stream build them from what they have, ask here,
and act only on an empty answer.
"""

from __future__ import annotations

from msgspec import Struct

from harch.base.rejection import Rejection, rejected
from harch.sovereignty.compiled import Rules
from harch.sovereignty.gates import OfferVerdict, WorkAsk, before_offer, eligible_mask, explain_work
from harch.sovereignty.routes import explain_transfer, quickest_way
from harch.sovereignty.rules import explain_process, explain_rest, explain_view
from harch.sovereignty.tags import DataObject, Tag


class Offer(Struct, frozen=True, kw_only=True):
    """Work that its owner would like to see run at one of some other hubs."""

    ask: WorkAsk
    owner: str
    candidates: tuple[str, ...]


class Migration(Struct, frozen=True, kw_only=True):
    """Running work that would go from one hub to another, with its checkpoint."""

    ask: WorkAsk
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


def check_offer(rules: Rules, offer: Offer) -> OfferVerdict:
    """Which candidates may hear of the work. The owner needs no offer."""
    return before_offer(rules, offer.ask, (hub for hub in offer.candidates if hub != offer.owner))


def check_migration(rules: Rules, migration: Migration) -> tuple[Rejection, ...]:
    """The work and its data must be welcome at the target, and the checkpoint must be able to get and be used there."""
    checkpoint = migration.checkpoint.tag
    terrain = rules.terrain
    subject = f"{migration.checkpoint.name} at {migration.target}"
    reasons = (
        *explain_work(rules, migration.ask, migration.target),
        *rejected(subject, explain_process(checkpoint, terrain.site(migration.target))),
        *explain_transfer(terrain, checkpoint, migration.source, migration.target),
    )
    allowed = (
        bool(eligible_mask(rules, migration.ask) & rules.mask_of((migration.target,)))
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
        reasons = (*reasons, Rejection(subject, "route", "no allowed way leads there", "look at it where it is"))
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
            Rejection(subject, "disagreement", "two checks of one rule disagree", "report this"),
        )
    return unique
