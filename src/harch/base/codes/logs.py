"""What can go wrong with questions about logs? E0685 to E0689."""

from __future__ import annotations

from harch.base.error_kind import EXIT_REFUSED, EXIT_USAGE, ErrorKind

KINDS = (
    ErrorKind(
        "E0685",
        "LogQL query not valid",
        400,
        "The text is not LogQL, or its parts do not fit together. The message begins with the line and column. "
        "docs/sentinel/logql.md says what the language has.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0686",
        "Lines could not be worked on",
        400,
        "A query for numbers met lines that a parser or `unwrap` could not read, so that any number would be wrong. "
        'Leave such lines out with `| __error__=""`, or look at them with a query for lines.',
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0687",
        "Too much asked of the logs",
        400,
        "The answer would have more lines, series or bytes than one answer may have. Narrow the selector, shorten the "
        "range, group by fewer labels, or ask for the next part with `start` and `end`.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0688",
        "Too many are following logs",
        429,
        "As many connections follow logs as may at once. Close one, or ask again and again with a query.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0689",
        "Not a question for this path",
        400,
        "The path takes another kind of query: lines cannot be answered where numbers are asked for, and the other way "
        "around.",
        EXIT_USAGE,
    ),
)
