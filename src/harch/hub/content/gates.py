"""May these bytes be read here, and may that hub have them? The gates before every chunk that leaves a store.

Content has the tag of its data object, so the questions are those of the other gates: what may not be processed at a
hub is not read through it, and what may not travel to a hub, or has no business there, is never sent to it.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Iterable

from harch.base.errors import HarchError
from harch.base.rejection import Rejection, rejected
from harch.hub.store.records import CatalogEntry
from harch.sovereignty.compiled import Rules
from harch.sovereignty.rules import explain_arrival, explain_process, explain_transfer, explain_view
from harch.workloads.lifecycle import Workload


def check_read(rules: Rules, entry: CatalogEntry, hub: str) -> None:
    """Somebody, or a node, reads it at this hub. Raises E0907 with every rule that says no."""
    tag, site = entry.object.tag, rules.terrain.site(hub)
    subject = f"{entry.object.name} at {hub}"
    reasons = (
        *rejected(subject, explain_process(tag, site)),
        *rejected(subject, explain_view(tag, site, at_home=True)),
    )
    allowed = rules.may_process(tag, hub) and rules.may_see(tag, hub, hub)
    _raise_unless(allowed, reasons, subject)


def check_send(rules: Rules, entry: CatalogEntry, source: str, target: str) -> None:
    """A hub asks for it. Checked by the one that has it, before it even says how large it is."""
    tag = entry.object.tag
    reasons = explain_transfer(rules.terrain, tag, source, target)
    _raise_unless(rules.may_move(tag, source, target), reasons, f"{entry.object.name}: {source} -> {target}")


def check_arrive(rules: Rules, entry: CatalogEntry, source: str, target: str) -> None:
    """Checked again by the one that fetches it, by its own rules and the tag in force here."""
    tag, site = entry.object.tag, rules.terrain.site(target)
    subject = f"{entry.object.name}: {source} -> {target}"
    reasons = (
        *rejected(subject, explain_arrival(tag, site)),
        *explain_transfer(rules.terrain, tag, source, target),
    )
    _raise_unless(rules.may_move(tag, source, target), tuple(dict.fromkeys(reasons)), subject)


def is_entitled(entry: CatalogEntry, hub: str, lent_there: Iterable[Workload]) -> bool:
    """A hub gets what it has a reason to ask for: what work lent to it reads, and what belongs to it."""
    if entry.home == hub:
        return True
    return any(entry.object.id in workload.data_ids for workload in lent_there)


def _raise_unless(allowed: bool, reasons: tuple[Rejection, ...], subject: str) -> None:
    """A yes needs both the compiled rules and the slow ones; where they disagree, it is no."""
    if allowed and not reasons:
        return
    if not reasons:
        reasons = (Rejection(subject, "disagreement", "two checks of the same rule disagree", "report this as a bug"),)
    fixes = "; ".join(dict.fromkeys(reason.nearest_fix for reason in reasons if reason.nearest_fix))
    raise HarchError(
        "E0907",
        f"{reasons[0].subject}: " + "; ".join(dict.fromkeys(f"{one.rule}: {one.detail}" for one in reasons)),
        hint=fixes or "`harch data where NAME` shows every hub and every rule",
        meta={
            "problems": [
                {"where": one.subject, "rule": one.rule, "what": one.detail, "fix": one.nearest_fix} for one in reasons
            ]
        },
    )
