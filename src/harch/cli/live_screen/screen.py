"""How does a look at the federation become a screen? A pure function of the look, the view and the terminal's size."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harch.cli.live_screen.snapshot import FederationSnapshot, HubLine, WorkLine
from harch.cli.live_screen.view_options import ViewOptions, filtered
from harch.cli.output import age_text, clean
from harch.cli.views.table import TableColumn, fit

if TYPE_CHECKING:
    from rich.text import Text


ROWS_FIRST = {"hubs": 5, "workloads": 3, "pipelines": 2, "alerts": 2, "events": 2}  # before others get more
_ADDRESS = re.compile(r" at https?://[^\s:]+:\d+")
_NONE = {
    "workloads": "no unfinished work",
    "pipelines": "no pipelines",
    "alerts": "no alerts firing",
    "events": "none yet",
}


def _column(
    title: str, importance: int = 0, *, right: bool = False, takes_rest: bool = False, width_max: int = 24
) -> TableColumn:
    """On a screen that is drawn anew each second no single long name may push others out."""
    return TableColumn(title, importance, right, takes_rest, width_max)


HUBS = (
    _column("HUB"),
    _column("IN", 6),
    _column("STATE", 1),
    _column("GPUS USED", 0, right=True),
    _column("FREE", 5, right=True),
    _column("GPU DATA", 9),
    _column("RUNNING", 3, right=True),
    _column("WAITING", 4, right=True),
    _column("POWER", 7, right=True),
    _column("G/KWH", 2, right=True),
    _column("EVIDENCE", 10),
    _column("TELEMETRY", 8, right=True),
    _column("AGE", 7, right=True),
    _column("NOTE", 11, takes_rest=True),
)
WORKLOADS = (
    _column("WORKLOAD"),
    _column("TENANT", 4),
    _column("OWNER", 5),
    _column("RUNS AT", 2),
    _column("STATE", 0),
    _column("GPUS", 1, right=True),
    _column("RAN", 3, right=True),
    _column("ID", 6, width_max=32),
)
PIPELINES = (
    _column("PIPELINE"),
    _column("HUB", 2),
    _column("STATE", 0),
    _column("WORKERS", 5, right=True),
    _column("RATE/S", 1, right=True),
    _column("LAG", 3, right=True),
    _column("P99 MS", 4, right=True),
)
ALERTS = (
    _column("ALERT", width_max=32),
    _column("SEVERITY", 1),
    _column("HUB", 2),
    _column("SINCE", 4),
    _column("SUMMARY", 3, takes_rest=True),
)
EVENTS = (
    _column("AT", 1),
    _column("HUB", 2),
    _column("EVENT", 0, width_max=28),
    _column("WHAT", 3, takes_rest=True),
)


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    columns: Sequence[TableColumn]
    rows: Sequence[Sequence[str]]


def screen(look: FederationSnapshot, view: ViewOptions, width: int, height: int, *, trouble: str = "") -> list[Text]:
    """At most `height` lines of at most `width` cells. What does not fit is counted, never left out in silence."""
    from rich.text import Text

    visible = filtered(look, view)
    sections = [section for section in _sections(visible) if section.name not in view.hidden]
    notes = _notes(look, trouble)
    room = max(0, height - 2)
    kept_notes = notes[: max(0, min(len(notes), room // 5))]
    budgets = _budgets(sections, room - len(kept_notes))
    lines = [_cut(_title(look, view), width, "bold")]
    for section, budget in zip(sections, budgets, strict=True):
        lines += _drawn(section, budget, width)
    lines += [_cut(note, width, "yellow") for note in kept_notes]
    lines = [*lines[: max(1, height - 1)], *([_cut(_footer(view), width, "dim")] if height > 1 else [])]
    return lines or [Text()]


def _title(look: FederationSnapshot, view: ViewOptions) -> str:
    used = sum(hub.gpus_used for hub in look.hubs)
    total = sum(hub.gpus_total for hub in look.hubs)
    away = sum(1 for hub in look.hubs if hub.state in {"suspected", "cut off", "unheard", "no answer"})
    words = [f"harch top, {len(look.hubs)} hubs" + (f", {away} unreachable" if away else "")]
    words += [f"{used:,} of {total:,} GPUs used", f"{look.workloads_total:,} workloads"]
    if look.alerts:
        words.append(f"{len(look.alerts)} alerts")
    words.append(f"seen from {look.seen_from or '-'} at {look.at:%H:%M:%S} UTC")
    return "; ".join(words) + (" (paused)" if view.paused else "")


def _footer(view: ViewOptions) -> str:
    if view.typing is not None:
        return f"filter: {view.typing}_   Enter applies, Esc cancels"
    needle = f" [{view.needle}]" if view.needle else ""
    order = f"{view.order}{', reversed' if view.reverse else ''}"
    return (
        f"q quit  s sort: {order}  r reverse  / filter{needle}  1-5 sections  p pause  +/- every {view.interval_s:g} s"
    )


def _notes(look: FederationSnapshot, trouble: str) -> list[str]:
    """What the screen lacks. Equal reasons are shown once, whatever address they name."""
    by_reason: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for one in look.missing:
        names, hubs = by_reason.setdefault(_ADDRESS.sub("", one.why), ({}, {}))
        names[one.what] = hubs[one.hub or "all hubs"] = None
    reasons = [f"{', '.join(names)} of {', '.join(hubs)} missing: {why}" for why, (names, hubs) in by_reason.items()]
    return [*([trouble] if trouble else []), *reasons]


def _sections(look: FederationSnapshot) -> list[_Section]:
    pipelines = [
        (
            one.name,
            one.hub,
            one.state,
            one.workers,
            f"{one.rate:,.0f}",
            f"{one.lag:,.0f}",
            "-" if one.p99_ms is None else f"{one.p99_ms:.1f}",
        )
        for one in look.pipelines
    ]
    alerts = [(one.name, one.severity or "-", one.hub, one.since[:19], one.summary) for one in look.alerts]
    events = [
        (f"{one.at:%H:%M:%S}", one.hub, one.kind, f"{one.subject}: {one.message}" if one.message else one.subject)
        for one in look.events
    ]
    return [
        _Section("hubs", HUBS, [_hub_row(hub) for hub in look.hubs]),
        _Section("workloads", WORKLOADS, [_work_row(one) for one in look.workloads]),
        _Section("pipelines", PIPELINES, pipelines),
        _Section("alerts", ALERTS, alerts),
        _Section("events", EVENTS, events),
    ]


def _hub_row(hub: HubLine) -> tuple[str, ...]:
    unknown = hub.age_s is None
    return (
        f"{hub.name} *" if hub.own else hub.name,
        hub.country or "-",
        hub.state or "-",
        "unknown" if unknown else f"{hub.gpus_used} of {hub.gpus_total}",
        "-" if unknown else str(hub.gpus_free),
        hub.gpus_are or "-",
        "-" if unknown else str(hub.running),
        "-" if unknown else str(hub.waiting),
        "-" if hub.power_kw is None else f"{hub.power_kw:,.0f} kW {hub.power_is}",
        "-" if hub.g_per_kwh is None else f"{hub.g_per_kwh:.0f}",
        hub.carbon_is or "-",
        "-" if hub.telemetry_lag_s is None else f"{age_text(hub.telemetry_lag_s)} ago",
        age_text(hub.age_s),
        hub.note,
    )


def _work_row(one: WorkLine) -> tuple[str, ...]:
    gpus = f"{one.gpus:g}" + (" modelled" if one.modelled else "")
    ran = "-" if one.ran_s is None else age_text(one.ran_s)
    return one.name, one.tenant, one.owner or "-", one.runner or "-", one.status, gpus, ran, one.id


def _budgets(sections: Sequence[_Section], room: int) -> list[int]:
    """Lines for each section, titles and all. Each gets a few first; then the rest goes from the first to the last."""
    wanted = [1 + max(1, len(section.rows)) for section in sections]
    given = [0] * len(sections)
    for at, section in enumerate(sections):
        given[at] = min(wanted[at], 1 + ROWS_FIRST[section.name], max(0, room - sum(given)))
        if given[at] < 2:
            given[at] = 0  # a title without a row says nothing
    for at in range(len(sections)):
        if given[at]:
            given[at] += min(wanted[at] - given[at], max(0, room - sum(given)))
    return given


def _drawn(section: _Section, budget: int, width: int) -> list[Text]:
    if budget < 2:
        return []
    if not section.rows:
        titles = fit(section.columns, [], width)
        return [*titles, _cut(_NONE.get(section.name, "none"), width, "dim")]
    rows = section.rows
    over = len(rows) - (budget - 1)
    if over > 0:
        rows = rows[: budget - 2]
        return [*fit(section.columns, rows, width), _cut(f"and {len(section.rows) - len(rows)} more", width, "dim")]
    return fit(section.columns, rows, width)


def _cut(text: str, width: int, style: str) -> Text:
    from rich.text import Text

    line = Text(clean(text), style=style, no_wrap=True)
    line.truncate(width, overflow="ellipsis")
    return line
