"""Which rule files lie on the disk? Paths and patterns in, files out; and the pack that comes with HarchOS."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from glob import glob, has_magic
from importlib.resources import files
from pathlib import Path

from harch.base.errors import HarchError
from harch.sentinel.rules.definitions import CheckExpression, RuleFile
from harch.sentinel.rules.file import parse_rules
from harch.sentinel.rules.yaml_positions import FILE_CHARS_MAX


def shipped_files() -> dict[str, str]:
    """Their texts by name, sorted."""
    found = (entry for entry in files("harch.sentinel.packs").iterdir() if entry.name.endswith(".yaml"))
    return {entry.name: entry.read_text(encoding="utf-8") for entry in sorted(found, key=lambda entry: entry.name)}


FILES_MAX = 1_000


def read_rule_files(patterns: Iterable[str], *, check_expression: CheckExpression | None = None) -> list[RuleFile]:
    """All files of all patterns, sorted by name. Raises E0640 for the first that is not valid or not readable."""
    found: list[RuleFile] = []
    for path in _paths(patterns):
        try:
            if path.stat().st_size > 4 * FILE_CHARS_MAX:
                raise HarchError("E0640", f"{path} is too large", hint="split it")
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise HarchError("E0640", f"{path} cannot be read: {error}", hint="check the path") from error
        found.append(parse_rules(text, name=str(path), check_expression=check_expression))
    return found


def default_pack(*, check_expression: CheckExpression | None = None) -> list[RuleFile]:
    """The rules that HarchOS ships."""
    return [
        parse_rules(text, name=f"harchos/{name}", check_expression=check_expression)
        for name, text in shipped_files().items()
    ]


def _paths(patterns: Iterable[str]) -> Iterator[Path]:
    seen: set[Path] = set()
    for pattern in patterns:
        found = sorted(Path(name) for name in glob(pattern)) if has_magic(pattern) else [Path(pattern)]
        for path in found:
            if path not in seen:
                if len(seen) >= FILES_MAX:
                    raise HarchError("E0640", f"more than {FILES_MAX} rule files", hint="use fewer, larger files")
                seen.add(path)
                yield path
