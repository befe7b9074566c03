"""What can go wrong with logs, traces, and questions over hubs? Archive, languages, and what passes a border."""

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
    ErrorKind(
        "E0624",
        "Query reads too many log lines",
        400,
        "The query would look at more bytes of log lines than it may. Choose fewer streams, a shorter time, or a text "
        "of eight characters or more that the lines must contain: it lets the store skip what cannot match.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0625",
        "Query reads too many spans",
        400,
        "The query would look at more spans than it may. Choose a shorter time, or conditions that fewer spans meet.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0626",
        "Line or span not valid",
        400,
        "Text is UTF-8; ids of traces and spans are hexadecimal; lengths, labels, attributes and metadata are limited. "
        "What else the request brought was stored.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0627",
        "Too many streams",
        400,
        "The tenant has as many streams of log lines as its limits allow. Use labels with few values; what differs "
        "from line to line belongs into the line or its metadata.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0628",
        "Too many lines or spans per second",
        429,
        "The tenant sends faster than its limit. Senders try again after the time in `Retry-After`.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0629",
        "No memory left for lines or spans",
        503,
        "What came in lately fills the memory that was set aside for it. It is freed when that is written into files; "
        "senders try again by themselves.",
    ),
    ErrorKind(
        "E0680",
        "Not a push of log lines",
        400,
        "A push is the protobuf message `logproto.PushRequest` in a snappy block, or its JSON with `streams`. Nothing "
        "of this body was taken.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0681",
        "Log stream or line not valid",
        400,
        'A stream is named by labels such as `{job="api"}`: at least one, none twice, names of letters, digits, `_`. '
        "A line has a time between 1970 and 2262. What else the push brought was kept.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0682",
        "Some log lines were refused",
        400,
        "All other lines of the push were kept. The message counts what was refused by reason; sending the same lines "
        "again would be refused again.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0683",
        "Redaction rule not valid",
        400,
        "Rules that keep secrets out of logs and traces are read at the start, and SENTINEL does not run without one "
        "of them. The message names the rule and what is wrong with it.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0690",
        "Query for traces not valid",
        400,
        "The text is neither a span selector such as `{ status = error && duration > 10ms }` nor words such as "
        "`service=hub status=error`. The message begins with the line and column.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0691",
        "Query for traces not served",
        400,
        "TraceQL's pipelines, relations between selectors and some of its fields are not served, and length, "
        "conditions and alternatives of a query are limited. docs/sentinel/traces.md lists what is.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0692", "Trace not known", 404, "No span of this trace is stored here: it was not sampled, or is too old."
    ),
    ErrorKind(
        "E0694",
        "Question cannot be asked over hubs",
        400,
        "The expression needs single samples of several hubs side by side, or more parts than one question may have. "
        "The message names the place; an aggregation inside of it (`sum by (...)`) often makes it answerable.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0695",
        "Answer of another hub not usable",
        502,
        "A hub told something that does not belong to the question: places outside of the grid, columns of unequal "
        "length, labels out of order. Nothing of its answer was used.",
    ),
    ErrorKind(
        "E0696",
        "Telemetry policy not valid",
        400,
        "The rules for questions of other hubs are read at the start. The message names the value that cannot be used.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0697",
        "A hub does not tell that",
        403,
        "Each hub judges what of its telemetry may leave it: over a border only permitted aggregates of large enough "
        "groups, inside a country also lines, spans and single series. The message names the hub and its rule; "
        "`partial_response=true` shows what the other hubs tell.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0698",
        "A hub did not answer a question about telemetry",
        503,
        "The hub is not linked, its SENTINEL does not run, or it needed longer than the question may take. "
        "`partial_response=true` shows what the other hubs tell.",
    ),
    ErrorKind(
        "E0699",
        "Question over several hubs not possible",
        400,
        "A SENTINEL beside a hub of a federation can ask the other hubs. The message says what is missing, or which "
        "hub is not known.",
        EXIT_USAGE,
    ),
)
