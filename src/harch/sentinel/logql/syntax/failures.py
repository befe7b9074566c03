"""What is wrong with a LogQL query, and where?"""

from __future__ import annotations

from harch.base.errors import HarchError
from harch.sentinel.promql.syntax.nodes import Span
from harch.sentinel.promql.syntax.positions import line_and_column

SYNTAX = "E0685"


class LogqlSyntaxError(HarchError):
    """The text is no valid query. `reason` is the sentence alone, `span` the bytes it speaks of."""

    def __init__(self, query: str, span: Span, reason: str, *, code: str = SYNTAX, hint: str = "") -> None:
        self.position = line_and_column(query, span.start)
        self.span = span
        self.reason = reason
        super().__init__(code, f"{self.position}: parse error: {reason}", hint=hint)
