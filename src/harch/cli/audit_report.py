"""`harch audit report`: where data was in a month, from the verified chains of all hubs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harch.base.errors import EXIT_ERROR, EXIT_OK, HarchError
from harch.cli.audit_chains import checkpoints_in, checkpoints_option, export_of, kept_at
from harch.cli.remote import connect, remote_options

if TYPE_CHECKING:
    from harch.sdk import Client
    from harch.sovereignty.audit.checkpoints import SignedCheckpoint
    from harch.sovereignty.audit.report import Report, ReportBuilder

NAMED_MAX = 8  # ids that an error lists


@dataclass(slots=True)
class Meant:
    """What a reference means: ids with where they are known, and hubs that could not be asked."""

    kinds: dict[str, str] = field(default_factory=dict)  # id -> what it is
    known_at: dict[str, list[str]] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)  # hub -> why

    def one(self, ref: str) -> str:
        """The id that `ref` means; `ref` itself if no catalog knows it, because a chain may. Raises E0201 for several.

        An audit must not guess: of several with that name, somebody has to choose.
        """
        if ref in self.kinds:
            return ref
        if len(self.kinds) > 1:
            some = [f"{id_} ({kind})" for id_, kind in sorted(self.kinds.items())]
            more = f" and {len(some) - NAMED_MAX} more" if len(some) > NAMED_MAX else ""
            raise HarchError(
                "E0201",
                f"`{ref[:128]}` is the name of {len(some)} things",
                hint=f"give the id of one: {', '.join(some[:NAMED_MAX])}{more}",
                field="data",
            )
        return next(iter(self.kinds), ref)


@click.command("report")
@click.option(
    "--data", "ref", metavar="NAME", required=True, help="The dataset, or the workload, to report on: name or id."
)
@click.option("--month", metavar="YYYY-MM", required=True, help="Which month, in UTC.")
@click.option("--html", "html_file", metavar="FILE", help="Write a page for people; it loads nothing from outside.")
@click.option("--file", "files", metavar="FILE", multiple=True, help="Use this export instead of asking. Repeatable.")
@checkpoints_option
@remote_options
def report(
    ref: str,
    month: str,
    html_file: str | None,
    files: tuple[str, ...],
    checkpoints_file: str | None,
    hub: str | None,
    as_json: bool,
) -> int:
    """Report where data was in a month: processed, moved, by whose authority, by which policy version.

    Reads and verifies the chain of every hub (of one with --hub). Ends with 1 if a chain was missing or tampered with:
    the report then says so, and proves nothing. What no hub and no chain knows is an error.
    """
    from harch.base.clock import SystemClock, iso
    from harch.cli.output import emit_json
    from harch.sovereignty.audit.report import ReportBuilder, month_bounds

    now, kept = iso(SystemClock().now()), checkpoints_in(checkpoints_file)
    month_bounds(month)  # a mistake is told before hubs are asked
    if files:
        builder = ReportBuilder(ref, month)
        for file in files:
            _read_chain(builder, kept, file=file, hub=None)
    else:
        with connect() as client:
            known = client.hubs.list()
        hubs = [hub] if hub else [view.id for view in known]
        meant = _meaning(ref, hubs)
        found = meant.one(ref)
        builder = ReportBuilder(found, month, name=ref, known_at=meant.known_at.get(found, ()))
        kept += kept_at(known, None).checkpoints
        for name in hubs:
            try:
                if name in meant.silent:
                    builder.take_missing(name, meant.silent[name])
                else:
                    _read_chain(builder, kept, file=None, hub=name)
            except HarchError as error:
                builder.take_missing(name, error.message)
        if hub is None:
            for name, at in _gone(kept, hubs, month_bounds(month)[0]).items():
                builder.take_missing(name, f"it is no hub of the fleet any more, and was one on {at}")
    made = builder.build(made_at=now)
    if html_file is not None:
        _write_html(made, html_file)
    if as_json:
        emit_json(made)
    else:
        _show(made, html_file)
    return EXIT_OK if made.complete else EXIT_ERROR


def _gone(kept: list[SignedCheckpoint], hubs: list[str], first: str) -> dict[str, str]:
    """Hubs that lived in the month, by the checkpoints that others keep, and cannot be asked."""
    last: dict[str, str] = {}
    for one in kept:
        checkpoint = one.checkpoint
        if checkpoint.hub not in hubs and checkpoint.at >= first:
            last[checkpoint.hub] = max(checkpoint.at, last.get(checkpoint.hub, ""))
    return last


def _meaning(ref: str, hubs: list[str]) -> Meant:
    """Asks the catalogs and lists of the hubs. One that does not answer is noted: the report will not be complete."""
    meant = Meant()
    for hub in hubs:
        try:
            with connect(hub) as client:
                for id_, kind in _named(client, ref).items():
                    meant.kinds[id_] = kind
                    meant.known_at.setdefault(id_, []).append(hub)
        except HarchError as error:
            if error.code.startswith("E01") or error.code == "E0305":  # the caller's key, or a name that is no hub's
                raise
            meant.silent[hub] = error.message
    return meant


def _named(client: Client, ref: str) -> dict[str, str]:
    """What a hub knows by that id or name."""
    found = {data.id: data.kind for data in client.data.list(name=ref)}
    found |= {workload.id: "workload" for workload in client.workloads.list(name=ref).items}
    for find, code in ((client.data.get, "E0906"), (client.workloads.get, "E0301")):
        try:
            one = find(ref)
        except HarchError as error:
            if error.code != code:
                raise
        else:
            if one.id == ref:
                found[ref] = getattr(one, "kind", "workload")
    return found


def _read_chain(builder: ReportBuilder, kept: list[SignedCheckpoint], *, file: str | None, hub: str | None) -> None:
    from harch.sovereignty.audit.chain import split_lines
    from harch.sovereignty.audit.verification import ChainVerifier

    verifier = ChainVerifier(kept)
    with export_of(file, hub) as pieces:
        for line in split_lines(pieces):
            entry = verifier.take(line)
            if entry is not None:
                builder.take(entry)
    builder.take_outcome(verifier.finish())


def _write_html(made: Report, path: str) -> None:
    from harch.sovereignty.audit.report_html import render_html

    try:
        Path(path).write_text(render_html(made), encoding="utf-8")
    except OSError as error:
        raise HarchError("E0201", f"{path} cannot be written: {error.strerror}", hint="check the path") from error


def _show(made: Report, html_file: str | None) -> None:
    from harch.cli.output import clean, note, table

    if not made.complete:
        click.echo(f"NOT COMPLETE, so no proof: {clean('; '.join(made.problems))}")
    subject = f"{clean(made.name)} ({clean(made.ref)})" if made.name else clean(made.ref)
    span = made.month if made.until < made.made_at else f"{made.month} up to {made.until}"
    places = ", ".join(f"{country} ({count})" for country, count in made.countries.items())
    times = "1 time" if len(made.moved) == 1 else f"{len(made.moved)} times"
    click.echo(f"{subject} in {span}: processed {f'in {places}' if places else 'nowhere'}; moved {times}\n")
    table(
        ("SINCE", "UNTIL", "HUB", "COUNTRY", "WORKLOAD", "AUTHORITY", "POLICY"),
        [
            (p.since, p.until or "goes on", p.hub, ", ".join(p.countries), p.workload, p.authority, p.policy_version)
            for p in made.processed
        ],
    )
    if made.moved:
        click.echo()
        table(
            ("AT", "FROM", "TO", "COUNTRIES", "AUTHORITY", "POLICY"),
            [
                (m.at, m.origin, m.destination, " > ".join(m.countries), m.authority, m.policy_version)
                for m in made.moved
            ],
        )
    for chain in made.chains:
        since = f" since {chain.begins}" if chain.begins else ""
        note(f"chain of {clean(chain.hub)}: {clean(chain.problem) or f'{chain.entries} entries verified{since}'}")
    if html_file is not None:
        note(f"wrote {html_file}")
