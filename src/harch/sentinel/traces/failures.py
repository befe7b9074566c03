"""What is wrong with a query for traces, and where?"""

from __future__ import annotations

from harch.base.errors import HarchError

SYNTAX = "E0690"
NOT_SUPPORTED = "E0691"


class TraceQueryError(HarchError):
    """The text is no query for traces. `position` is `line:column`, both counted from 1 in characters."""

    def __init__(self, query: str, offset: int, reason: str, *, code: str = SYNTAX, hint: str = "") -> None:
        before = query[:offset]
        self.offset = offset
        self.position = f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"
        self.reason = reason
        super().__init__(code, f"{self.position}: {reason}", hint=hint)
