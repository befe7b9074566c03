"""Where in the file is the mistake? YAML that is read by expectation, and remembers line and column of every value."""

# harch: pure

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TypeVar

import yaml

from harch.base.errors import HarchError, Problems
from harch.sentinel.model.durations import parse_duration_ms

FILE_CHARS_MAX = 4_000_000
VALUES_MAX = 200_000  # also against aliases that multiply
PROBLEMS_MAX = 50

Parsed = TypeVar("Parsed")


@dataclass(slots=True)
class YamlReading:
    """The mistakes of one file, and how many of its values were looked at."""

    problems: Problems
    values: int = 0


@dataclass(frozen=True, slots=True)
class YamlValue:
    """One value with its place. Every accessor notes what is wrong and answers something harmless instead."""

    node: yaml.Node
    reading: YamlReading

    @property
    def line(self) -> int:
        return int(self.node.start_mark.line) + 1

    @property
    def place(self) -> str:
        return f"line {self.line}, column {self.node.start_mark.column + 1}"

    def wrong(self, what: str) -> None:
        self.reading.problems.add(self.place, what)

    @property
    def is_null(self) -> bool:
        return isinstance(self.node, yaml.ScalarNode) and self.node.tag == "tag:yaml.org,2002:null"

    def mapping(self, known: Collection[str] | None = None) -> dict[str, YamlValue]:
        """Its entries by key. Keys that are not `known`, or come twice, are mistakes."""
        if self.is_null:
            return {}
        if not isinstance(self.node, yaml.MappingNode):
            self.wrong("expected a mapping")
            return {}
        found: dict[str, YamlValue] = {}
        for key_node, value_node in self.node.value:
            key, value = self._child(key_node), self._child(value_node)
            name = key.text()
            if name in found:
                key.wrong(f"`{name}` is given twice")
            elif known is not None and name not in known:
                key.wrong(f"`{name}` is not a field here; known: {', '.join(sorted(known))}")
            else:
                found[name] = value
        return found

    def sequence(self) -> Iterator[YamlValue]:
        if self.is_null:
            return
        if not isinstance(self.node, yaml.SequenceNode):
            self.wrong("expected a list")
            return
        for child in self.node.value:
            yield self._child(child)

    def text(self) -> str:
        """Any plain value, as it is written."""
        if not isinstance(self.node, yaml.ScalarNode):
            self.wrong("expected a string")
            return ""
        text = "" if self.is_null else str(self.node.value)
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            self.wrong("the text is not valid Unicode")
            return ""
        return text

    def strings(self) -> list[str]:
        return [value.text() for value in self.sequence()]

    def text_map(self) -> dict[str, YamlValue]:
        """A mapping of texts to texts, each with its place."""
        return {name: value for name, value in self.mapping().items() if value.text() is not None}

    def flag(self) -> bool:
        text = self.text().lower()
        if text not in ("true", "false"):
            self.wrong("expected true or false")
        return text == "true"

    def whole_number(self) -> int:
        text = self.text()
        if not text.isdecimal() or len(text) > 12:
            self.wrong("expected a non-negative whole number")
            return 0
        return int(text)

    def duration_ms(self) -> int:
        return self.parsed(parse_duration_ms, 0)

    def parsed(self, parse: Callable[[str], Parsed], instead: Parsed) -> Parsed:
        """What `parse` makes of the text; its error becomes a mistake at this place."""
        try:
            return parse(self.text())
        except HarchError as error:
            self.wrong(error.message)
            return instead

    def _child(self, node: yaml.Node) -> YamlValue:
        self.reading.values += 1
        if self.reading.values > VALUES_MAX:
            raise HarchError("E0202", f"the file holds more than {VALUES_MAX} values", hint="split it")
        return YamlValue(node, self.reading)


def read_yaml(text: str) -> YamlValue | None:
    """The root of the document, None for an empty one. Raises E0202 when it is not YAML."""
    if len(text) > FILE_CHARS_MAX:
        raise HarchError("E0202", f"the file is longer than {FILE_CHARS_MAX} characters", hint="split it")
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise HarchError("E0202", f"{place}{error.problem or error.context}", hint="correct the YAML") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise HarchError("E0202", f"not YAML: {str(error)[:200]}", hint="correct the YAML") from error
    return None if node is None else YamlValue(node, YamlReading(Problems(limit=PROBLEMS_MAX)))
