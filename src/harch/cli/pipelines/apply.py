"""`harch pipeline apply`, `update` and `schema`: from a file to a running pipeline, and on to its next version."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from harch.base.errors import HarchError
from harch.cli.options import file_input, file_option
from harch.cli.remote import connect, hub_suffix, json_option, remote_options

if TYPE_CHECKING:
    from harch.sdk import Client
    from harch.sdk.pipeline_types import PipelineApplied


FILE_BYTES_MAX = 512 * 1024
_SPLIT = re.compile(r"(?m)^---[ \t]*$")

Table = dict[str, dict[str, float]]


class PipelineDocument(NamedTuple):
    """One pipeline of a file: its text, and what could be read of it here; the hub reads it properly."""

    text: str
    name: str
    files: tuple[str, ...]
    table: str


def read_documents(path: Path) -> list[PipelineDocument]:
    """At least one. Mistakes inside of a document are left to the hub, which explains all of them."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise HarchError(
            "E0202", f"{path} cannot be read: {reason}", hint="give the path of a pipeline file"
        ) from error
    if len(text) > FILE_BYTES_MAX:
        raise HarchError("E0202", f"{path} is larger than {FILE_BYTES_MAX} bytes", hint="is it a pipeline file?")
    parts = _SPLIT.split(text)
    lines = 0
    found = []
    for part in parts:
        if part.strip() and not all(line.lstrip().startswith("#") or not line.strip() for line in part.splitlines()):
            # Empty lines in front keep the numbers of lines in messages right.
            found.append(_document("\n" * lines + part))
        lines += part.count("\n")
    if not found:
        raise HarchError("E0250", f"{path} defines no pipeline", hint="docs/pipelines/spec.md shows every field")
    return found


def _document(text: str) -> PipelineDocument:
    import yaml

    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError:
        data = None
    data = data if isinstance(data, dict) else {}
    sense = data.get("sense")
    joined = sense.get("enrichment") if isinstance(sense, dict) else None
    table = joined.get("table") if isinstance(joined, dict) else None
    return PipelineDocument(text, str(data.get("name", "")), tuple(_files(data)), str(table or ""))


def _files(data: dict[str, Any]) -> Iterator[str]:
    """Paths of ONNX files, and of modules that may lie beside the pipeline file."""
    think = data.get("think")
    for model in (think.get("models") or ()) if isinstance(think, dict) else ():
        for version in (model.get("versions") or ()) if isinstance(model, dict) else ():
            if isinstance(version, dict):
                if isinstance(version.get("path"), str):
                    yield version["path"]
                if isinstance(version.get("callable"), str):
                    yield version["callable"].partition(":")[0].replace(".", "/") + ".py"


