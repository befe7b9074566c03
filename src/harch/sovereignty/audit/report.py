"""Where was this data in that month, who answered for it, and by which rule? A report from verified audit chains."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from msgspec import Struct

from harch.base.errors import HarchError
from harch.sovereignty.audit.entry import (
    ADMITTED,
    BORROWED,
    DATA_ADDED,
    DATA_DERIVED,
    DATA_REFUSED,
    DATA_TAGGED,
    DECLASSIFIED,
    ENDED,
    LENT,
    LOAD_REFUSED,
    MOVED,
    OFFERED,
    PLACED,
    REFUSED,
    REQUEUED,
    SCRUBBED,
    VIOLATION,
    AuditEntry,
)
from harch.sovereignty.audit.verification import Outcome

_MONTH = re.compile(r"^(\d{4})-(0[1-9]|1[0-2])$")
_DECISIONS = frozenset(
    {
        ADMITTED,
        REFUSED,
        OFFERED,
        LENT,
        BORROWED,
        LOAD_REFUSED,
        DATA_ADDED,
        DATA_TAGGED,
        DATA_DERIVED,
        DATA_REFUSED,
        DECLASSIFIED,
        VIOLATION,
        SCRUBBED,
    }
)


class Processing(Struct, frozen=True, kw_only=True):
    """From the moment a workload had its GPUs until it gave them back; `until` is empty while it has not."""

    workload: str
    hub: str
    countries: tuple[str, ...]
    since: str
    until: str
    data: tuple[str, ...]
    authority: str
    policy_version: str
    seq: int


class Movement(Struct, frozen=True, kw_only=True):
    at: str
    hub: str  # whose chain says so
    data: tuple[str, ...]
    origin: str
    destination: str
    countries: tuple[str, ...]
    bytes_count: int
    actor: str
    authority: str
    policy_version: str
    seq: int


class Decision(Struct, frozen=True, kw_only=True):
    at: str
    hub: str
    kind: str
    subject: str
    verdict: str
    reason: str
    actor: str
    authority: str
    policy_version: str
    seq: int


class ChainFacts(Struct, frozen=True, kw_only=True):
    """What the report rests on: one chain, and whether it is whole."""

    hub: str
    entries: int
    head: str
    checkpoints: int
    problem: str  # empty: verified


class Report(Struct, frozen=True, kw_only=True):
    ref: str
    month: str
    made_at: str
    complete: bool  # every chain was there and whole
    chains: list[ChainFacts]
    countries: dict[str, int]  # where it was processed, and how often
    policy_versions: list[str]
    processed: list[Processing]
    moved: list[Movement]
    decisions: list[Decision]


class ReportBuilder:
    """Takes the good entries of any number of chains, chain by chain; keeps only what concerns `ref` in `month`."""

    def __init__(self, ref: str, month: str) -> None:
        self.ref, self.month = ref, month
        self._first, self._next = month_bounds(month)
        self._open: dict[tuple[str, str], AuditEntry] = {}
        self._processed: list[Processing] = []
        self._moved: list[Movement] = []
        self._decisions: list[Decision] = []
        self._chains: list[ChainFacts] = []

    def take(self, entry: AuditEntry) -> None:
        if entry.at >= self._next:
            return
        if entry.kind in (ENDED, REQUEUED):
            placed = self._open.pop((entry.hub, entry.subject), None)
            if placed is not None and entry.at >= self._first:
                self._processed.append(_processing(placed, entry.at))
            return
        if not entry.concerns(self.ref):
            return
        if entry.kind == PLACED:
            self._open[entry.hub, entry.subject] = entry
        elif entry.at < self._first:
            return
        elif entry.kind == MOVED:
            self._moved.append(_movement(entry))
        elif entry.kind in _DECISIONS:
            self._decisions.append(_decision(entry))

    def take_outcome(self, outcome: Outcome) -> None:
        """A chain has been read to its end."""
        finding = outcome.finding
        problem = f"entry {finding.seq}: {finding.kind}: {finding.detail}" if finding else ""
        self._chains.append(
            ChainFacts(
                hub=outcome.hub,
                entries=outcome.entries,
                head=outcome.head,
                checkpoints=outcome.checkpoints,
                problem=problem,
            )
        )

    def take_missing(self, hub: str, why: str) -> None:
        """A chain that could not be read: the report says so instead of passing over it."""
        self._chains.append(ChainFacts(hub=hub, entries=0, head="", checkpoints=0, problem=f"not read: {why}"))

    def build(self, *, made_at: str) -> Report:
        processed = [*self._processed, *(_processing(placed, "") for placed in self._open.values())]
        processed.sort(key=lambda one: (one.since, one.seq))
        countries: dict[str, int] = {}
        for one in processed:
            for country in one.countries:
                countries[country] = countries.get(country, 0) + 1
        facts: Iterable[Processing | Movement | Decision] = (*processed, *self._moved, *self._decisions)
        return Report(
            ref=self.ref,
            month=self.month,
            made_at=made_at,
            complete=bool(self._chains) and not any(chain.problem for chain in self._chains),
            chains=self._chains,
            countries=dict(sorted(countries.items())),
            policy_versions=sorted({one.policy_version for one in facts}),
            processed=processed,
            moved=sorted(self._moved, key=lambda one: (one.at, one.seq)),
            decisions=sorted(self._decisions, key=lambda one: (one.at, one.seq)),
        )


def month_bounds(month: str) -> tuple[str, str]:
    """First moment of the month and of the next one, as entries write time. Raises E0201."""
    match = _MONTH.match(month)
    if match is None:
        raise HarchError("E0201", f"`{month[:32]}` is not a month", hint="write e.g. 2026-11", field="month")
    year, number = int(match[1]), int(match[2])
    if not 1970 <= year <= 9998:
        raise HarchError("E0201", f"the year {year} is out of range", hint="write e.g. 2026-11", field="month")
    after = datetime(year + number // 12, number % 12 + 1, 1, tzinfo=UTC)
    return f"{month}-01T00:00:00.000Z", f"{after:%Y-%m}-01T00:00:00.000Z"


def _processing(placed: AuditEntry, until: str) -> Processing:
    return Processing(
        workload=placed.subject,
        hub=placed.hub,
        countries=placed.countries,
        since=placed.at,
        until=until,
        data=placed.data,
        authority=placed.authority,
        policy_version=placed.policy_version,
        seq=placed.seq,
    )


def _movement(entry: AuditEntry) -> Movement:
    count = entry.details.get("bytes", 0)
    return Movement(
        at=entry.at,
        hub=entry.hub,
        data=entry.data,
        origin=str(entry.details.get("from", "")),
        destination=str(entry.details.get("to", "")),
        countries=entry.countries,
        bytes_count=count if isinstance(count, int) else 0,
        actor=entry.actor,
        authority=entry.authority,
        policy_version=entry.policy_version,
        seq=entry.seq,
    )


def _decision(entry: AuditEntry) -> Decision:
    return Decision(
        at=entry.at,
        hub=entry.hub,
        kind=entry.kind,
        subject=entry.subject,
        verdict=entry.verdict,
        reason=str(entry.details.get("reason", "")),
        actor=entry.actor,
        authority=entry.authority,
        policy_version=entry.policy_version,
        seq=entry.seq,
    )
