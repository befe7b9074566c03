"""`harch audit`: prove what was decided from the chains of hubs and files, and report where data was in a month."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harch.base.counting import counted
from harch.base.errors import EXIT_ERROR, EXIT_OK, HarchError
from harch.cli.options import confirmed, file_option, reason_option, renamed, yes_option
from harch.cli.remote import connect, hub_option, json_option, remote_options
from harch.cli.verb_group import VerbGroup

if TYPE_CHECKING:
    from harch.sdk import Client
    from harch.sdk.types import Hub
    from harch.sovereignty.audit.checkpoints import SignedCheckpoint
    from harch.sovereignty.audit.report import AuditReport, ReportBuilder
    from harch.sovereignty.audit.verification import VerificationOutcome


_READ_BYTES = 1024 * 1024
_CHECKPOINT_BYTES_MAX = 256 * 1024 * 1024

checkpoints_option = click.option(
    "--checkpoints",
    "checkpoints_file",
    metavar="FILE",
    help="Checkpoints stored elsewhere; without them a truncated chain may go unnoticed.",
)


@contextmanager
def export_of(file: str | None, hub: str | None) -> Iterator[Iterator[bytes]]:
    """The chain in pieces: of a file (`-`: stdin), else of a hub."""
    if file is None:
        with connect(hub) as client:
            yield client.audit.export()
    else:
        with file_pieces(file) as pieces:
            yield pieces


@contextmanager
def file_pieces(file: str) -> Iterator[Iterator[bytes]]:
    """An export in pieces; `-` is stdin. Raises E0202."""
    if file == "-":
        yield iter(lambda: sys.stdin.buffer.read(_READ_BYTES), b"")
        return
    try:
        with Path(file).open("rb") as stream:
            yield iter(lambda: stream.read(_READ_BYTES), b"")
    except OSError as error:
        raise HarchError("E0202", f"{file} cannot be read: {error.strerror}", hint="check the path") from error


def write_export(pieces: Iterable[bytes], output: str) -> int:
    """To a file, whole or not at all, or to stdout (`-`). Answers its size. Raises E0201."""
    if output == "-":
        return sum(sys.stdout.buffer.write(piece) for piece in pieces)
    draft = Path(f"{output}.part")
    try:
        with draft.open("wb") as file:
            size = sum(file.write(piece) for piece in pieces)
        draft.replace(output)
    except OSError as error:
        raise HarchError("E0201", f"{output} cannot be written: {error.strerror}", hint="check the path") from error
    finally:
        draft.unlink(missing_ok=True)  # half an export must not be taken for one
    return size


@dataclass(slots=True)
class KeptElsewhere:
    """What other hubs keep of a hub's chain, who was asked, and who could not be."""

    checkpoints: list[SignedCheckpoint] = field(default_factory=list)
    queried: list[str] = field(default_factory=list)
    silent: dict[str, str] = field(default_factory=dict)  # hub -> why

    @property
    def sentence(self) -> str:
        silent = "; ".join(f"{hub} could not be reached: {why}" for hub, why in self.silent.items())
        if not self.queried:
            return f"no other hub was queried for checkpoints: truncation may go unnoticed{silent and ': '}{silent}"
        return f"queried {', '.join(self.queried)} for checkpoints{silent and '; '}{silent}"


def kept_by_others(hub: str | None) -> KeptElsewhere:
    """What the others keep of one hub. They are asked directly: the one to be verified could hide something."""
    with connect(hub) as client:
        hubs = client.hubs.list()
    own = next((view.id for view in hubs if view.own), "")
    return kept_at([view for view in hubs if not view.own], own)


