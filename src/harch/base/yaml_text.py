"""What does this YAML hold, and where does each field stand? Plain data with positions, from limited, harmless YAML.

Scalars follow YAML 1.2: only `true` and `false` are booleans, so the country `NO` stays text. Everything is limited:
size, documents, depth, values, and aliases, which could make a small file huge. There are no tags.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import yaml
from yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, DocumentStartEvent, NodeEvent
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from harch.base.errors import HarchError

try:
    from yaml import CSafeLoader as _BaseLoader
except ImportError:  # PyYAML was built without libyaml: slower, otherwise the same
    from yaml import SafeLoader as _BaseLoader  # type: ignore[assignment]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlRules:
    """How much a file may hold, the code of what holds more, and which fields are text whatever they look like."""

    code: str
    bytes_max: int
    documents_max: int
    depth_max: int
    nodes_max: int
    aliases_max: int = 0
    is_text: Callable[[str], bool] = lambda path: False


@dataclass(slots=True)
class Document:
    """One document: its data, where each path stands (line, column), and what is wrong with its YAML."""

    data: object = None
    start: Position = (1, 1)
    positions: dict[str, Position] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)
    nodes: int = 0

    def position(self, path: str) -> Position:
        """Where the field stands; a missing field is shown at the nearest thing around it."""
        while path and path not in self.positions:
            path = re.sub(r"(\.[^.\[]*|\[[0-9]+\])$", "", path) if re.search(r"[.\[]", path) else ""
        return self.positions.get(path, self.start)


def read_documents(text: bytes, source: str, rules: YamlRules) -> list[Document]:
    """Every document that is not empty. Raises E0202 (not YAML), E0204 (too large), or the code of the rules."""
    _check_limits(text, source, rules)
    documents = []
    try:
        for root in yaml.compose_all(text, Loader=_Loader):
            if not (isinstance(root, ScalarNode) and root.tag == f"{_TAG}null"):  # an empty document is no mistake
                document = Document(start=_mark(root))
                document.data = _Reader(rules, document).value(root, "", 0)
                documents.append(document)
    except yaml.YAMLError as error:
        raise _unreadable(error, source) from error
    return documents


def _check_limits(text: bytes, source: str, rules: YamlRules) -> None:
    """Before anything is built: events are counted without recursion, so a hostile file costs little."""
    if len(text) > rules.bytes_max:
        raise HarchError("E0204", f"{source} is larger than {rules.bytes_max >> 20} MiB", hint="split it")
    documents = aliases = depth = nodes = 0
    try:
        for event in yaml.parse(text, Loader=_Loader):
            line = event.start_mark.line + 1 if event.start_mark is not None else 1
            documents += isinstance(event, DocumentStartEvent)
            aliases += isinstance(event, AliasEvent)
            nodes += isinstance(event, NodeEvent)
            depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
            for count, limit, what in (
                (documents, rules.documents_max, "documents"),
                (aliases, rules.aliases_max, "aliases"),
                (depth, rules.depth_max, "levels of nesting"),
                (nodes, rules.nodes_max, "values"),
            ):
                if count > limit:
                    many = f"more than {limit} {what}" if limit else f"{what} are not supported"
                    raise HarchError(rules.code, f"{source}:{line}: {many}", hint="write it out, simplify or split it")
    except yaml.YAMLError as error:
        raise _unreadable(error, source) from error


@dataclass(frozen=True, slots=True)
class _Reader:
    """Nodes as plain data. Aliases are followed here, so depth and size are limited once more."""

    rules: YamlRules
    document: Document

    def value(self, node: Node, path: str, depth: int) -> object:
        document, rules = self.document, self.rules
        document.nodes += 1
        if document.nodes > rules.nodes_max or depth > rules.depth_max:
            message = f"`{path[:40]}`: its aliases make it too large"
            raise HarchError(rules.code, message, hint="write it without aliases")
        document.positions.setdefault(path, _mark(node))
        if isinstance(node, MappingNode):
            return dict(self._pairs(node, path, depth))
        if isinstance(node, SequenceNode):
            return [self.value(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _pairs(self, node: MappingNode, path: str, depth: int) -> Iterator[tuple[str, object]]:
        seen: set[str] = set()
        for key, item in node.value:
            if not isinstance(key, ScalarNode):
                self.document.problems.append((path, "a field's name must be plain text"))
                continue
            name = str(key.value)
            here = f"{path}.{name}" if path else name
            if name in seen:
                self.document.problems.append((here, f"is given twice, again in line {key.start_mark.line + 1}"))
            seen.add(name)
            self.document.positions.setdefault(here, _mark(key))
            yield name, self.value(item, here, depth + 1)

    def _scalar(self, node: Node, path: str) -> object:
        kind, text = node.tag.removeprefix(_TAG), str(node.value)
        if kind == "null":
            return None
        if kind == "str" or (kind in ("bool", "int", "float") and self.rules.is_text(path)):
            return text
        if kind == "bool":
            return text.lower() == "true"
        if kind in ("int", "float"):
            try:
                return int(text) if kind == "int" else float(text)
            except ValueError:  # a number with an explicit tag
                self.document.problems.append((path, f"`{text[:40]}` is not a number"))
                return None
        self.document.problems.append((path, f"tag `{node.tag}` is not supported; write plain values"))
        return None


def _mark(node: Node) -> Position:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _unreadable(error: yaml.YAMLError, source: str) -> HarchError:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        message = f"{source}:{mark.line + 1}:{mark.column + 1}: {error.problem or error.context}"
        tab = "\\t" in str(error.problem) or "tab" in str(error.problem)
        hint = "indent with spaces, not tabs" if tab else "check indentation, quotes and brackets around this place"
        return HarchError("E0202", message, hint=hint)
    reason = " ".join(str(error).split())[:200]
    return HarchError("E0202", f"{source} is not text: {reason}", hint="it is YAML in UTF-8")
