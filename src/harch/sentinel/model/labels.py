"""How is a series named, chosen and described?

By its labels, sorted by name; by matchers that look at the value of one label; by type, unit and help of its metric.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import lru_cache
from typing import Protocol, cast

from harch.base.errors import HarchError

Labels = tuple[tuple[str, str], ...]  # sorted by name, no name twice, no empty value: an empty value means no label

METRIC_NAME = "__name__"
BUCKET_LABEL = "le"
QUANTILE_LABEL = "quantile"

_LEGACY_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_LEGACY_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


def labels(pairs: Mapping[str, str] | Iterable[tuple[str, str]]) -> Labels:
    """The labels of these pairs; those with empty values name nothing and are left out."""
    items = pairs.items() if isinstance(pairs, Mapping) else pairs
    return tuple(sorted((name, value) for name, value in items if value))


def is_plain_label_name(name: str) -> bool:
    """True for names that need no quotes in PromQL. Others are allowed too, as in Prometheus 3."""
    return _LEGACY_LABEL.fullmatch(name) is not None


def is_plain_metric_name(name: str) -> bool:
    return _LEGACY_METRIC.fullmatch(name) is not None


# Which series are meant? A matcher looks at the value of one label.


class MatchKind(Enum):
    EQUAL = "="
    NOT_EQUAL = "!="
    REGEX = "=~"
    NOT_REGEX = "!~"


@dataclass(frozen=True, slots=True)
class Matcher:
    """`name kind value`, for example `job=~"harchos-.*"`. A series without the label has the value "" there."""

    kind: MatchKind
    name: str
    value: str

    def matches(self, value: str) -> bool:
        match self.kind:
            case MatchKind.EQUAL:
                return value == self.value
            case MatchKind.NOT_EQUAL:
                return value != self.value
            case MatchKind.REGEX:
                return whole_text_pattern(self.value).fullmatch(value) is not None
            case MatchKind.NOT_REGEX:
                return whole_text_pattern(self.value).fullmatch(value) is None

    def matches_empty(self) -> bool:
        """True where the matcher also takes series that lack the label."""
        return self.matches("")

    def __str__(self) -> str:
        escaped = self.value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'{self.name}{self.kind.value}"{escaped}"'


class CompiledPattern(Protocol):
    """What is used of a compiled RE2 expression: it runs in linear time, whatever a user writes."""

    groups: int
    groupindex: dict[str, int]

    def fullmatch(self, text: str) -> object | None: ...

    def search(self, text: str) -> object | None: ...


@lru_cache(maxsize=1024)
def whole_text_pattern(expression: str) -> CompiledPattern:
    """The expression in RE2 syntax, for `fullmatch`; `.` matches line ends too, as in Prometheus."""
    try:
        import re2
    except ImportError as missing:
        raise HarchError("E0601", "google-re2") from missing
    options = re2.Options()
    options.dot_nl = True
    options.log_errors = False
    options.max_mem = 8 << 20
    try:
        return cast(CompiledPattern, re2.compile(expression, options))
    except UnicodeEncodeError as broken:
        raise HarchError("E0602", "a regular expression must be text: invalid UTF-8") from broken
    except re2.error as broken:
        reason = broken.args[0] if broken.args else "not RE2 syntax"
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise HarchError("E0602", f"{expression}: {text}") from broken


# What does a metric measure? Its type, its unit, and a sentence for people.


class MetricType(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    GAUGE_HISTOGRAM = "gaugehistogram"
    SUMMARY = "summary"
    INFO = "info"
    STATESET = "stateset"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class MetricMetadata:
    type: MetricType = MetricType.UNKNOWN
    unit: str = ""
    help: str = ""
