"""Which secrets are taken out without anybody asking? Keys, tokens and passwords in the shapes that logs show.

The patterns keep to what RE2 and Python's `re` both read alike, and none of them can backtrack far: processes of
HarchOS apply those of `MASKS` to their own lines before these leave them.
"""

from __future__ import annotations

from harch.sentinel.collect.redaction.rule import RuleText, Where

_NAMED = (
    r"passw(?:or)?d|passphrase|(?:api|access|secret|private|account)[_.-]?key|(?:client|app|shared)[_.-]?secret|secret"
    r"|(?:access|auth|refresh|bearer|id|session)[_.-]?token"
)

HARCH_KEY = RuleText("harch-key", r"\bhsk_[A-Za-z0-9_-]{6,}", "hsk_[redacted]")
BEARER = RuleText("bearer-token", r"(?i)(\bbearer[ \t]+)[a-z0-9._~+/-]{8,}=*", r"\1[redacted]")
URL_PASSWORD = RuleText(
    "url-password", r"(\b[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/:@\"'<>]*:)[^\s/@\"'<>]+@", r"\1[redacted]@"
)
PRIVATE_KEY = RuleText(
    "private-key",
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----[^-]*(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----)?",
    "[redacted private key]",
    until=r"-----END [A-Z0-9 ]*PRIVATE KEY",
)

SHIPPED = (
    HARCH_KEY,
    BEARER,
    RuleText(
        "authorization-header",
        r"(?i)(\bauthorization\\?[\"']?\s*[:=]\s*\\?[\"']?(?:basic|digest|token|negotiate|apikey)[ \t]+)[^\s\"',;\\]+",
        r"\1[redacted]",
    ),
    URL_PASSWORD,
    PRIVATE_KEY,
    RuleText(
        "quoted-password",
        rf"(?i)((?:{_NAMED})\\?[\"']?\s*[:=]\s*\\?\")[^\"\\]+",
        r"\1[redacted]",
    ),
    RuleText(
        "password",
        rf"(?i)((?:{_NAMED})[\"']?\s*[:=]\s*'?)[^\s\"',;&\\{{}}\[\]()]+",
        r"\1[redacted]",
    ),
    RuleText("json-web-token", r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*", "[redacted token]"),
    RuleText("cloud-key", r"\b(AKIA|ASIA|AROA)[0-9A-Z]{16}\b", r"\1[redacted]"),
    RuleText(
        "vendor-token",
        r"\b(gh[pousr]_|github_pat_|glpat-|xox[abprs]-|hf_|sk-)[A-Za-z0-9_-]{20,}",
        r"\1[redacted]",
    ),
    RuleText(
        "named-credential",
        names=rf"(?i).*(?:{_NAMED}|authorization|cookie|credential).*",
        where=(Where.METADATA, Where.ATTRIBUTES),
    ),
)

MASKS = (HARCH_KEY, BEARER, URL_PASSWORD, PRIVATE_KEY)


def with_shipped(own: tuple[RuleText, ...]) -> tuple[RuleText, ...]:
    """The operator's rules after the shipped ones; one of the same name takes a shipped one's place."""
    replaced = {rule.name: rule for rule in own}
    shipped = tuple(replaced.pop(rule.name, rule) for rule in SHIPPED)
    return (*shipped, *(rule for rule in own if rule.name in replaced))
