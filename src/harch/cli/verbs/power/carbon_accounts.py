"""`harch carbon report|verify|export …`: what did work use, and is the ledger of it what the hub once booked?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from harch.base.errors import EXIT_ERROR, EXIT_OK, HarchError
from harch.cli.options import file_option
from harch.cli.remote import connect, hub_option, json_option, remote_options
from harch.cli.verbs.sovereignty.audit import export_of, file_pieces, kept_by_others, write_export

if TYPE_CHECKING:
    from collections.abc import Iterable

    from harch.carbon.ledger.chain import LedgerCheckpoint
    from harch.carbon.ledger.verification import LedgerOutcome
    from harch.sdk import Client
    from harch.sdk.carbon_types import HubReport, JobCarbon
    from harch.sovereignty.audit.checkpoints import SignedCheckpoint
    from harch.sovereignty.audit.verification import VerificationOutcome


# `harch carbon report` and `why`: what work used, by the ledgers of all hubs that answer.


T = TypeVar("T")

BY = {"tenant": "tenant", "workload": "job", "data": "dataset", "hub": "hub", "month": "month"}
_UNKNOWN = frozenset({"E0301", "E0350", "E0906"})
_SUMS = ("energy_kwh", "onsite_kwh", "scope2_location_based_kgco2e", "scope2_market_based_kgco2e", "onsite_kgco2e")


@click.command("report")
@click.option(
    "--tenant", metavar="NAME", help="Only this tenant; other tenants than your own require the role operator."
)
@click.option("--workload", metavar="ID", help="Only this workload, by id or name.")
@click.option("--data", "data", metavar="NAME", help="Only this dataset; work that read several counts in part.")
@click.option("--month", metavar="YYYY-MM", help="Only this month, in UTC.")
@click.option("--by", type=click.Choice(list(BY)), default="tenant", show_default=True, help="What to group by.")
@click.option("--csv", "as_csv", is_flag=True, help="Print only CSV, in the terms of the GHG Protocol.")
@hub_option
@json_option
def report(
    tenant: str | None,
    workload: str | None,
    data: str | None,
    month: str | None,
    by: str,
    as_csv: bool,
    hub: str | None,
    as_json: bool,
) -> None:
    """Report the energy that work used and its emissions.

    Reads the ledger of every hub, or of --hub only. LOCATION and MARKET are two methods for the same emissions and are
    never added. SAVED is relative to the naive choice: the same work at its home hub, started at once.
    """
    from harch.cli.output import emit_json

    with connect(hub) as client:
        data_id = client.data.get(data).id if data is not None else None
        job = client.workloads.get(workload).id if workload is not None else None
        found, silent = _everywhere(
            client,
            lambda one: one.carbon.report(by=BY[by], tenant=tenant, workload=job, data=data_id, month=month),
            alone=hub is not None,
        )
    if as_json:
        emit_json({"items": [_without_csv(one) for one in found], "total": len(found), "silent_hubs": silent})
    elif as_csv:
        click.echo("".join(_csv_lines(found)), nl=False)
        _warn_silent(silent)
    else:
        _show_report(found)
        _warn_silent(silent)


@click.command("why")
@click.argument("ref", metavar="ID")
@hub_option
@json_option
def why(ref: str, hub: str | None, as_json: bool) -> None:
    """Explain where and when a workload runs, the power it used, and what the naive choice would emit.

    ID is an id or a name. A plan is shown with every hub and hour considered, and the data behind it. The naive
    choice is the same work at its home hub, started at once, with the same panels and turbines there.
    """
    from harch.cli.output import clean, emit_json

    with connect(hub) as client:
        workload = client.workloads.get(ref)
        found, silent = _everywhere(client, lambda one: one.carbon.why(workload.id), alone=False)
    found = [one for one in found if one.pieces_total or one.plan]
    if as_json:
        emit_json({"workload_id": workload.id, "items": found, "total": len(found), "silent_hubs": silent})
        return
    if not found:
        click.echo(clean(f"{ref} has no recorded energy use yet; hubs update every 30 seconds"))
    for one in found:
        if one.plan:
            click.echo(clean(f"{ref}, as planned by {one.hub_id}:"))
        for line in one.plan:
            click.echo(clean(f"  {line}"))
        if one.pieces_total:
            _show_job(one, ref)
        elif one.plan:
            click.echo("  no energy used here yet")
    _warn_silent(silent)


def _everywhere(client: Client, query: Callable[[Client], T], *, alone: bool) -> tuple[list[T], list[dict[str, str]]]:
    """The answers of all hubs, the asked one first; those that do not answer are named.

    A hub that has never heard of the work, data or tenant has nothing to tell. If none has, that is the answer.
    """
    from harch.sdk import Client as Remote

    answers: list[T] = []
    silent: list[dict[str, str]] = []
    unknown: HarchError | None = None
    try:
        answers.append(query(client))
    except HarchError as error:
        if error.code not in _UNKNOWN:
            raise
        unknown = error
    for view in [] if alone else client.hubs.list():
        if view.own:
            continue
        if not view.reachable or not view.endpoint:
            silent.append({"hub_id": view.id, "why": view.error or "not reachable"})
            continue
        try:
            with Remote(view.endpoint) as other:
                answers.append(query(other))
        except HarchError as error:
            if error.code not in _UNKNOWN:
                silent.append({"hub_id": view.id, "why": error.message})
    if unknown is not None and not answers:
        raise unknown
    return answers, silent


def _without_csv(one: HubReport) -> dict[str, Any]:
    return {"hub_id": one.hub_id, "at": one.at, "not_booked_kwh": one.not_booked_kwh, "report": one.report}


def _csv_lines(found: list[HubReport]) -> Iterator[str]:
    """One table: a first column names the hub, and no line adds up hubs."""
    for number, one in enumerate(found):
        header, *lines = one.csv.splitlines()
        if number == 0:
            yield f"hub,{header}\n"
        for line in lines:
            yield f"{one.hub_id},{line}\n"


def _show_report(found: list[HubReport]) -> None:
    from harch.cli.output import clean, note
    from harch.cli.views.table import TableColumn, table

    rows = [
        (line["name"] or "(nobody)", one.hub_id, *_cells(line))
        for one in found
        for line in one.report["lines"]
        if line["energy_kwh"] > 0
    ]
    whole = {name: sum(one.report["total"][name] for one in found) for name in _SUMS}
    rows.append(("all", "all", *_cells(whole | {"estimated_share": _estimated(found), "saved": _saved(found)})))
    columns = (
        TableColumn("OF"),
        TableColumn("HUB"),
        TableColumn("ENERGY", 1, right=True),
        TableColumn("OWN PLANTS", 6, right=True),
        TableColumn("LOCATION", 2, right=True),
        TableColumn("MARKET", 4, right=True),
        TableColumn("ON-SITE", 7, right=True),
        TableColumn("ESTIMATED", 3, right=True),
        TableColumn("SAVED", 5, right=True),
    )
    table(columns, rows)
    for text in dict.fromkeys(text for one in found for text in one.report["energy_methods"]):
        note(f"energy: {clean(text)}")
    for text in _rests_on(found):
        note(clean(text))
    if open_kwh := sum(one.not_booked_kwh for one in found):
        note(f"{open_kwh:.3g} kWh of the running intervals are not booked yet")


def _cells(line: dict[str, Any]) -> tuple[str, ...]:
    saved = line["saved"]
    return (
        _kwh(line["energy_kwh"]),
        _kwh(line["onsite_kwh"]),
        _kg(line["scope2_location_based_kgco2e"]),
        _kg(line["scope2_market_based_kgco2e"]),
        _kg(line["onsite_kgco2e"]),
        f"{line['estimated_share']:.0%}",
        "not known" if saved is None else _kg(saved["location_with_onsite_kgco2e"]) + _label(saved),
    )


def _label(saved: dict[str, Any]) -> str:
    return " (estimated)" if saved["estimated"] else ""


def _estimated(found: list[HubReport]) -> float:
    total = sum(one.report["total"]["energy_kwh"] for one in found)
    parts = (one.report["total"]["energy_kwh"] * one.report["total"]["estimated_share"] for one in found)
    return sum(parts) / total if total else 0.0


def _saved(found: list[HubReport]) -> dict[str, Any] | None:
    known = [one.report["total"]["saved"] for one in found if one.report["total"]["saved"] is not None]
    if not known:
        return None
    return {
        "location_with_onsite_kgco2e": sum(one["location_with_onsite_kgco2e"] for one in known),
        "estimated": any(one["estimated"] for one in known),
    }


def _rests_on(found: list[HubReport] | list[JobCarbon]) -> Iterator[str]:
    for one in found:
        for factor in one.report["factors"]:
            low, high = factor["g_per_kwh_min"], factor["g_per_kwh_max"]
            grams = f"{low:.0f}" if f"{low:.0f}" == f"{high:.0f}" else f"{low:.0f} to {high:.0f}"
            origin = ", ".join((factor["evidence"], factor["source"]))
            text = f"{one.hub_id}, {factor['use']}: {grams} g/kWh ({factor['kind']}) [{origin}"
            yield f"{text}; {factor['note']}]" if factor["note"] else f"{text}]"


def _show_job(one: JobCarbon, ref: str) -> None:
    from harch.cli.output import clean, note
    from harch.cli.views.table import TableColumn, table

    total, saved = one.report["total"], one.report["total"]["saved"]
    click.echo(clean(f"{ref} at {one.hub_id}: {_kwh(total['energy_kwh'])}, {total['estimated_share']:.0%} estimated"))
    click.echo(
        f"  from: {_kwh(total['grid_kwh'])} of the grid, {_kwh(total['onsite_kwh'])} of own plants,"
        f" {_kwh(total['ppa_kwh'])} under contract"
    )
    click.echo(
        f"  emitted: {_kg(total['scope2_location_based_kgco2e'])} by location, or"
        f" {_kg(total['scope2_market_based_kgco2e'])} by market, and {_kg(total['onsite_kgco2e'])} of own plants"
    )
    click.echo(clean(f"  naive choice: {_naive(one, saved)}"))
    table(
        (
            TableColumn("FROM (UTC)"),
            TableColumn("TO", 6),
            TableColumn("ENERGY", 1),
            TableColumn("OWN PLANTS", 7),
            TableColumn("EMITTED"),
            TableColumn("NAIVE", 4),
            TableColumn("GRID", 3),
            TableColumn("EVIDENCE", 2),
            TableColumn("SOURCE", 5),
            TableColumn("BOOKED", 8),
        ),
        [
            (
                f"{piece.start:%Y-%m-%d %H:%M:%S}",
                f"{piece.end:%H:%M:%S}",
                _kwh(piece.kwh),
                _kwh(piece.onsite_kwh),
                _kg(piece.g / 1000),
                "not known" if piece.naive_g is None else _kg(piece.naive_g / 1000),
                f"{piece.grid_g_per_kwh:.0f} g/kWh",
                piece.grid_evidence,
                piece.grid_source,
                "yes" if piece.booked else "not yet",
            )
            for piece in one.pieces
        ],
    )
    if len(one.pieces) < one.pieces_total:
        note(f"the last {len(one.pieces)} of {one.pieces_total} intervals")
    for text in one.report["energy_methods"]:
        note(f"energy: {clean(text)}")
    for text in _rests_on([one]):
        note(clean(text))


def _naive(one: JobCarbon, saved: dict[str, Any] | None) -> str:
    if saved is None:
        why = dict.fromkeys(piece.naive_missing for piece in one.pieces if piece.naive_missing)
        return f"not known; {'; '.join(why) or 'nothing of it has been compared'}"
    naive, less = saved["naive_location_with_onsite_kgco2e"], saved["location_with_onsite_kgco2e"]
    homes = ", ".join(dict.fromkeys(piece.naive_home for piece in one.pieces if piece.naive_home))
    text = f"{_kg(naive)} at {homes}, by location with own plants; saved {_kg(less)}{_label(saved)}"
    return f"{text} [{'; '.join(saved['methods'])}]"


def _warn_silent(silent: list[dict[str, str]]) -> None:
    from harch.cli.output import clean, note

    for one in silent:
        note(clean(f"{one['hub_id']} is missing: {one['why']}"))


def _kwh(number: float) -> str:
    return f"{number:.3g} kWh" if number >= 0.001 or not number else f"{number * 1000:.2g} Wh"


def _kg(number: float) -> str:
    return f"{number:.3g} kg" if abs(number) >= 1 else f"{number * 1000:.3g} g"


# `harch carbon verify` and `export`: prove that a ledger of energy and carbon is what its hub once booked.


@click.command("verify")
@file_option("Verify this export of a ledger instead of a hub's; `-` reads stdin.")
@click.option("--audit", "audit", metavar="FILE", help="With --file: an export of the hub's audit chain.")
@remote_options
def verify(file: str | None, audit: str | None, hub: str | None, as_json: bool) -> int:
    """Verify a hub's ledger from its first row on, or an export of it.

    Checks hashes and links, adds up every interval and compares it with its meter, recomputes grams from kWh and
    factors, and compares the ledger with the checkpoints in the audit chain, which is verified first. Exits with 0 if
    all of it holds, with 1 if not, and names the first bad row.
    """
    from harch.carbon.ledger.verification import verify_ledger
    from harch.cli.output import emit_json, note
    from harch.cli.views.progress import progress_line
    from harch.sovereignty.audit.chain import split_lines

    if audit is not None and file is None:
        raise HarchError("E0201", "--audit goes with --file", hint="without both, the hub's own audit chain is read")
    chain: VerificationOutcome | None = None
    checkpoints: list[LedgerCheckpoint] = []
    # The audit chain first: rows that are booked while we read make the ledger longer than its last checkpoint, which
    # is sound; a checkpoint of rows that we have not read would look like a ledger that was cut.
    if file is None or audit is not None:
        kept = kept_by_others(hub).checkpoints if file is None else []
        with progress_line("reading the audit chain", as_json), export_of(audit, hub) as pieces:
            chain, checkpoints = _read_chain(split_lines(pieces), kept)
    if file is not None:
        with progress_line("verifying the ledger", as_json), file_pieces(file) as pieces:
            found = verify_ledger(split_lines(pieces), checkpoints)
    else:
        with progress_line("verifying the ledger", as_json), connect(hub) as client:
            found = verify_ledger(split_lines(client.carbon.ledger()), checkpoints)
    sound = found.is_sound and (chain is None or chain.is_sound)
    if as_json:
        emit_json({"sound": sound, **_fields(found), "audit": None if chain is None else _audit_fields(chain)})
    else:
        _show(found, chain)
        if chain is None:
            note("no audit chain to compare with: a ledger that was rewritten or cut can stay hidden; add --audit FILE")
    return EXIT_OK if sound else EXIT_ERROR


@click.command("export")
@click.option("-o", "--output", metavar="FILE", required=True, help="Output file; `-` is stdout.")
@hub_option
@json_option
def export(output: str, hub: str | None, as_json: bool) -> None:
    """Write the whole ledger of a hub to a file: one row per line, each linked to the one before by its hash."""
    from harch.cli.output import emit_json

    with connect(hub) as client:
        size = write_export(client.carbon.ledger(), output)
    if output == "-":
        return
    if as_json:
        emit_json({"file": output, "bytes": size})
    else:
        click.echo(f"wrote {output}, {size} bytes; `harch carbon verify --file {output}` checks it")


def _read_chain(
    lines: Iterable[bytes], kept: Iterable[SignedCheckpoint]
) -> tuple[VerificationOutcome, list[LedgerCheckpoint]]:
    """Only entries that are good so far can speak for the ledger."""
    from harch.carbon.ledger.chain import checkpoint_in
    from harch.sovereignty.audit.verification import ChainVerifier

    verifier, checkpoints = ChainVerifier(kept), []
    for line in lines:
        entry = verifier.take(line)
        found = checkpoint_in(entry) if entry is not None else None
        if found is not None:
            checkpoints.append(found)
    return verifier.finish(), checkpoints


def _fields(found: LedgerOutcome) -> dict[str, object]:
    return {
        "hub": found.hub,
        "rows": found.rows,
        "head": found.head,
        "checkpoints": found.checkpoints,
        "finding": found.finding,
    }


def _audit_fields(chain: VerificationOutcome) -> dict[str, object]:
    return {"sound": chain.is_sound, "entries": chain.entries, "finding": chain.finding}


def _show(found: LedgerOutcome, chain: VerificationOutcome | None) -> None:
    from harch.cli.output import clean, note

    if chain is not None and chain.finding is not None:
        bad = chain.finding
        click.echo(clean(f"TAMPERED: audit chain: entry {bad.seq}: {bad.kind}: {bad.detail}"))
        note("the audit chain cannot vouch for the ledger; `harch audit verify` has more")
    if found.finding is not None:
        bad = found.finding
        click.echo(clean(f"TAMPERED: ledger: row {bad.seq}: {bad.kind}: {bad.detail}"))
        note(f"{found.rows} rows before it are good")
    elif chain is None or chain.is_sound:
        agree = (
            ""
            if chain is None
            else f", {found.checkpoints} checkpoint{'s agree' if found.checkpoints != 1 else ' agrees'}"
        )
        of = f" of hub {found.hub}" if found.hub else ""
        click.echo(clean(f"ok: {found.rows} row{'s' * (found.rows != 1)}{of}{agree}; head {found.head}"))
