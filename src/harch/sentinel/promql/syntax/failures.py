"""What is wrong with a query, and where?"""

from __future__ import annotations

from harch.base.errors import HarchError
from harch.sentinel.promql.syntax.nodes import NOWHERE, Span
from harch.sentinel.promql.syntax.positions import line_and_column

SYNTAX = "E0620"  # not PromQL, or types that do not fit
TOO_LARGE = "E0621"  # beyond a limit of the parser
NOT_ENABLED = "E0622"  # experimental, and its feature is not switched on


class PromqlSyntaxError(HarchError):
    """The text is no valid query. `reason` is the sentence alone, `span` the bytes it speaks of."""

    def __init__(self, query: str, span: Span, reason: str, *, code: str = SYNTAX, hint: str = "") -> None:
        self.position = line_and_column(query, span.start)
        self.span = span
        self.reason = reason
        super().__init__(code, f"{self.position}: parse error: {reason}", hint=hint)


def too_large(query: str, what: str, hint: str, span: Span = NOWHERE) -> PromqlSyntaxError:
    return PromqlSyntaxError(query, span, what, code=TOO_LARGE, hint=hint)
