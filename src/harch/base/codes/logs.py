"""What can go wrong with logs, traces, and questions over hubs? Archive, languages, and what passes a border."""

from __future__ import annotations

from harch.base.error_kind import EXIT_REFUSED, EXIT_USAGE, ErrorKind

KINDS = (
    ErrorKind(
        "E0685",
        "LogQL query not valid",
        400,
        "The text is not LogQL, or its parts do not fit together. The message begins with the line and column. "
        "docs/sentinel/logql.md describes the language.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0686",
        "Log lines could not be processed",
        400,
        "A query for numbers met lines that a parser or `unwrap` could not read, so that any number would be wrong. "
        'Leave such lines out with `| __error__=""`, or look at them with a query for lines.',
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0687",
        "Log query too large",
        400,
        "The result would exceed the limit on lines, series or bytes. Narrow the selector, shorten the "
        "range, group by fewer labels, or page with `start` and `end`.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0688",
        "Too many log followers",
        429,
        "The limit of connections that follow logs is reached. Close one, or poll with a query.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0689",
        "Wrong kind of query for this path",
        400,
        "The path takes another kind of query: it returns numbers where the query returns lines, or the other way "
        "around.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0624",
        "Query reads too many log lines",
        400,
        "The query would scan more bytes of log lines than it may. Choose fewer streams, a shorter time, or a text "
        "of eight characters or more that the lines must contain: it lets the store skip what cannot match.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0625",
        "Query reads too many spans",
        400,
        "The query would scan more spans than it may. Choose a shorter time, or conditions that fewer spans meet.",
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
        "from line to line belongs in the line or its metadata.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0628",
        "Too many lines or spans per second",
        429,
        "The tenant exceeds its rate limit. Senders retry after the time in `Retry-After`.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0629",
        "No memory left for lines or spans",
        503,
        "Recent data fills the memory reserved for it. It is freed when the data is written into files; "
        "senders retry by themselves.",
    ),
    ErrorKind(
        "E0680",
        "Not a push of log lines",
        400,
        "A push is the protobuf message `logproto.PushRequest` in a snappy block, or its JSON with `streams`. Nothing "
        "of this body was accepted.",
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
        "Query cannot span hubs",
        400,
        "The expression needs single samples of several hubs side by side, or more parts than one query may have. "
        "The message names the place; an aggregation inside of it (`sum by (...)`) often helps.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0695",
        "Answer of another hub not usable",
        502,
        "A hub returned data that does not match the query: points outside of the grid, columns of unequal "
        "length, labels out of order. Nothing of its answer was used.",
    ),
    ErrorKind(
        "E0696",
        "Telemetry policy not valid",
        400,
        "The rules for queries of other hubs are read at the start. The message names the value that cannot be used.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0697",
        "Disclosure refused by a hub",
        403,
        "Each hub decides what telemetry may leave it: across a border only permitted aggregates of large enough "
        "groups, inside a country also lines, spans and single series. The message names the hub and its rule; "
        "`partial_response=true` returns what the other hubs disclose.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0698",
        "A hub did not answer a telemetry query",
        503,
        "The hub is not linked, its SENTINEL does not run, or it needed longer than the query may take. "
        "`partial_response=true` returns what the other hubs disclose.",
    ),
    ErrorKind(
        "E0699",
        "Query over several hubs not possible",
        400,
        "A SENTINEL beside a hub of a federation can query the other hubs. The message says what is missing, or which "
        "hub is unknown.",
        EXIT_USAGE,
    ),
)
