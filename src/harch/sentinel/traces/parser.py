"""How is a query for traces read? `{ … }` as in TraceQL, or plain words: `service=hub status=error`.

    query     := "" | trace id | "{" [ either ] "}" [ "| select(" name { "," name } ")" ] | words
    either    := both { "||" both }
    both      := one { "&&" one }
    one       := "(" either ")" | "true" | name comparison value
    words     := name comparison value { name comparison value }

What comes out are alternatives of conditions that must all hold; parentheses are multiplied out, within a limit.
"""

# harch: pure

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import suppress
from itertools import product

from harch.base.errors import HarchError
from harch.sentinel.model.spans import AttributeValue, Comparison, SpanCondition, SpanField, SpanStatus
from harch.sentinel.promql.syntax.literals import BadEscape, unquote
from harch.sentinel.traces.durations import DURATION, parse_duration_ns
from harch.sentinel.traces.query import (
    EVERY_TRACE,
    INTRINSICS,
    SCOPES,
    WORDS,
    Alternative,
    Condition,
    ConditionSubject,
    FieldMismatch,
    NotSupported,
    QueryLiteral,
    TraceCondition,
    TraceField,
    TraceQuery,
    attribute_named,
    attribute_subject,
    condition_of,
    subject_of,
    trace_id_of,
)

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


# Where does one part of a query for traces end and the next begin? A place in the text that moves forward.


_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"[^\s{}()=~!<>&|^,\"'`]+")
_COMPARISON = re.compile(r"=~|!~|!=|>=|<=|=|>|<")
_STRING = {
    '"': re.compile(r'"(?:[^"\\\n]|\\[^\n])*"'),
    "'": re.compile(r"'(?:[^'\\\n]|\\[^\n])*'"),
    "`": re.compile(r"`[^`]*`"),
}
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,4})?")
_VALUE = re.compile(r"[^\s{}()=~!<>&|^,\"'`]+")
_WORD_VALUE = re.compile(r"\S+")
_INT_MAX = 2**63 - 1
_KEYWORDS: dict[str, AttributeValue | None] = {"true": True, "false": False, "nil": None}


class QueryReader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at >= len(self._text)

    def mark(self) -> int:
        """The place where the next part begins, for messages."""
        self.space()
        return self._at

    def rest(self, characters: int) -> str:
        return self._text[self._at : self._at + characters]

    def space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        self._at = found.end() if found is not None else self._at

    def take(self, sign: str) -> bool:
        self.space()
        if not self._text.startswith(sign, self._at):
            return False
        self._at += len(sign)
        return True

    def expect(self, sign: str, expected: str = "") -> None:
        if not self.take(sign):
            raise self.failure(f"expected {expected or f'`{sign}`'}, found {self._found()}")

    def name(self) -> tuple[str, bool]:
        """The name of a field or attribute, and whether a part of it stood in quotes."""
        self.space()
        found = _NAME.match(self._text, self._at)
        start, name = self._at, found[0] if found is not None else ""
        after = self._at + len(name)
        if name in SCOPES and self._text[after : after + 1] in _STRING:
            self._at = after
            attribute = self._string()
            if not attribute:
                raise self.failure("an attribute needs a name", at=start)
            return name + attribute, True
        if not name:
            raise self.failure(f"expected a field, found {self._found()}", hint="e.g. `name`, `status` or `.gpus`")
        self._at = after
        return name, False

    def comparison(self) -> Comparison:
        self.space()
        found = _COMPARISON.match(self._text, self._at)
        if found is None:
            known = ", ".join(f"`{one.value}`" for one in Comparison)
            raise self.failure(f"expected a comparison, found {self._found()}", hint=f"one of {known}")
        self._at = found.end()
        return Comparison(found[0])

    def value(self) -> QueryLiteral:
        """A value inside of braces: texts are in quotes, words are those that TraceQL knows."""
        self.space()
        if self.rest(1) in _STRING:
            return QueryLiteral(self._string())
        found = _VALUE.match(self._text, self._at)
        if found is None:
            raise self.failure(f"expected a value, found {self._found()}")
        start, text = self._at, found[0]
        if text in _KEYWORDS:
            literal = QueryLiteral(_KEYWORDS[text])
        elif _NUMBER.fullmatch(text):
            literal = QueryLiteral(self._number(text, start))
        elif DURATION.fullmatch(text):
            literal = self._duration(text, start)
        elif text.isalpha():
            literal = QueryLiteral(text)  # a status or a kind; where they are not meant, texts need quotes
        else:
            raise self.failure(f"`{text[:40]}` is not a value", hint="quote strings", at=start)
        self._at = found.end()
        return literal

    def word_value(self) -> QueryLiteral:
        """A value of plain words: up to the next space, or in quotes. Numbers are those that look like one."""
        if self.rest(1) in _STRING:
            return QueryLiteral(self._string())
        found = _WORD_VALUE.match(self._text, self._at)
        if found is None:
            return QueryLiteral("")
        self._at = found.end()
        text = found[0]
        if DURATION.fullmatch(text) and (duration_ns := parse_duration_ns(text)) is not None:
            return QueryLiteral(duration_ns, is_duration=True, text=text)
        return QueryLiteral(_plain_number(text), text=text)

    def failure(self, reason: str, *, at: int | None = None, code: str = SYNTAX, hint: str = "") -> TraceQueryError:
        return TraceQueryError(self._text, self._at if at is None else at, reason, code=code, hint=hint)

    def _string(self) -> str:
        found = _STRING[self.rest(1)].match(self._text, self._at)
        if found is None:
            raise self.failure("the quotes are not closed")
        try:
            text = unquote(found[0])
            text.encode()
        except BadEscape as bad:
            raise self.failure(str(bad)) from bad
        except UnicodeEncodeError:
            raise self.failure("this string is not UTF-8") from None
        self._at = found.end()
        return text

    def _number(self, text: str, start: int) -> int | float:
        number: int | float = float(text)
        with suppress(ValueError):
            number = int(text) if len(text) <= 20 else number
        if not math.isfinite(number) or (isinstance(number, int) and abs(number) > _INT_MAX):
            raise self.failure(f"`{text[:40]}` is too large", at=start)
        return number

    def _duration(self, text: str, start: int) -> QueryLiteral:
        duration_ns = parse_duration_ns(text)
        if duration_ns is None:
            raise self.failure(f"`{text[:40]}` is longer than 292 years", at=start)
        return QueryLiteral(duration_ns, is_duration=True)

    def _found(self) -> str:
        return "the end" if self.at_end else f"`{self.rest(10)}`"


