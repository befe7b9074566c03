"""What does a project say about how it runs? Its `harch.toml`: limits of its code, its environment, defaults of `run`.

The words are those of workload files, without the levels: `[run] gpus`, not `resources.gpus`. Every mistake is named
with file and line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from harch.base.errors import HarchError
from harch.cli.inputs import BYTES_BY_UNIT, quantity

FILE_NAME = "harch.toml"
FILE_BYTES_MAX = 256 * 1024
PROBLEMS_MAX = 20
NAMES_MAX = 1000  # of files that look like secrets, and are none
# What says who the work is, or what comes with it, is said by the command that runs it.
_NOT_DEFAULTS = frozenset({"name", "command", "code", "environment", "resources", "working_dir", "query"})
_NOT_DEFAULTS |= {"modelled_duration_s"}
_TABLES = ("code", "environment", "run")
_CODE = ("limit", "include", "countries")
_HEADER = re.compile(r"\s*\[\[?([^\[\]]+)\]\]?\s*(?:#.*)?")
_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")
_POSITION = re.compile(r"\(at line (\d+), column \d+\)")
_HINT = "docs/reference/cli.md#project-files shows every key of harch.toml"


@dataclass(frozen=True, slots=True)
class Project:
    """`environment` and `run` are fields of a workload, as they are written; `run` has `resources` as one of them."""

    source: str = ""  # the file, as it was named; empty: there is none
    limit_bytes: int | None = None
    include: tuple[str, ...] = ()
    countries: tuple[str, ...] = ()
    environment: Mapping[str, object] = field(default_factory=dict)
    run: Mapping[str, object] = field(default_factory=dict)


def read_project(folder: Path) -> Project:
    """Nothing where there is no such file. Raises E0202 for one that cannot be read, E0201 with every mistake."""
    path = folder / FILE_NAME
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        text = data.decode()
    except FileNotFoundError:
        return Project()
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8 text"
        raise HarchError("E0202", f"{path} cannot be read: {why}", hint="save the file as UTF-8") from error
    if len(data) > FILE_BYTES_MAX:
        raise HarchError("E0201", f"{path} is larger than {FILE_BYTES_MAX // 1024} KiB", hint=_HINT)
    return parse_project(text, str(path))


def parse_project(text: str, source: str = FILE_NAME) -> Project:
    """Raises E0202 for what is not TOML, E0201 with every mistake of what is."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        at = _POSITION.search(str(error))
        what = _POSITION.sub("", str(error)).strip()[:200]
        raise HarchError("E0202", f"{source}:{at[1] if at else 1}: not valid TOML: {what}", hint=_HINT) from error
    problems = list(_problems(document))[:PROBLEMS_MAX]
    if problems:
        _refuse(problems, lines_of(text), source)
    code = document.get("code", {})
    limit = code.get("limit")
    return Project(
        source,
        None if limit is None else _limit_bytes(limit),
        tuple(code.get("include", ())),
        tuple(code.get("countries", ())),
        document.get("environment", {}),
        as_fields(document.get("run", {})),
    )


def as_fields(run: Mapping[str, object]) -> dict[str, object]:
    """The fields of a workload that these words mean."""
    resources = {key: value for key, value in run.items() if key in _resource_names()}
    fields = {key: value for key, value in run.items() if key not in resources}
    return fields | ({"resources": resources} if resources else {})


def lines_of(text: str) -> dict[str, int]:
    """The line of each key, by its path. Good enough to find it: a key in a string of many lines counts as one, too."""
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.fullmatch(line):
            table = _path(header[1])
            found.setdefault(table, number)
        elif key := _KEY.match(line):
            path = f"{table}.{_path(key[1])}".removeprefix(".")
            while path and path not in found:
                found[path] = number
                path = path.rpartition(".")[0]
    return found


def _path(text: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in text.split("."))


Problem = tuple[str, str]


