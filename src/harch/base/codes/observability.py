"""What may go wrong with telemetry, rules and alerts? What is sent in, what is queried, and what is alerted on."""

from __future__ import annotations

from harch.base.error_kind import EXIT_REFUSED, EXIT_USAGE, ErrorKind

TELEMETRY_KINDS = (
    # E06: telemetry
    ErrorKind(
        "E0601",
        "SENTINEL packages not installed",
        501,
        "The telemetry store needs packages beyond the core. `pip install 'harch[sentinel]'` brings them.",
    ),
    ErrorKind(
        "E0602",
        "Regular expression not valid",
        400,
        "Matchers and templates use RE2 syntax, which runs in linear time: no look-around and no back-references.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0603",
        "Query takes too many samples",
        400,
        "The query would read or produce more samples than one query may. Narrow the selectors, shorten the range, "
        "or widen the step; an operator can raise the tenant's limit.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0604",
        "Query took too long",
        503,
        "The query ran longer than its time limit and was stopped. Narrow it, or set a longer `timeout`.",
    ),
    ErrorKind(
        "E0605",
        "Not a remote-write body",
        400,
        "Remote-write bodies are protobuf messages, compressed with snappy (block format). This one is not what its "
        "content type announces, or it is damaged. Nothing of it was stored.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0606",
        "Request too large",
        413,
        "The request has more bytes or samples than one request may have. Send several smaller ones.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0607",
        "Series or sample not valid",
        400,
        "Labels are UTF-8, no name comes twice, `__name__` is one of them, and their number and length are limited; "
        "the counts of histograms add up. What else the request brought was stored.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0608",
        "Too many series",
        400,
        "The tenant has as many active series, or label names, as its limits allow. New ones are refused until old "
        "ones fall silent; samples of known series are stored.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0609",
        "Too many samples per second",
        429,
        "The tenant exceeds its rate limit. Senders retry after the time in `Retry-After`.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0610",
        "Sample too late, too old or too new",
        400,
        "The sample is older than the newest one of its series by more than the window for late samples, or its time "
        "is further from the store's clock than the tenant's limits allow.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0611",
        "Another value for the same time",
        400,
        "The series has a sample of this time with another value. Two senders probably use the same labels.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0612",
        "No memory left for samples",
        503,
        "The newest samples fill the memory reserved for them. It is freed when they are written into blocks; senders "
        "retry by themselves.",
    ),
    ErrorKind(
        "E0617",
        "Log cannot be written",
        503,
        "The store could not make a write durable: mostly, the disk is full. Nothing is acknowledged until it can; "
        "queries go on, and writes too once there is room.",
    ),
    ErrorKind(
        "E0618",
        "Tenant not usable",
        400,
        "A tenant's name has 1 to 150 of the characters a-z A-Z 0-9 ! - _ . * ' ( ) and is not `.` or `..`; and the "
        "number of tenants is limited.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0619",
        "Log damaged",
        500,
        "A part of the log is not as it was written. It was restored from the parity beside it where that was possible "
        "and left out elsewhere; what follows was read. The file as it was found is kept beside the others as "
        "`.damaged`: check the disk, then delete it.",
    ),
    # E062: PromQL
    ErrorKind(
        "E0613",
        "Block damaged",
        500,
        "A block of the time-series store does not hold what was written: a checksum or its structure is wrong. The "
        "block was moved to `quarantine` beside the others, and everything else goes on. Check the disk, then restore "
        "the block from a backup or delete it.",
    ),
    ErrorKind(
        "E0614",
        "Block of another version",
        500,
        "A block was written by a release that uses another format. It is left as it is: run that release, or delete "
        "it.",
    ),
    ErrorKind(
        "E0615",
        "Too many pending deletions",
        429,
        "Deletions of series are kept as a list until the blocks are rewritten. Delete by fewer, wider matchers, or "
        "wait for the next maintenance.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0616",
        "Deletion not proven",
        500,
        "After the rewrite some samples that were to be erased could still be read, or their old files were still "
        "there. The deletion stays in force; look for files that cannot be removed.",
    ),
    ErrorKind(
        "E0620",
        "Query not valid",
        400,
        "The text is not PromQL, or the types of its parts do not fit. The message begins with the line and column.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0621",
        "Query too large",
        400,
        "Length, parts and nesting of a query are limited, so that no query can exhaust the server by its text alone. "
        "Split it, or record parts of it by rules.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0622",
        "Part of PromQL not enabled",
        400,
        "The query uses an experimental function, duration expressions, `anchored`, `smoothed` or `fill`, and the "
        "server was started without that feature.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0623",
        "Histograms do not fit together",
        400,
        "Native histograms with exponential buckets and those with custom buckets cannot be added or subtracted, and a "
        "histogram's text must describe buckets that exist.",
    ),
    ErrorKind(
        "E0660",
        "Query cannot be answered",
        400,
        "The query is valid, but not on this data: series match ambiguously, end up with the same labels, or a "
        "parameter has no meaning. The message names what it met.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0661",
        "Query takes too much memory",
        400,
        "A value on the way would have more points than one query may hold. Aggregate earlier, narrow the selectors, "
        "or widen the step.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0662",
        "Query has too many steps",
        400,
        "The range divided by the step is more than one query may have. Widen the step or shorten the range.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0663",
        "Query cancelled",
        503,
        "The client no longer waits for the answer, or the server is stopping. Nothing is left behind.",
    ),
    ErrorKind(
        "E0670",
        "Page of metrics not readable",
        400,
        "A page of metrics is in the Prometheus text format or OpenMetrics. The message names the line; nothing of the "
        "page was accepted, so that half a page does not look like a whole one.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0671",
        "OTLP message not readable",
        400,
        "The body is not the protobuf or JSON message that this path takes. Nothing of it was taken.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0672",
        "Exponential histogram not usable",
        400,
        "Native histograms have schemas from -4 to 8. Finer scales are merged; coarser ones cannot be split.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0673",
        "Configuration of SENTINEL not valid",
        400,
        "The file is YAML as in `prometheus.yml`: `global`, `rule_files`, `scrape_configs`. The message says "
        "where the mistake is; the old configuration stays.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0674",
        "Targets not readable",
        502,
        "A file or address that names targets could not be read, or names too many. The targets known so far stay.",
    ),
    ErrorKind(
        "E0675",
        "Scrape refused",
        502,
        "The target answered with an error, or its page breaks a limit of the job. Its `up` is 0 until that is fixed.",
    ),
    ErrorKind(
        "E0676",
        "SENTINEL is busy",
        503,
        "The request queue is full. Writers retry; people query less, or later.",
    ),
    ErrorKind(
        "E0677",
        "Encoding not known",
        415,
        "The encoding or type of the body is not supported on this path. The message names what is.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0678",
        "Some samples were refused",
        400,
        "All other samples of the request were stored. The message counts what was refused by reason; sending the same "
        "samples again would be refused again.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0679",
        "Dashboard not usable",
        400,
        "No shipped dashboard has this name, or the file is not a dashboard. The message says where the mistake is.",
        EXIT_USAGE,
    ),
)


