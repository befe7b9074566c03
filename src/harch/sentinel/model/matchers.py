"""Which series are meant? A matcher looks at the value of one label."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Protocol, cast

from harch.base.errors import HarchError


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


class Pattern(Protocol):
    """What is used of a compiled RE2 expression: it runs in linear time, whatever a user writes."""

    groups: int
    groupindex: dict[str, int]

    def fullmatch(self, text: str) -> object | None: ...

    def search(self, text: str) -> object | None: ...


@lru_cache(maxsize=1024)
def whole_text_pattern(expression: str) -> Pattern:
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
        return cast(Pattern, re2.compile(expression, options))
    except UnicodeEncodeError as broken:
        raise HarchError("E0602", "a regular expression must be text: invalid UTF-8") from broken
    except re2.error as broken:
        reason = broken.args[0] if broken.args else "not RE2 syntax"
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise HarchError("E0602", f"{expression}: {text}") from broken