def _problems(document: Mapping[str, object]) -> Iterator[Problem]:
    for name, table in document.items():
        if name not in _TABLES:
            yield name, f"unknown table{_did_you_mean(name, _TABLES)}"
        elif not isinstance(table, dict):
            yield name, f"must be a table: write `[{name}]`"
        elif name == "code":
            yield from _code_problems(table)
        else:
            yield from _field_problems(name, table)


def _code_problems(table: Mapping[str, object]) -> Iterator[Problem]:
    for key, value in table.items():
        where = f"code.{key}"
        if key == "limit":
            if _limit_bytes(value) is None:
                yield where, 'must be a size, e.g. "500MB"'
        elif key == "include":
            if not _are_words(value):
                yield where, 'must be a list of paths, e.g. ["certs/dev.pem"]'
        elif key == "countries":
            yield from _spec_problems(where, "countries_allowed", value)
        else:
            yield where, f"unknown key{_did_you_mean(key, _CODE)}"


def _field_problems(name: str, table: Mapping[str, object]) -> Iterator[Problem]:
    known = _environment_names() if name == "environment" else _run_names()
    found = False
    for key, value in table.items():
        where = f"{name}.{key}"
        if key not in known:
            found = True
            yield where, f"unknown key{_did_you_mean(key, known)}"
            continue
        if key == "python" and isinstance(value, int | float):
            found = True
            yield where, 'must be in quotes: "3.12"'  # as a number, 3.10 is 3.1
            continue
        for problem in (
            _spec_problems(where, "environment", {key: value})
            if name == "environment"
            else _spec_problems(where, key, value)
        ):
            found = True
            yield problem
    if name == "environment" and not found:
        yield from _spec_problems(name, "environment", table, whole=True)


def _spec_problems(where: str, key: str, value: object, *, whole: bool = False) -> Iterator[Problem]:
    """What a workload would say about this value alone; with `whole`, also about what fits together in it."""
    from harch.workloads.check import problems_of

    for problem in problems_of({"name": "a", "command": ["a"], "code": "a", **as_fields({key: value})}):
        path = problem.path.removeprefix("resources.")
        if key == "environment":
            path = path.removeprefix(key).removeprefix(f".{where.rpartition('.')[2]}")
        else:
            path = path.removeprefix(key)
        if problem.path or whole:
            yield f"{where}{path}", problem.message


def _limit_bytes(value: object) -> int | None:
    found = float(value) if isinstance(value, int) and not isinstance(value, bool) else None
    if isinstance(value, str):
        found = quantity(value, BYTES_BY_UNIT)
    return int(found) if found is not None and found > 0 else None


def _are_words(value: object) -> bool:
    return isinstance(value, list) and len(value) <= NAMES_MAX and all(isinstance(one, str) and one for one in value)


def _resource_names() -> tuple[str, ...]:
    from harch.workloads.spec import Resources

    return Resources.__struct_fields__


def _run_names() -> tuple[str, ...]:
    from harch.workloads.spec import WorkloadSpec

    return (*_resource_names(), *(name for name in WorkloadSpec.__struct_fields__ if name not in _NOT_DEFAULTS))


def _environment_names() -> tuple[str, ...]:
    from harch.workloads.spec import Environment

    return Environment.__struct_fields__


def _did_you_mean(word: str, choices: tuple[str, ...]) -> str:
    near = get_close_matches(word, choices, n=1)
    return f"; did you mean `{near[0]}`?" if near else f"; known: {', '.join(choices)}" if len(choices) < 10 else ""


def _refuse(problems: list[Problem], lines: Mapping[str, int], source: str) -> None:
    details: list[dict[str, object]] = []
    for where, message in problems:
        path = where.partition("[")[0]
        while path and path not in lines:
            path = path.rpartition(".")[0]
        details.append({"file": source, "line": lines.get(path, 1), "field": where, "message": message})
    listed = [f"{one['file']}:{one['line']}: {one['field']}: {one['message']}" for one in details]
    message = listed[0] if len(listed) == 1 else f"{len(listed)} problems\n" + "\n".join(f"  {line}" for line in listed)
    raise HarchError("E0201", message, hint=_HINT, field=problems[0][0], meta={"problems": details})