def kept_at(hubs: Iterable[Hub], of: str | None) -> KeptElsewhere:
    """What these hubs keep, of one hub or (None) of all."""
    import msgspec

    from harch.sdk import Client
    from harch.sovereignty.audit.checkpoints import SignedCheckpoint

    kept = KeptElsewhere()
    for view in hubs:
        if not view.reachable or not view.endpoint:
            kept.silent[view.id] = view.error or "not reachable"
            continue
        try:
            with Client(view.endpoint) as other:
                found = other.audit.checkpoints(of)
        except HarchError as error:
            kept.silent[view.id] = error.message
            continue
        kept.queried.append(view.id)
        for one in msgspec.convert(msgspec.to_builtins(found), list[SignedCheckpoint]):
            if one.holds:
                kept.checkpoints.append(one)
            else:
                kept.silent[view.id] = "it returned a checkpoint with an invalid signature"
    return kept


def checkpoints_in(path: str | None) -> list[SignedCheckpoint]:
    from harch.sovereignty.audit.checkpoints import read_checkpoints

    if path is None:
        return []
    try:
        with Path(path).open("rb") as file:
            return read_checkpoints(file.read(_CHECKPOINT_BYTES_MAX))
    except OSError as error:
        raise HarchError("E0202", f"{path} cannot be read: {error.strerror}", hint="check the path") from error


# `harch audit report`: where data was in a month, from the verified chains of all hubs.


NAMED_MAX = 8  # ids that an error lists


@dataclass(slots=True)
class ReferencedData:
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
                f"`{ref[:128]}` is the name of {len(some)} objects",
                hint=f"give the id of one: {', '.join(some[:NAMED_MAX])}{more}",
                field="data",
            )
        return next(iter(self.kinds), ref)


@click.command("report")
@click.option("--data", "ref", metavar="NAME", required=True, help="Dataset or workload to report on, by name or id.")
@click.option("--month", metavar="YYYY-MM", required=True, help="Month to report on, in UTC.")
@click.option("--html", "html_file", metavar="FILE", help="Also write a self-contained HTML page.")
@file_option("Use this export instead of querying hubs. Repeatable.", multiple=True)
@checkpoints_option
@remote_options
def report(
    ref: str,
    month: str,
    html_file: str | None,
    file: tuple[str, ...],
    checkpoints_file: str | None,
    hub: str | None,
    as_json: bool,
) -> int:
    """Report where data was processed and moved in a month, and by which authority and policy version.

    Reads and verifies the chain of every hub (with --hub, of one). Exits with 1 if a chain is missing or tampered with:
    the report is then marked as incomplete and proves nothing. A name that no hub and no chain knows is an error.
    """
    from harch.base.clock import SystemClock, iso
    from harch.cli.output import emit_json
    from harch.sovereignty.audit.report import ReportBuilder, month_bounds

    now, kept = iso(SystemClock().now()), checkpoints_in(checkpoints_file)
    month_bounds(month)  # a mistake is reported before hubs are asked
    if file:
        builder = ReportBuilder(ref, month)
        for path in file:
            _read_chain(builder, kept, file=path, hub=None)
    else:
        with connect() as client:
            known = client.hubs.list()
        hubs = [hub] if hub else [view.id for view in known]
        referenced = _meaning(ref, hubs)
        found = referenced.one(ref)
        builder = ReportBuilder(found, month, name=ref, known_at=referenced.known_at.get(found, ()))
        kept += kept_at(known, None).checkpoints
        for name in hubs:
            try:
                if name in referenced.silent:
                    builder.take_missing(name, referenced.silent[name])
                else:
                    _read_chain(builder, kept, file=None, hub=name)
            except HarchError as error:
                builder.take_missing(name, error.message)
        if hub is None:
            for name, at in _gone(kept, hubs, month_bounds(month)[0]).items():
                builder.take_missing(name, f"no longer a hub of the fleet, but was one on {at}")
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


