"""What does a workload file ask for? YAML in, specifications out, with every mistake by file, line and field.

Scalars follow YAML 1.2: only `true` and `false` are booleans (so the country `NO` stays text), and where a field holds
text, what is written is taken as text (`command: [sleep, 60]`). Everything is limited: size, documents, depth, aliases.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import yaml
from yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, DocumentStartEvent, NodeEvent
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from harch.base.errors import HarchError
from harch.workloads.check import PROBLEMS_MAX, TEXT_FIELDS, Problem, problems_of
from harch.workloads.spec import WorkloadSpec

try:
    from yaml import CSafeLoader as _BaseLoader
except ImportError:  # PyYAML was built without libyaml: slower, otherwise the same
    from yaml import SafeLoader as _BaseLoader  # type: ignore[assignment]

FILE_BYTES_MAX = 1024 * 1024
DOCUMENTS_MAX = 100
DEPTH_MAX = 16
ALIASES_MAX = 20  # enough to share an environment between tasks, too few to make a small file huge
NODES_MAX = 100_000

_HINT = "`harch schema` and docs/reference/workload.md show every field"
_TAG = "tag:yaml.org,2002:"


class _Loader(_BaseLoader):
    """Composes nodes with YAML 1.2's idea of what is a number, a boolean or nothing."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's interface)


