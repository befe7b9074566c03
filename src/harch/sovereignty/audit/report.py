"""Where was this data in that month, who answered for it, and by which rule?

A report from verified audit chains, also as one HTML page that loads nothing.
"""

# harch: pure

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from msgspec import Struct

from harch.base.errors import HarchError
from harch.sovereignty.audit.chain import (
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
    LOSS_ACCEPTED,
    MOVED,
    OFFERED,
    PLACED,
    REFUSED,
    REQUEUED,
    SCRUBBED,
    VIOLATION,
    AuditEntry,
)
from harch.sovereignty.audit.verification import VerificationOutcome, loss_in
from harch.sovereignty.jurisdictions import COUNTRIES

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


class ReportedDecision(Struct, frozen=True, kw_only=True):
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
    begins: str = ""  # when its first entry was written; before that it says nothing


class AuditReport(Struct, frozen=True, kw_only=True):
    ref: str  # the id
    month: str
    made_at: str
    complete: bool  # nothing stands in `problems`
    chains: list[ChainFacts]
    countries: dict[str, int]  # where it was processed, and how often
    policy_versions: list[str]
    processed: list[Processing]
    moved: list[Movement]
    decisions: list[ReportedDecision]
    name: str = ""  # what it was asked for by, if not by its id
    until: str = ""  # up to when it speaks: the end of the month, or `made_at` while the month goes on
    problems: list[str] = []  # why it proves nothing: chains that are missing, bad, or too young


