"""Which fields do lines have? Metadata and what json or logfmt find in a sample of them, with a guess of the type."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from harch.sentinel.logql.evaluate.lines import Entry
from harch.sentinel.logql.stages.page import pages
from harch.sentinel.logql.stages.parsing import parse_json, parse_logfmt
from harch.sentinel.logql.syntax.stages import Json, Logfmt
from harch.sentinel.logql.syntax.units import duration_ns, size_bytes
from harch.sentinel.model.logs import chunk_of

FIELDS_MAX = 1_000


@dataclass(slots=True)
class Field:
    """One field, the parsers that find it, and its values in the sample."""

    name: str
    parsers: set[str] = field(default_factory=set)
    values: set[str] = field(default_factory=set)

    def told(self) -> dict[str, Any]:
        return {
            "label": self.name,
            "type": _type_of(next(iter(self.values), "")),
            "cardinality": len(self.values),
            "parsers": sorted(self.parsers) or None,
        }


def detected_fields(entries: Iterable[Entry]) -> dict[str, Field]:
    """Fields by name. Lines that look like JSON are read as JSON, others as logfmt."""
    found: dict[str, Field] = {}

    def note(name: str, value: str, parser: str) -> None:
        known = found.get(name)
        if known is None:
            if len(found) >= FIELDS_MAX:
                return
            known = found[name] = Field(name)
        known.values.add(value)
        if parser:
            known.parsers.add(parser)

    listed = list(entries)
    for entry in listed:
        for name, value in entry.metadata:
            note(name, value, "")
    for parser in ("json", "logfmt"):
        chosen = [entry for entry in listed if entry.text.lstrip().startswith("{") is (parser == "json")]
        for page in pages(chunk_of([(one.stream, one.time_ns, one.text, ()) for one in chosen]), None, whole=False):
            if parser == "json":
                parse_json(page, Json(), None)
            else:
                parse_logfmt(page, Logfmt(), None)
            for name, column in page.parsed.items():
                if not name.startswith("__error"):
                    for text in filter(None, column):
                        note(name, text, parser)
    return found


def _type_of(value: str) -> str:
    if value in ("true", "false"):
        return "boolean"
    try:
        return "int" if value.lstrip("-").isdecimal() else ("float" if float(value) is not None else "")
    except ValueError:
        pass
    if duration_ns(value) is not None:
        return "duration"
    return "bytes" if size_bytes(value) is not None else "string"
