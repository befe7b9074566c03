"""What belongs to a pipeline file on this machine? Its documents, the files of its models, and its table by device."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from harch.base.errors import HarchError

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
        raise HarchError("E0250", f"{path} describes no pipeline", hint="docs/pipelines/spec.md shows every field")
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