class ReportBuilder:
    """Takes the good entries of any number of chains, chain by chain; keeps only what concerns `ref` in `month`.

    `ref` is an id. `name` is what it is called: refusals of what never got an id stand under the name. `known_at` are
    hubs whose catalogs or lists have it; their chains must mention it.
    """

    def __init__(self, ref: str, month: str, *, name: str = "", known_at: Iterable[str] = ()) -> None:
        self.ref, self.month, self.name = ref, month, name
        self._known_at = tuple(known_at)
        self._first, self._next = month_bounds(month)
        self._mentioned: set[str] = set()  # hubs whose chains speak of it, in any month
        self._named: dict[str, str] = {}  # hubs that must have known of it, and who says so
        self._begins: dict[str, str] = {}
        self._last: dict[str, str] = {}  # hub -> when its last entry so far was written
        self._holes: list[str] = []
        self._open: dict[tuple[str, str], AuditEntry] = {}
        self._processed: list[Processing] = []
        self._moved: list[Movement] = []
        self._decisions: list[ReportedDecision] = []
        self._chains: list[ChainFacts] = []

    def take(self, entry: AuditEntry) -> None:
        self._begins.setdefault(entry.hub, entry.at)
        if entry.kind == LOSS_ACCEPTED:
            self._take_loss(entry)
        self._last[entry.hub] = entry.at
        concerns = entry.concerns(self.ref) or self._refused_by_name(entry)
        if concerns:
            self._mentioned.add(entry.hub)
        if entry.at >= self._next:
            return
        if entry.kind in (ENDED, REQUEUED):
            placed = self._open.pop((entry.hub, entry.subject), None)
            if placed is not None and entry.at >= self._first:
                self._processed.append(_processing(placed, entry.at))
            return
        if not concerns:
            return
        for hub in filter(None, _hubs_named(entry)):
            self._named.setdefault(hub, entry.hub)
        if entry.kind == PLACED:
            self._open[entry.hub, entry.subject] = entry
        elif entry.at < self._first:
            return
        elif entry.kind == MOVED:
            self._moved.append(_movement(entry))
        elif entry.kind in _DECISIONS:
            self._decisions.append(_decision(entry))

    def take_outcome(self, outcome: VerificationOutcome) -> None:
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
                begins=self._begins.get(outcome.hub, ""),
            )
        )

    def take_missing(self, hub: str, why: str) -> None:
        """A chain that could not be read: the report says so instead of passing over it."""
        self._chains.append(ChainFacts(hub=hub, entries=0, head="", checkpoints=0, problem=f"not read: {why}"))

    def build(self, *, made_at: str) -> AuditReport:
        """Raises E0201 for a month that has not begun, E0351 for what no chain mentions: neither is an all-clear."""
        if made_at < self._first:
            raise HarchError(
                "E0201",
                f"{self.month} has not begun",
                hint="choose a month that has, e.g. the last one",
                field="month",
            )
        if not self._mentioned and not self._known_at:
            raise self._unknown()
        processed = [*self._processed, *(_processing(placed, "") for placed in self._open.values())]
        processed.sort(key=lambda one: (one.since, one.seq))
        countries: dict[str, int] = {}
        for one in processed:
            for country in one.countries:
                countries[country] = countries.get(country, 0) + 1
        facts: Iterable[Processing | Movement | ReportedDecision] = (*processed, *self._moved, *self._decisions)
        problems = self._problems()
        return AuditReport(
            ref=self.ref,
            month=self.month,
            made_at=made_at,
            complete=not problems,
            chains=self._chains,
            countries=dict(sorted(countries.items())),
            policy_versions=sorted({one.policy_version for one in facts}),
            processed=processed,
            moved=sorted(self._moved, key=lambda one: (one.at, one.seq)),
            decisions=sorted(self._decisions, key=lambda one: (one.at, one.seq)),
            name=self.name if self.name != self.ref else "",
            until=min(self._next, made_at),
            problems=problems,
        )

    def _take_loss(self, entry: AuditEntry) -> None:
        """What was lost was written between the entry before and this one: was that in the month?"""
        if entry.at >= self._first and self._last.get(entry.hub, "") < self._next:
            self._holes.append(f"{entry.hub}: {loss_in(entry).sentence}")

    def _refused_by_name(self, entry: AuditEntry) -> bool:
        return bool(self.name) and entry.kind in (REFUSED, DATA_REFUSED) and entry.subject == self.name

    def _unknown(self) -> HarchError:
        unread = "; ".join(f"{chain.hub}: {chain.problem}" for chain in self._chains if chain.problem)
        return HarchError(
            "E0351",
            f"no chain read mentions `{self.ref[:128]}`" + (f" ({unread})" if unread else ""),
            hint="`harch data ls` and `harch ps --all-states` show ids; exports and other hubs' work have no names",
            field="data",
        )

    def _problems(self) -> list[str]:
        """Everything that keeps the report from being a proof."""
        if not self._chains:
            return ["no chain was read"]
        found = [f"{chain.hub}: {chain.problem}" for chain in self._chains if chain.problem]
        read = {chain.hub for chain in self._chains}
        found += [
            f"{hub}: not read, but the chain of {source} mentions it"
            for hub, source in self._named.items()
            if hub not in read
        ]
        if all(chain.begins >= self._next for chain in self._chains if not chain.problem):
            young = ", ".join(f"{chain.hub} on {chain.begins}" for chain in self._chains if chain.begins)
            found.append(f"no chain goes back to {self.month}: the first begins at {young}" if young else "")
        found += [
            f"{hub}: has `{self.ref}`, but its chain does not mention it"
            for hub in self._known_at
            if hub not in self._mentioned and hub in self._begins
        ]
        return [text for text in (*found, *self._holes) if text]


def _hubs_named(entry: AuditEntry) -> tuple[str, ...]:
    """Hubs that had part in what an entry tells: their chains have to be read as well."""
    if entry.kind in (LENT, BORROWED):
        return (str(entry.details.get("hub", "")),)
    if entry.kind == MOVED:
        return str(entry.details.get("from", "")), str(entry.details.get("to", ""))
    hubs = entry.details.get("hubs", ()) if entry.kind == DATA_ADDED else ()
    return hubs if isinstance(hubs, tuple) else ()


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