def _plain_number(text: str) -> int | float | str:
    """The number that the text is exactly; `08` and `1e3` stay texts, because ids look like this, too."""
    if _NUMBER.fullmatch(text) is None:
        return text
    number: int | float = int(text) if text.lstrip("-").isdigit() and len(text) < 19 else float(text)
    return number if math.isfinite(number) and str(number) == text else text


QUERY_CHARS_MAX = 8192
CONDITIONS_MAX = 64
ALTERNATIVES_MAX = 16
DEPTH_MAX = 32
_ID_DIGITS_MIN = 16  # shorter ones could be words

Conjunctions = list[tuple[Condition, ...]]
_ReadsValue = Callable[[], QueryLiteral]


def parse_query(text: str) -> TraceQuery:
    """Raises E0690 for what is no query, E0691 for parts of TraceQL that are not served and for too large ones."""
    if len(text) > QUERY_CHARS_MAX:
        raise TraceQueryError(text[:1], 0, f"a query has at most {QUERY_CHARS_MAX} characters", code=NOT_SUPPORTED)
    stripped = text.strip()
    if not stripped:
        return EVERY_TRACE
    if len(stripped) >= _ID_DIGITS_MIN and (trace_id := trace_id_of(stripped)) is not None:
        return _query(text, [(TraceCondition(TraceField.ID, Comparison.EQUAL, trace_id),)])
    parser = _Parser(text)
    return _query(text, parser.selector() if stripped.startswith("{") else [parser.words()])


def _query(text: str, conjunctions: Conjunctions) -> TraceQuery:
    alternatives = tuple(dict.fromkeys(_alternative(conditions) for conditions in conjunctions))
    query = TraceQuery(alternatives)
    has_more_conditions = len(alternatives) > 1 or len(alternatives[0].spans) + len(alternatives[0].traces) > 1
    if query.trace_id and has_more_conditions:
        raise TraceQueryError(
            text, 0, "`trace:id` must be the only condition", hint="an id names one trace: remove the rest"
        )
    return query


def _alternative(conditions: tuple[Condition, ...]) -> Alternative:
    return Alternative(
        spans=tuple(one for one in conditions if isinstance(one, SpanCondition)),
        traces=tuple(one for one in conditions if isinstance(one, TraceCondition)),
    )