def _meaning(ref: str, hubs: list[str]) -> ReferencedData:
    """Asks the catalogs and lists of the hubs. One that does not answer is noted: the report will not be complete."""
    referenced = ReferencedData()
    for hub in hubs:
        try:
            with connect(hub) as client:
                for id_, kind in _named(client, ref).items():
                    referenced.kinds[id_] = kind
                    referenced.known_at.setdefault(id_, []).append(hub)
        except HarchError as error:
            if error.code.startswith("E01") or error.code == "E0305":  # the caller's key, or a name that is no hub's
                raise
            referenced.silent[hub] = error.message
    return referenced


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


def _write_html(made: AuditReport, path: str) -> None:
    from harch.sovereignty.audit.report import render_html

    try:
        Path(path).write_text(render_html(made), encoding="utf-8")
    except OSError as error:
        raise HarchError("E0201", f"{path} cannot be written: {error.strerror}", hint="check the path") from error


def _show(made: AuditReport, html_file: str | None) -> None:
    from harch.cli.output import clean, note
    from harch.cli.views.table import TableColumn, table

    if not made.complete:
        click.echo(f"INCOMPLETE, so no proof: {clean('; '.join(made.problems))}")
    subject = f"{clean(made.name)} ({clean(made.ref)})" if made.name else clean(made.ref)
    span = made.month if made.until < made.made_at else f"{made.month} up to {made.until}"
    places = ", ".join(f"{country} ({count})" for country, count in made.countries.items())
    times = "1 time" if len(made.moved) == 1 else f"{len(made.moved)} times"
    click.echo(f"{subject} in {span}: processed {f'in {places}' if places else 'nowhere'}; moved {times}\n")
    table(
        (
            TableColumn("SINCE"),
            TableColumn("UNTIL", 2),
            TableColumn("HUB"),
            TableColumn("COUNTRY", 1),
            TableColumn("WORKLOAD"),
            TableColumn("AUTHORITY", 3),
            TableColumn("POLICY", 4),
        ),
        [
            (p.since, p.until or "ongoing", p.hub, ", ".join(p.countries), p.workload, p.authority, p.policy_version)
            for p in made.processed
        ],
    )
    if made.moved:
        click.echo()
        table(
            (
                TableColumn("AT"),
                TableColumn("FROM"),
                TableColumn("TO"),
                TableColumn("COUNTRIES", 1),
                TableColumn("AUTHORITY", 2),
                TableColumn("POLICY", 3),
            ),
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


# `harch audit`: prove what was decided, and where data was.


@click.group(cls=VerbGroup)
def command() -> None:
    """Verify and export the audit chain; report where data was.

    Every hub records its decisions and data movements in a hash chain and signs its head.
    """


command.add_command(report)


@command.command("verify")
@file_option("Verify this export instead of a hub's chain; `-` reads stdin.")
@checkpoints_option
@remote_options
def verify(file: str | None, checkpoints_file: str | None, hub: str | None, as_json: bool) -> int:
    """Verify a hub's audit chain, or an export of it, from the first entry.

    Compares it with the checkpoints that other hubs keep of it. Exits with 0 if it is intact, with 1 if it was tampered
    with or its end is lost; the first bad entry and the kind of damage are then shown.
    """
    from harch.cli.output import clean, emit_json, note
    from harch.cli.views.progress import progress_line
    from harch.sovereignty.audit.chain import split_lines
    from harch.sovereignty.audit.verification import verify as verify_lines

    kept = checkpoints_in(checkpoints_file)
    others, lost = (KeptElsewhere(), "") if file is not None else (kept_by_others(hub), _lost(hub))
    with progress_line("verifying the chain", as_json), export_of(file, hub) as pieces:
        outcome = verify_lines(split_lines(pieces), [*kept, *others.checkpoints])
    sound = outcome.is_sound and not lost
    if as_json:
        queried = {"hubs_asked": others.queried, "hubs_silent": others.silent}
        emit_json({"sound": sound, "lost": lost, **_fields(outcome), **({} if file is not None else queried)})
        return EXIT_OK if sound else EXIT_ERROR
    finding = outcome.finding
    if lost:
        click.echo(f"LOST: {clean(lost)}")
    if finding is not None:
        click.echo(f"TAMPERED: entry {finding.seq}: {finding.kind}: {clean(finding.detail)}")
        note(f"{outcome.entries} entries before it are valid")
    elif not lost:
        against = f", {counted(outcome.checkpoints, 'kept checkpoint')} checked" if kept or others.queried else ""
        click.echo(f"ok: {outcome.entries} entries of hub {clean(outcome.hub)}{against}; head {outcome.head}")
    for loss in outcome.losses:
        click.echo(f"hole: {clean(loss.sentence)}")
    if file is None:
        note(clean(others.sentence))
    return EXIT_OK if sound else EXIT_ERROR


@command.command("accept-loss")
@reason_option("Reason, recorded permanently in the chain.", required=True)
@renamed("--why", "--reason")
@yes_option
@remote_options
def accept_loss(reason: str, yes: bool, hub: str | None, as_json: bool) -> int:
    """Let a hub resume that stopped because the end of its records is lost.

    Try to restore the right database first: what is missing is lost for good, including submitted work. The chain
    then continues with an entry that records what is missing, who accepted it and why.
    """
    from harch.cli.output import clean, emit_json

    with connect(hub) as client:
        loss = client.audit.loss()
        if not loss.held:
            raise HarchError("E0304", "nothing is lost", hint="`harch audit verify` checks the chain")
        if not yes:
            click.echo(clean(loss.sentence), err=True)
        if not confirmed("continue without it?", yes=yes, as_json=as_json):
            return EXIT_ERROR
        done = client.audit.accept_loss(loss.lost_seq, reason)
    if as_json:
        emit_json(done)
    else:
        click.echo(f"the hub resumes; {clean(loss.sentence)}")
    return EXIT_OK


@command.command("export")
@click.option("-o", "--output", metavar="FILE", required=True, help="Output file; `-` is stdout.")
@hub_option
@json_option
def export(output: str, hub: str | None, as_json: bool) -> None:
    """Export a hub's chain to a file: one entry per line, closed by a signed checkpoint."""
    with export_of(None, hub) as pieces:
        size = write_export(pieces, output)
    if output == "-":
        return
    if as_json:
        from harch.cli.output import emit_json

        emit_json({"file": output, "bytes": size})
    else:
        click.echo(f"wrote {output}, {size} bytes; `harch audit verify --file {output}` checks it")


@command.command("head")
@remote_options
def head(hub: str | None, as_json: bool) -> None:
    """Show the signed head of a hub's chain.

    Store the line that --json prints elsewhere: it later proves that nothing was cut off or rewritten.
    """
    from harch.cli.output import clean, emit_json

    with connect(hub) as client:
        signed = client.audit.head()
    if as_json:
        emit_json(signed)
        return
    checkpoint = signed.checkpoint
    click.echo(f"hub {clean(checkpoint.hub)}: {checkpoint.seq} entries at {clean(checkpoint.at)}")
    click.echo(f"hash {clean(checkpoint.hash)}\nkey  {clean(checkpoint.key)}")


@command.command("rotate-key")
@remote_options
def rotate_key(hub: str | None, as_json: bool) -> None:
    """Rotate the key that signs a hub's checkpoints; the old key introduces the new one in the chain."""
    from harch.cli.output import clean, emit_json

    with connect(hub) as client:
        key = client.audit.rotate_key()
    if as_json:
        emit_json({"key": key})
    else:
        click.echo(f"checkpoints are signed by {clean(key)} from now on")


def _lost(hub: str | None) -> str:
    """What the hub itself says is missing."""
    with connect(hub) as client:
        try:
            loss = client.audit.loss()
        except HarchError as error:
            if error.code == "E0207":  # a hub of an older version
                return ""
            raise
    return loss.sentence if loss.held else ""


def _fields(outcome: VerificationOutcome) -> dict[str, object]:
    import msgspec

    fields: dict[str, object] = msgspec.to_builtins(outcome)
    return fields