def _decision(entry: AuditEntry) -> ReportedDecision:
    return ReportedDecision(
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


# How does a report look on paper? One HTML page that loads nothing from anywhere, readable on screen and in print.


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 72rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; vertical-align: top;
  padding: .3rem .6rem .3rem 0; border-bottom: 1px solid #ccc; } th { border-bottom: 2px solid #1a1a1a; }
td { overflow-wrap: anywhere; } code { font-size: .85em; }
.verdict { padding: .6rem .9rem; border-left: .4rem solid; } .good { border-color: #1b7f3b; background: #eef8f0; }
.bad { border-color: #b3261e; background: #fbeeee; } .quiet { color: #555; }
@media print { body { font-size: 10pt; margin: 0; max-width: none; } tr { break-inside: avoid; }
  thead { display: table-header-group; } }
"""


def render_html(report: AuditReport) -> str:
    subject, month = escape(f"{report.name} ({report.ref})" if report.name else report.ref), escape(report.month)
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Audit report: {subject}, {month}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Audit report: <code>{subject}</code></h1>",
        f'<p class="quiet">{month}, times in UTC; generated {escape(report.made_at)}</p>',
        _verdict(report),
        "<h2>Where it was processed</h2>",
        _sums(report),
        _table(
            ("Since", "Until", "Hub", "Country", "Workload", "Authority", "Policy", "Entry"),
            (
                (
                    one.since,
                    one.until or "ongoing",
                    one.hub,
                    _places(one.countries),
                    one.workload,
                    one.authority,
                    one.policy_version,
                    one.seq,
                )
                for one in report.processed
            ),
        ),
        "<h2>Where it moved</h2>",
        _table(
            ("At", "From", "To", "Countries crossed", "Bytes", "By", "Authority", "Policy", "Entry"),
            (
                (
                    one.at,
                    one.origin,
                    one.destination,
                    _places(one.countries),
                    one.bytes_count,
                    one.actor,
                    one.authority,
                    one.policy_version,
                    f"{one.hub} {one.seq}",
                )
                for one in report.moved
            ),
        ),
        "<h2>What was decided</h2>",
        _table(
            ("At", "Hub", "Decision", "Subject", "Reason", "By", "Authority", "Policy", "Entry"),
            (
                (
                    one.at,
                    one.hub,
                    f"{one.kind}: {one.verdict}",
                    one.subject,
                    one.reason,
                    one.actor,
                    one.authority,
                    one.policy_version,
                    one.seq,
                )
                for one in report.decisions
            ),
        ),
        "<h2>Evidence</h2>",
        _table(
            ("Hub", "Since", "Entries verified", "Matching stored checkpoints", "Hash of the last entry", "Problem"),
            (
                (one.hub, one.begins, one.entries, one.checkpoints, one.head, one.problem or "none")
                for one in report.chains
            ),
        ),
        '<p class="quiet">Every hub links its entries by SHA-256 and signs the end of the chain with Ed25519. '
        "<code>harch audit verify</code> repeats the check.</p></body></html>\n",
    ]
    return "\n".join(parts)


def _verdict(report: AuditReport) -> str:
    if report.complete:
        text = f"Complete: the chains of {len(report.chains)} hub(s) were read and verified from their first entry."
        if report.until >= report.made_at:
            text += f" The month is not over: this covers it up to {escape(report.until)}."
        return f'<p class="verdict good">{text}</p>'
    return f'<p class="verdict bad">Incomplete, so not a proof: {escape("; ".join(report.problems))}.</p>'


def _sums(report: AuditReport) -> str:
    if not report.countries:
        return ""
    sums = ", ".join(f"{_places((country,))}: {count}" for country, count in report.countries.items())
    policies = ", ".join(report.policy_versions)
    return f"<p>By country: {escape(sums)}. Policy versions: {escape(policies)}.</p>"


def _places(codes: Iterable[str]) -> str:
    return " → ".join(COUNTRIES.get(code, code) for code in codes)


def _table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>\n" for row in rows)
    if not body:
        return '<p class="quiet">Nothing in this month.</p>'
    head = "".join(f"<th>{escape(name)}</th>" for name in headers)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