class _Parser:
    def __init__(self, text: str) -> None:
        self.read = QueryReader(text)
        self.conditions = 0

    # Inside of braces

    def selector(self) -> Conjunctions:
        self.read.expect("{")
        if self.read.take("}"):
            found: Conjunctions = [()]
        else:
            found = self._either(0)
            self.read.expect("}", "`&&`, `||` or `}`")
        if self.read.take("| select(") or self.read.take("|select("):
            self._selected()
        self.read.space()
        if not self.read.at_end:
            rest = self.read.rest(20)
            raise self.read.failure(
                f"unexpected input after the braces: `{rest}`",
                code=NOT_SUPPORTED,
                hint="one span selector is supported; pipelines and relations between selectors are not",
            )
        return found

    def _selected(self) -> None:
        """`| select(.a, name)` names attributes to show; all of them are shown anyway."""
        while True:
            start = self.read.mark()
            self._subject(start, *self.read.name())
            if not self.read.take(","):
                break
        self.read.expect(")", "`,` or `)`")

    def _either(self, depth: int) -> Conjunctions:
        found = self._both(depth)
        while self.read.take("||"):
            found = self._limited(found + self._both(depth))
        return found

    def _both(self, depth: int) -> Conjunctions:
        found = self._one(depth)
        while self.read.take("&&"):
            right = self._one(depth)
            if len(found) * len(right) > ALTERNATIVES_MAX:
                self._limited(found * len(right))
            found = [left + more for left, more in product(found, right)]
        return found

    def _limited(self, found: Conjunctions) -> Conjunctions:
        if len(found) > ALTERNATIVES_MAX:
            reason = f"there are more than {ALTERNATIVES_MAX} alternatives"
            raise self.read.failure(reason, code=NOT_SUPPORTED, hint='write e.g. `name =~ "a|b|c"`')
        return found

    def _one(self, depth: int) -> Conjunctions:
        if depth >= DEPTH_MAX:
            raise self.read.failure("too many parentheses", code=NOT_SUPPORTED)
        if self.read.take("("):
            found = self._either(depth + 1)
            self.read.expect(")", "`&&`, `||` or `)`")
            return found
        start = self.read.mark()
        name, is_quoted = self.read.name()
        if name == "true":
            return [()]
        return [(self._condition(start, self._subject(start, name, is_quoted), self.read.value),)]

    def _subject(self, start: int, name: str, is_quoted: bool) -> ConditionSubject:
        if is_quoted:  # `span."odd name"`: the scope stands before the quotes
            scope, _, attribute = name.partition(".")
            return attribute_subject(f"{scope}.", attribute)
        try:
            subject = subject_of(name)
        except NotSupported as problem:
            raise self.read.failure(str(problem), at=start, code=NOT_SUPPORTED) from None
        if subject is None:
            hint = f"attributes are written `.{name}`; fields are {', '.join(sorted(INTRINSICS))}"
            raise self.read.failure(f"`{name[:100]}` is not a field", at=start, hint=hint)
        return subject

    # Plain words

    def words(self) -> tuple[Condition, ...]:
        found: list[Condition] = []
        self.read.space()
        while not self.read.at_end:
            start = self.read.mark()
            name, is_quoted = self.read.name()
            found.append(self._word(start, name, is_quoted))
            self.read.space()
        return tuple(found)

    def _word(self, start: int, name: str, is_quoted: bool) -> Condition:
        match name:
            case "minDuration":
                return self._trace_duration(start, Comparison.AT_LEAST)
            case "maxDuration":
                return self._trace_duration(start, Comparison.AT_MOST)
            case "error" if not is_quoted:
                return self._error_flag(start)
        known = None if is_quoted else WORDS.get(name)
        if known is not None:
            subject = ConditionSubject(known)
        elif is_quoted or name in INTRINSICS or name.startswith((".", "span.", "resource.")):
            subject = self._subject(start, name, is_quoted)
        else:
            subject = attribute_named(name)
        return self._condition(start, subject, self.read.word_value)

    def _trace_duration(self, start: int, comparison: Comparison) -> Condition:
        self.read.expect("=")
        return self._built(start, ConditionSubject(TraceField.DURATION), comparison, self.read.word_value())

    def _error_flag(self, start: int) -> Condition:
        """`error=true`, as Tempo's `tags` and Jaeger call a span that failed."""
        self.read.expect("=")
        flag = self.read.word_value().value
        if flag not in {"true", "false"}:
            raise self.read.failure("`error` takes true or false", at=start, hint="e.g. `error=true` or `status=error`")
        comparison = Comparison.EQUAL if flag == "true" else Comparison.NOT_EQUAL
        return self._built(start, ConditionSubject(SpanField.STATUS), comparison, _ERROR)

    # Both

    def _condition(self, start: int, subject: ConditionSubject, value: _ReadsValue) -> Condition:
        comparison = self.read.comparison()
        return self._built(start, subject, comparison, value())

    def _built(self, start: int, subject: ConditionSubject, comparison: Comparison, literal: QueryLiteral) -> Condition:
        self.conditions += 1
        if self.conditions > CONDITIONS_MAX:
            reason = f"there are more than {CONDITIONS_MAX} conditions"
            raise self.read.failure(reason, at=start, code=NOT_SUPPORTED)
        try:
            return condition_of(subject, comparison, literal)
        except FieldMismatch as problem:
            raise self.read.failure(str(problem), at=start, hint=problem.hint) from None


_ERROR = QueryLiteral(SpanStatus.ERROR.value)