def read_table(path: Path) -> Table:
    """A CSV file with a header: the first column names the device, all others are numbers. Raises E0202."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            first, *rest = rows.fieldnames or ("",)
            return {row[first]: {name: float(row[name]) for name in rest} for row in rows}
    except OSError as error:
        raise HarchError("E0202", f"{path} cannot be read: {error.strerror}", hint="give a CSV file") from error
    except (ValueError, TypeError, csv.Error) as error:
        raise HarchError("E0202", f"{path}: {error}", hint="first column: device; all others: numbers") from error


ROLES = ("loaded", "shadow", "canary", "active", "retired")
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("apply")
@file_input("The pipeline file.", type=_FILE)
@click.option(
    "--table", metavar="FILE", type=_FILE, help="CSV that SENSE joins by device (default: TABLE.csv beside the file)."
)
@click.option("--dry-run", is_flag=True, help="Print the plan and the proof of residency; change nothing.")
@click.option("--drop-state", is_flag=True, help="Discard windows that cannot be carried over to the new settings.")
@remote_options
def apply(file: Path, table: Path | None, dry_run: bool, drop_state: bool, hub: str | None, as_json: bool) -> None:
    """Create or update the pipelines of a file.

    Every error is reported and every edge proved before anything is deployed. Model files are uploaded from the
    folder of the file. The same file again changes nothing; a changed one restarts only the stages that it changes.
    """
    from harch.cli.output import emit_json

    documents = read_documents(file)
    with connect(hub) as client:
        done = [_apply(client, file, document, table, dry_run, drop_state) for document in documents]
    if as_json:
        emit_json({"items": done})
        return
    for one in done:
        show_applied(one, hub)


def _apply(
    client: Client, file: Path, document: PipelineDocument, table: Path | None, dry_run: bool, drop_state: bool
) -> PipelineApplied:
    enrichment = _enrichment(file, document, table)
    plan = client.pipelines.apply(
        document.text, source=file.name, dry_run=True, enrichment=enrichment, drop_state=drop_state
    )
    if dry_run:
        return plan
    for path in document.files:
        found = file.parent / path
        if found.is_file() and not Path(path).is_absolute():
            client.pipelines.put_file(plan.name, path, found.read_bytes())
        elif path in plan.files_missing:
            raise HarchError(
                "E0713", f"`{plan.name}` needs {path}, which is not beside {file}", hint="train or copy it there first"
            )
    return client.pipelines.apply(document.text, source=file.name, enrichment=enrichment, drop_state=drop_state)


def _enrichment(file: Path, document: PipelineDocument, table: Path | None) -> Table | None:

    beside = file.parent / f"{document.table}.csv" if document.table else None
    if table is not None:
        return read_table(table)
    return read_table(beside) if beside is not None and beside.is_file() else None


def show_applied(done: PipelineApplied, hub: str | None) -> None:
    from harch.cli.output import clean
    from harch.cli.views.table import TableColumn, table

    would = "would be " if done.dry_run else ""
    click.echo(clean(f"{done.name}: {would}{done.result}, version {done.version}, at {done.hub} ({done.country})"))
    if done.dry_run or done.result == "updated":
        rows = [(one.stage, one.step, one.hub, one.workers, ", ".join(one.because) or "-") for one in done.stages]
        table(
            (
                TableColumn("STAGE"),
                TableColumn("STEP"),
                TableColumn("HUB"),
                TableColumn("WORKERS", 2),
                TableColumn("BECAUSE", 1, takes_rest=True),
            ),
            rows,
        )
    if done.dry_run:
        click.echo("\nproved: every path that its data takes")
        ways = [
            (edge.kind, edge.name, ", ".join(edge.countries), ", ".join(sorted({b for _, b in edge.hubs})))
            for edge in done.edges
        ]
        table(
            (
                TableColumn("EDGE"),
                TableColumn("WAY"),
                TableColumn("COUNTRIES", 1),
                TableColumn("HUBS", 2),
            ),
            ways,
        )
        if done.files_missing:
            click.echo(clean(f"\nfiles to upload: {', '.join(done.files_missing)}"))
    elif done.result != "unchanged":
        click.echo(clean(f"watch it: harch pipeline top {done.name}{hub_suffix(hub)}"))


@click.command("update")
@click.argument("name")
@click.argument("model", metavar="MODEL@VERSION")
@click.option("--role", type=click.Choice(ROLES), required=True, help="New role of the version.")
@file_option("For a new version: ONNX file or Python module.", type=_FILE)
@click.option("--callable", "function", metavar="MODULE:FUNCTION", help="For a new Python version.")
@click.option("--dry-run", is_flag=True, help="Print what would change; change nothing.")
@remote_options
def update(
    name: str,
    model: str,
    role: str,
    file: Path | None,
    function: str | None,
    dry_run: bool,
    hub: str | None,
    as_json: bool,
) -> None:
    """Add a model version to a running pipeline, or change the role of one.

    Versions go from loaded through shadow and canary to active, between two batches: no event is lost and nothing
    restarts. To change anything else, change the file and apply it.
    """
    from harch.cli.output import emit_json

    model_name, _, version = model.partition("@")
    if not model_name or not version:
        raise HarchError("E0201", f"`{model}` is not MODEL@VERSION", hint="e.g. irrigation@2")
    fields: dict[str, object] = {"dry_run": dry_run}
    with connect(hub) as client:
        if file is not None:
            fields |= _new_version(client, name, version, file, function, send=not dry_run)
        done = client.pipelines.set_version(name, model_name, version, role, **fields)
    if as_json:
        emit_json(done)
    else:
        show_applied(done, hub)


def _new_version(
    client: Client, name: str, version: str, file: Path, function: str | None, *, send: bool
) -> dict[str, object]:
    """The fields of a version, and its file at the hub under a name that no other version has."""
    import hashlib

    data = file.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if function is not None:
        path = function.partition(":")[0].replace(".", "/") + ".py"
        fields: dict[str, object] = {"callable": function, "runtime": "python", "sha256": digest}
    else:
        path = f"{file.stem}-{version}-{digest[:8]}{file.suffix}"
        fields = {"path": path, "sha256": digest}
    if send:
        client.pipelines.put_file(name, path, data)
    return fields


@click.command("schema")
@json_option
def schema(as_json: bool) -> None:
    """Print the JSON schema of pipeline files, for editors. It is JSON with or without --json."""
    try:
        from harch.pipelines.spec.file import pipeline_schema, pipeline_schema_text
    except ImportError as error:
        raise HarchError(
            "E0740", f"a package is not installed: {error.name}", hint="`pip install 'harch[pipelines]'`"
        ) from error
    if as_json:
        from harch.cli.output import emit_json

        emit_json(pipeline_schema())
    else:
        click.echo(pipeline_schema_text(), nl=False)
