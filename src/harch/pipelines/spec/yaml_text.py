"""What does this YAML hold, and where does each field stand? Plain data with positions, from limited, harmless YAML.

Scalars follow YAML 1.2: only `true` and `false` are booleans, so the country `NO` stays text. There are no aliases,
which could make a small file huge, and no tags.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml
from yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, DocumentStartEvent, NodeEvent
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from harch.base.errors import HarchError

try:
    from yaml import CSafeLoader as _BaseLoader
except ImportError:  # PyYAML was built without libyaml: slower, otherwise the same
    from yaml import SafeLoader as _BaseLoader  # type: ignore[assignment]

FILE_BYTES_MAX = 8 << 20  # lists of devices are long
DOCUMENTS_MAX, DEPTH_MAX, NODES_MAX = 20, 24, 400_000
_TAG = "tag:yaml.org,2002:"
Position = tuple[int, int]


class _Loader(_BaseLoader):
    """Composes nodes with YAML 1.2's idea of what is a number, a boolean or nothing."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's interface)


_Loader.add_implicit_resolver(f"{_TAG}bool", re.compile(r"^(true|True|false|False)$"), list("tTfF"))
_Loader.add_implicit_resolver(f"{_TAG}null", re.compile(r"^(~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(f"{_TAG}int", re.compile(r"^[-+]?[0-9]{1,18}$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    f"{_TAG}float", re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$"), list("-+.0123456789")
)


@dataclass(slots=True)
class Document:
    """One document: its data, where each path stands (line, column), and fields that were given twice."""

    data: object = None
    start: Position = (1, 1)
    positions: dict[str, Position] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)

    def position(self, path: str) -> Position:
        """Where the field stands; a missing field is shown at the nearest thing around it."""
        while path and path not in self.positions:
            path = re.sub(r"(\.[^.\[]*|\[[0-9]+\])$", "", path) if re.search(r"[.\[]", path) else ""
        return self.positions.get(path, self.start)


def read_documents(text: bytes, source: str) -> list[Document]:
    """Every document that is not empty. Raises E0202 (not YAML), E0204 (too large) or E0250 (too deep, too many)."""
    _check_limits(text, source)
    documents = []
    try:
        for root in yaml.compose_all(text, Loader=_Loader):
            if not (isinstance(root, ScalarNode) and root.tag == f"{_TAG}null"):
                document = Document(start=_mark(root))
                document.data = _value(root, "", document)
                documents.append(document)
    except yaml.YAMLError as error:
        raise _unreadable(error, source) from error
    return documents


def _check_limits(text: bytes, source: str) -> None:
    """Before anything is built: events are counted without recursion, so a hostile file costs little."""
    if len(text) > FILE_BYTES_MAX:
        raise HarchError("E0204", f"{source} is larger than {FILE_BYTES_MAX >> 20} MiB", hint="split it")
    documents = depth = nodes = 0
    try:
        for event in yaml.parse(text, Loader=_Loader):
            line = event.start_mark.line + 1 if event.start_mark is not None else 1
            if isinstance(event, AliasEvent):
                raise HarchError("E0250", f"{source}:{line}: an alias", hint="write it out")
            documents += isinstance(event, DocumentStartEvent)
            nodes += isinstance(event, NodeEvent)
            depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
            for count, limit, what in (
                (documents, DOCUMENTS_MAX, "documents"),
                (depth, DEPTH_MAX, "levels of nesting"),
                (nodes, NODES_MAX, "values"),
            ):
                if count > limit:
                    raise HarchError("E0250", f"{source}:{line}: more than {limit} {what}", hint="simplify or split it")
    except yaml.YAMLError as error:
        raise _unreadable(error, source) from error


def _value(node: Node, path: str, document: Document) -> object:
    document.positions.setdefault(path, _mark(node))
    if isinstance(node, MappingNode):
        return dict(_pairs(node, path, document))
    if isinstance(node, SequenceNode):
        return [_value(item, f"{path}[{index}]", document) for index, item in enumerate(node.value)]
    return _scalar(node, path, document)


def _pairs(node: MappingNode, path: str, document: Document) -> Iterator[tuple[str, object]]:
    seen: set[str] = set()
    for key, item in node.value:
        if not isinstance(key, ScalarNode):
            document.problems.append((path, "a field's name must be plain text"))
            continue
        name = str(key.value)
        here = f"{path}.{name}" if path else name
        if name in seen:
            document.problems.append((here, f"is given twice, again in line {key.start_mark.line + 1}"))
        seen.add(name)
        document.positions.setdefault(here, _mark(key))
        yield name, _value(item, here, document)


def _scalar(node: Node, path: str, document: Document) -> object:
    kind, text = node.tag.removeprefix(_TAG), str(node.value)
    match kind:
        case "null":
            return None
        case "str":
            return text
        case "bool":
            return text.lower() == "true"
        case "int" | "float":
            try:
                return int(text) if kind == "int" else float(text)
            except ValueError:
                document.problems.append((path, f"`{text[:40]}` is not a number"))
                return None
        case _:
            document.problems.append((path, f"tag `{node.tag}` is not supported; write plain values"))
            return None


def _mark(node: Node) -> Position:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _unreadable(error: yaml.YAMLError, source: str) -> HarchError:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        message = f"{source}:{mark.line + 1}:{mark.column + 1}: {error.problem or error.context}"
        return HarchError("E0202", message, hint="check indentation, quotes and brackets around this place; no tabs")
    return HarchError("E0202", f"{source} is not text: {' '.join(str(error).split())[:200]}", hint="use UTF-8")
