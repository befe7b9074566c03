"""How does a report look on paper? One HTML page that loads nothing from anywhere, readable on screen and in print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from harch.sovereignty.audit.report import Report
from harch.sovereignty.countries import COUNTRIES

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


def render_html(report: Report) -> str:
    subject, month = escape(f"{report.name} ({report.ref})" if report.name else report.ref), escape(report.month)
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Audit report: {subject}, {month}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Audit report: <code>{subject}</code></h1>",
        f'<p class="quiet">{month}, times in UTC; made {escape(report.made_at)}</p>',
        _verdict(report),
        "<h2>Where it was processed</h2>",
        _sums(report),
        _table(
            ("Since", "Until", "Hub", "Country", "Workload", "Authority", "Policy", "Entry"),
            (
                (
                    one.since,
                    one.until or "goes on",
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
        "<h2>Where it was moved</h2>",
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
        "<h2>What this report rests on</h2>",
        _table(
            ("Hub", "Since", "Entries verified", "Kept checkpoints that agree", "Hash of the last entry", "Problem"),
            (
                (one.hub, one.begins, one.entries, one.checkpoints, one.head, one.problem or "none")
                for one in report.chains
            ),
        ),
        '<p class="quiet">Every hub links its entries by SHA-256 and signs the end of the chain with Ed25519. '
        "<code>harch audit verify</code> repeats the check.</p></body></html>\n",
    ]
    return "\n".join(parts)


def _verdict(report: Report) -> str:
    if report.complete:
        text = f"Complete: the chains of {len(report.chains)} hub(s) were read and verified from their first entry on."
        if report.until >= report.made_at:
            text += f" The month goes on: this speaks of it up to {escape(report.until)}."
        return f'<p class="verdict good">{text}</p>'
    return f'<p class="verdict bad">Not complete, so no proof: {escape("; ".join(report.problems))}.</p>'


def _sums(report: Report) -> str:
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