# What may go wrong with rules and alerts?


ALERTING_KINDS = (
    # E064: rules and alerts
    ErrorKind(
        "E0640",
        "Rule file not valid",
        400,
        "The message names every mistake with its line and column. No rule of the file was loaded; the old rules stay.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0641",
        "Template not valid",
        400,
        "Labels and annotations of alerts are Go templates. The template has an error, calls an unknown "
        "function, or produced too much output. A due alert is sent anyway, with the error in its place.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0642",
        "Rule could not be evaluated",
        400,
        "The expression failed, two results carry the same labels after the rule's labels were set, or the group "
        "allows fewer results. The rule's health is `err` until an evaluation succeeds.",
    ),
    ErrorKind(
        "E0643",
        "Alert configuration not valid",
        400,
        "The message names every mistake with its line and column. The old configuration stays.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0644",
        "Matcher not valid",
        400,
        'A matcher is `name="value"`, `!=`, `=~` or `!~`; regular expressions are in RE2 syntax.',
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0645",
        "Silence not valid",
        400,
        "A silence needs a matcher that does not match everything, an end that lies ahead and after its start, and the "
        "name of its author. One that has expired cannot expire again.",
        EXIT_USAGE,
    ),
    ErrorKind("E0646", "Silence not known", 404, "No silence has this id; expired ones are forgotten after five days."),
    ErrorKind(
        "E0647",
        "Alert not valid",
        400,
        "An alert needs at least one label, valid names, and a start that is not after its end. The valid alerts of "
        "the same request were accepted.",
        EXIT_USAGE,
    ),
    ErrorKind("E0648", "Alert not known", 404, "No alert with this fingerprint is firing here."),
    ErrorKind(
        "E0649",
        "Too many alerts or silences",
        429,
        "Alerts, silences, acknowledgements and notification groups are limited, so that a broken rule cannot fill the "
        "memory. Expire silences, or give rules fewer labels.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0650",
        "Notification not delivered",
        502,
        "The receiver could not be reached or refused. It is tried again with growing pauses until the group's "
        "interval is over, and then again with the next flush of the group.",
    ),
    ErrorKind(
        "E0651",
        "Secret not readable",
        500,
        "A file or variable that the alert configuration names for a password, token or address is missing, empty or "
        "too large. Its content is never shown.",
    ),
    ErrorKind(
        "E0652",
        "Alert state not usable",
        503,
        "The file that keeps silences, acknowledgements, alerts and the notification log could not be read or written.",
    ),
)
