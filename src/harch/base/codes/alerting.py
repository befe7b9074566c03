"""What may go wrong with rules and alerts?"""

from __future__ import annotations

from harch.base.error_kind import EXIT_REFUSED, EXIT_USAGE, ErrorKind

KINDS = (
    # E064: rules and alerts
    ErrorKind(
        "E0640",
        "Rule file not valid",
        400,
        "The message names every mistake with its line and column. No rule of the file was loaded; what ran goes on.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0641",
        "Template not valid",
        400,
        "Labels and annotations of alerts are Go templates. The template has a mistake, calls a function that is not "
        "there, or produced more than it may. An alert that is due is sent anyway, with the mistake in its place.",
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
        "The message names every mistake with its line and column. What ran before goes on.",
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
        "name of who silences. One that has expired cannot expire again.",
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
        "State of alerts not usable",
        503,
        "The file that keeps silences, acknowledgements, alerts and the notification log could not be read or written.",
    ),
)
