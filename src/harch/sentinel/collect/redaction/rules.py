"""What does a rule look for, where, and what takes its place?

Read once, at the start; the shipped ones know keys, tokens and passwords in the shapes that logs show.
"""

# harch: pure

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from harch.base.errors import HarchError
from harch.sentinel.model.labels import Labels, Matcher

RULES_MAX = 200
PATTERN_CHARACTERS_MAX = 4096
_REFERENCE = re.compile(r"\\(?:(\d{1,2})|g<(\w{1,64})>|(.))", re.DOTALL)
_HINT = "docs/sentinel/redaction.md explains the fields"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class RedactionPlace(Enum):
    LINE = "line"
    METADATA = "metadata"
    LABELS = "labels"
    ATTRIBUTES = "attributes"  # of spans, their events, links and resources; also their names and status messages


class RuleText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[[redaction]]` as written in the settings."""

    name: str
    pattern: str = ""
    replacement: str = "[redacted]"
    where: tuple[RedactionPlace, ...] = (RedactionPlace.LINE, RedactionPlace.METADATA, RedactionPlace.ATTRIBUTES)
    names: str = ""  # of metadata, labels and attributes: their whole value is replaced
    until: str = ""  # lines that follow a hit are replaced as a whole, up to one in which this is found
    streams: str = ""  # e.g. `{job="api"}`; all without it
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class RedactionRule:
    """`pattern` finds what to replace in a text, `names` which values to replace as a whole; one may be None."""

    name: str
    pattern: Any | None  # compiled RE2
    source: str
    pieces: Sequence[str | int]  # of the replacement: texts and numbers of groups
    names: Any | None
    where: frozenset[RedactionPlace]
    until: Any | None = None
    streams: tuple[Matcher, ...] = ()

    def concerns(self, stream: Labels) -> bool:
        values = dict(stream)
        return all(matcher.matches(values.get(matcher.name, "")) for matcher in self.streams)

    def applied(self, text: str) -> tuple[str, int]:
        """The text without what must not be kept, and how often that was found."""
        if self.pattern is None:
            return text, 0
        found: tuple[str, int] = self.pattern.subn(self._filled, text)
        return found

    def whole(self) -> str:
        """What stands for a value that is replaced as a whole."""
        return "".join(piece for piece in self.pieces if isinstance(piece, str))

    def _filled(self, match: Any) -> str:
        return "".join(piece if isinstance(piece, str) else match[piece] or "" for piece in self.pieces)


def read_rules(written: Sequence[RuleText]) -> tuple[RedactionRule, ...]:
    """Raises E0683 with what is wrong."""
    if len(written) > RULES_MAX:
        raise HarchError("E0683", f"{len(written)} rules; at most {RULES_MAX} are applied to each line")
    names = [one.name for one in written]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise HarchError("E0683", f"two rules are named `{twice[0]}`", hint="their hits are counted by name")
    return tuple(read_rule(one) for one in written if one.enabled)


def read_rule(written: RuleText) -> RedactionRule:
    """Raises E0683 with what is wrong."""
    if _NAME.fullmatch(written.name) is None:
        hint = "lower-case letters, digits, `-` and `_`, at most 64"
        raise HarchError("E0683", f"`{written.name[:80]}` is not a rule name", hint=hint)
    if not written.pattern and not written.names:
        raise _wrong(written, "it has neither `pattern` nor `names`, so it matches nothing")
    if not written.where:
        raise _wrong(written, "`where` is empty, so it applies nowhere")
    if written.names and not set(written.where) - {RedactionPlace.LINE}:
        raise _wrong(written, "`names` apply to metadata, labels and attributes, but `where` has none of them")
    if written.until and (not written.pattern or RedactionPlace.LINE not in written.where):
        raise _wrong(written, "`until` requires a `pattern` for lines")
    pattern = _compiled(written, written.pattern) if written.pattern else None
    if pattern is not None and pattern.search(b"") is not None:
        raise _wrong(written, "its pattern matches the empty string, so it would match everywhere")
    return RedactionRule(
        written.name,
        pattern,
        written.pattern,
        _pieces(written, pattern),
        _compiled(written, written.names) if written.names else None,
        frozenset(written.where),
        _compiled(written, written.until) if written.until else None,
        _matchers(written),
    )


def _compiled(written: RuleText, expression: str) -> Any:
    if len(expression) > PATTERN_CHARACTERS_MAX:
        raise _wrong(written, f"its pattern has more than {PATTERN_CHARACTERS_MAX} characters")
    return compiled(expression, lambda reason: _wrong(written, reason))


def compiled(expression: str, wrong: Any, *, captures: bool = True) -> Any:
    """RE2, where `.` takes all but line ends. `wrong` makes the error from the reason."""
    try:
        import re2
    except ImportError as missing:
        raise HarchError("E0601", "google-re2") from missing
    options = re2.Options()
    options.log_errors = False
    options.never_capture = not captures
    options.max_mem = 64 << 20
    try:
        return re2.compile(expression, options)
    except UnicodeEncodeError as broken:
        raise wrong("its pattern is not a string") from broken
    except re2.error as broken:
        reason = broken.args[0] if broken.args else "not RE2 syntax"
        raise wrong(reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)) from broken


def _pieces(written: RuleText, pattern: Any | None) -> tuple[str | int, ...]:
    """`\\1` and `\\g<name>` take over groups of the pattern, `\\\\` is a backslash."""
    pieces: list[str | int] = []
    at = 0
    for found in _REFERENCE.finditer(written.replacement):
        pieces.append(written.replacement[at : found.start()])
        at = found.end()
        number, name, other = found.groups()
        if other == "\\":
            pieces.append("\\")
            continue
        if other is not None:
            raise _wrong(written, f"its replacement has `\\{other}`; write groups as `\\1` or `\\g<name>`")
        if pattern is None or written.names:
            raise _wrong(written, "a replacement can refer to groups only if the rule has a `pattern` and no `names`")
        group = int(number) if number else int(name) if name.isdecimal() else pattern.groupindex.get(name)
        if group is None or group > pattern.groups:
            raise _wrong(written, f"its replacement refers to the group `{number or name}`, which the pattern lacks")
        pieces.append(group)
    rest = written.replacement[at:]
    if rest.endswith("\\"):
        raise _wrong(written, "its replacement ends with a single backslash")
    pieces.append(rest)
    return tuple(piece for piece in pieces if piece != "")


def _matchers(written: RuleText) -> tuple[Matcher, ...]:
    if not written.streams:
        return ()
    if not written.streams.lstrip().startswith("{"):
        raise _wrong(written, '`streams` must be a selector such as `{job="api"}`')
    from harch.sentinel.promql.syntax.parser import parse_selector

    try:
        return parse_selector(written.streams)
    except HarchError as problem:
        raise _wrong(written, f"`streams`: {problem.message}") from problem


def _wrong(written: RuleText, reason: str) -> HarchError:
    return HarchError(
        "E0683", f"redaction rule `{written.name}`: {reason}", hint="see docs/sentinel/redaction.md for examples"
    )


# Which secrets are taken out without anybody asking? Keys, tokens and passwords in the shapes that logs show.
#
# The patterns keep to what RE2 and Python's `re` both read alike, and none of them can backtrack far: processes of
# HarchOS apply those of `MASKS` to their own lines before these leave them.


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
        where=(RedactionPlace.METADATA, RedactionPlace.ATTRIBUTES),
    ),
)

MASKS = (HARCH_KEY, BEARER, URL_PASSWORD, PRIVATE_KEY)


def with_shipped(own: tuple[RuleText, ...]) -> tuple[RuleText, ...]:
    """The operator's rules after the shipped ones; one of the same name takes a shipped one's place."""
    replaced = {rule.name: rule for rule in own}
    shipped = tuple(replaced.pop(rule.name, rule) for rule in SHIPPED)
    return (*shipped, *(rule for rule in own if rule.name in replaced))