_Loader.add_implicit_resolver(f"{_TAG}bool", re.compile(r"^(true|True|false|False)$"), list("tTfF"))
_Loader.add_implicit_resolver(f"{_TAG}null", re.compile(r"^(~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(f"{_TAG}int", re.compile(r"^[-+]?[0-9]+$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    f"{_TAG}float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)


@dataclass(slots=True)
class _Document:
    """One document while it is read: where each field stands, and what is already known to be wrong."""

    positions: dict[str, tuple[int, int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    nodes: int = 0


def parse_workloads(text: bytes, source: str) -> list[WorkloadSpec]:
    """All workloads of the file, at least one. `source` is the file's name, for the errors (E0201, E0202)."""
    _check_limits(text, source)
    specs: list[WorkloadSpec] = []
    wrong: list[tuple[int, int, Problem]] = []
    for root in _documents(text, source):
        document = _Document()
        data = _value(root, "", document)
        if isinstance(data, dict) and (kind := data.pop("kind", "workload")) != "workload":
            document.problems.append(Problem("kind", f"`{kind}` is not known; a workload file says `workload`"))
        found = document.problems or problems_of(data)
        default = (root.start_mark.line + 1, root.start_mark.column + 1)
        wrong += [(*_position(problem.path, document, default), problem) for problem in found]
        if not found:
            specs.append(msgspec.convert(data, WorkloadSpec))
    if wrong:
        raise _error(wrong[:PROBLEMS_MAX], source)
    if not specs:
        raise HarchError("E0201", f"{source} describes no workload", hint=_HINT)
    _check_names(specs, source)
    return specs


def _check_limits(text: bytes, source: str) -> None:
    """Before anything is built: the events of YAML are counted without recursion, so a hostile file costs little."""
    if len(text) > FILE_BYTES_MAX:
        raise HarchError("E0204", f"{source} is larger than 1 MiB", hint="split it into several files")
    documents = aliases = depth = nodes = 0
    try:
        for event in yaml.parse(text, Loader=_Loader):
            documents += isinstance(event, DocumentStartEvent)
            aliases += isinstance(event, AliasEvent)
            nodes += isinstance(event, NodeEvent)
            depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
            line = event.start_mark.line + 1
            for count, limit, what in (
                (documents, DOCUMENTS_MAX, "documents"),
                (aliases, ALIASES_MAX, "aliases"),
                (depth, DEPTH_MAX, "levels of nesting"),
                (nodes, NODES_MAX, "values"),
            ):
                if count > limit:
                    raise HarchError("E0201", f"{source}:{line}: more than {limit} {what}", hint="simplify or split it")
    except yaml.YAMLError as error:
        raise _unreadable(error, source) from error


def _documents(text: bytes, source: str) -> Iterator[Node]:
    try:
        for root in yaml.compose_all(text, Loader=_Loader):
            if not (isinstance(root, ScalarNode) and root.tag == f"{_TAG}null"):  # an empty document is no mistake
                yield root
    except yaml.YAMLError as error:
        raise _unreadable(error, source) from error


def _value(node: Node, path: str, document: _Document, depth: int = 0) -> object:
    """A node as plain data. Aliases are followed here, so depth and size are limited once more."""
    document.nodes += 1
    if document.nodes > NODES_MAX or depth > DEPTH_MAX:
        raise HarchError("E0201", f"`{path[:40]}`: its aliases make it too large", hint="write it without aliases")
    document.positions.setdefault(path, (node.start_mark.line + 1, node.start_mark.column + 1))
    if isinstance(node, MappingNode):
        return _mapping(node, path, document, depth)
    if isinstance(node, SequenceNode):
        return [_value(item, f"{path}[{index}]", document, depth + 1) for index, item in enumerate(node.value)]
    return _scalar(node, path, document)


def _mapping(node: MappingNode, path: str, document: _Document, depth: int) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, item in node.value:
        here = f"{path}.{key.value}" if path else str(key.value)
        if not isinstance(key, ScalarNode):
            document.problems.append(Problem(path, "a field's name must be plain text"))
            continue
        if key.value in values:
            document.problems.append(Problem(here, f"is given twice, again in line {key.start_mark.line + 1}"))
        document.positions.setdefault(here, (key.start_mark.line + 1, key.start_mark.column + 1))
        values[key.value] = _value(item, here, document, depth + 1)
    return values


def _scalar(node: Node, path: str, document: _Document) -> object:
    kind, text = node.tag.removeprefix(_TAG), str(node.value)
    if kind == "null":
        return None
    if kind == "str" or (kind in ("bool", "int", "float") and _is_text(path)):
        return text
    if kind == "bool":
        return text.lower() == "true"
    if kind in ("int", "float"):
        try:
            return int(text) if kind == "int" else float(text)
        except ValueError:  # a number with an explicit tag, or with more digits than Python reads
            document.problems.append(Problem(path, f"`{text[:40]}` is not a number"))
            return None
    document.problems.append(Problem(path, f"tag `{node.tag}` is not supported; write plain values"))
    return None


def _is_text(path: str) -> bool:
    """`command[1]` and `env.PORT` are text because `command` and `env` are; so is `resources.gpu_models[0]`."""
    top = re.split(r"[.\[]", path, maxsplit=1)[0]
    return top in TEXT_FIELDS or path.partition("[")[0] in TEXT_FIELDS


def _position(path: str, document: _Document, default: tuple[int, int]) -> tuple[int, int]:
    """Where the field stands; a missing field is shown at the nearest thing around it."""
    while path and path not in document.positions:
        path = re.sub(r"(\.[^.\[]*|\[[0-9]+\])$", "", path) if re.search(r"[.\[]", path) else ""
    return document.positions.get(path, default)


def _error(wrong: list[tuple[int, int, Problem]], source: str) -> HarchError:
    lines = [f"{source}:{line}:{column}: {problem}" for line, column, problem in wrong]
    message = lines[0] if len(lines) == 1 else f"{len(lines)} problems\n" + "\n".join(f"  {line}" for line in lines)
    details = [
        {"file": source, "line": line, "column": column, "field": problem.path, "message": problem.message}
        for line, column, problem in wrong
    ]
    return HarchError("E0201", message, hint=_HINT, field=wrong[0][2].path or None, meta={"problems": details})


def _unreadable(error: yaml.YAMLError, source: str) -> HarchError:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        message = f"{source}:{mark.line + 1}:{mark.column + 1}: {error.problem or error.context}"
        tab = "\\t" in str(error.problem) or "tab" in str(error.problem)
        hint = "indent with spaces, not tabs" if tab else "check indentation, quotes and brackets around this place"
        return HarchError("E0202", message, hint=hint)
    reason = " ".join(str(error).split())
    return HarchError("E0202", f"{source} is not text: {reason}", hint="a workload file is YAML in UTF-8")


def _check_names(specs: list[WorkloadSpec], source: str) -> None:
    seen: set[str] = set()
    for spec in specs:
        if spec.name in seen:
            raise HarchError("E0201", f"{source}: two workloads are called `{spec.name}`", hint="names are unique")
        seen.add(spec.name)
