"""Which words and signs is a query made of?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from harch.sentinel.promql.syntax.nodes import AGGREGATIONS
from harch.sentinel.promql.syntax.quoting import quote


class Kind(Enum):
    NUMBER = "number"
    DURATION = "duration"
    BYTES = "size in bytes"  # of LogQL
    FLAG = "flag"  # of LogQL: `--strict`
    STRING = "string"
    WORD = "identifier"
    METRIC = "metric identifier"  # a word with colons
    SIGN = "sign"
    END = "end of input"
    ERROR = "error"  # `text` is the sentence


WORD_OPERATORS = frozenset({"and", "or", "unless", "atan2"})
FILLS = frozenset({"fill", "fill_left", "fill_right"})
_MODIFIERS = frozenset({"offset", "anchored", "smoothed", "by", "without", "on", "ignoring", "bool", *FILLS})
_GROUPS = frozenset({"group_left", "group_right"})
_QUERY_TIMES = frozenset({"start", "end", "step", "range"})
KEYWORDS = WORD_OPERATORS | AGGREGATIONS | _MODIFIERS | _GROUPS | _QUERY_TIMES | {"max_of", "min_of"}
# The few keywords that cannot stand where a metric's name is expected.
NO_METRIC_NAMES = frozenset({"bool", "on", "ignoring", "atan2"}) | _GROUPS
_SHOWN_CHARACTERS = 10
_SIGN_OPERATORS = frozenset(
    {"+", "-", "*", "/", "%", "^", "==", "!=", "<", ">", "<=", ">=", "=~", "!~", "@", "</", ">/"}
)


@dataclass(frozen=True, slots=True)
class Token:
    """One word or sign. `start` and `end` count characters; `keyword` is the word in small letters if it is one."""

    kind: Kind
    text: str
    start: int
    end: int
    keyword: str = ""

    def described(self) -> str:
        """What messages call it, in Prometheus' words."""
        if self.kind is Kind.END:
            return "end of input"
        if self.keyword in AGGREGATIONS:
            return f"<aggr:{self.text}>"
        if self.keyword in WORD_OPERATORS or (self.kind is Kind.SIGN and self.text in _SIGN_OPERATORS):
            return f"<op:{self.text}>"
        if self.keyword:
            return f"<{self.text}>"
        if self.kind is Kind.SIGN:
            return quote(self.text)
        shown = quote(self.text)
        if self.kind not in (Kind.WORD, Kind.METRIC) and len(self.text) > _SHOWN_CHARACTERS:
            shown = quote(self.text[:_SHOWN_CHARACTERS]) + "..."
        return f"{self.kind.value} {shown}"
