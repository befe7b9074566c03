"""How is a query for traces read? `{ … }` as in TraceQL, or plain words: `service=hub status=error`.

    query     := "" | trace id | "{" [ either ] "}" [ "| select(" name { "," name } ")" ] | words
    either    := both { "||" both }
    both      := one { "&&" one }
    one       := "(" either ")" | "true" | name comparison value
    words     := name comparison value { name comparison value }

What comes out are alternatives of conditions that must all hold; parentheses are multiplied out, within a limit.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from harch.sentinel.model.spans import Comparison, Field, SpanCondition, SpanStatus
from harch.sentinel.traces.failures import NOT_SUPPORTED, TraceQueryError
from harch.sentinel.traces.fields import (
    INTRINSICS,
    WORDS,
    Condition,
    Literal,
    Mismatch,
    NotSupported,
    Subject,
    attribute_named,
    attribute_subject,
    condition_of,
    subject_of,
    trace_id_of,
)
from harch.sentinel.traces.query import EVERY_TRACE, Alternative, TraceCondition, TraceField, TraceQuery
from harch.sentinel.traces.reader import Reader

QUERY_CHARS_MAX = 8192
CONDITIONS_MAX = 64
ALTERNATIVES_MAX = 16
DEPTH_MAX = 32
_ID_DIGITS_MIN = 16  # shorter ones could be words

Conjunctions = list[tuple[Condition, ...]]
_ReadsValue = Callable[[], Literal]


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
    asks_for_more = len(alternatives) > 1 or len(alternatives[0].spans) + len(alternatives[0].traces) > 1
    if query.trace_id and asks_for_more:
        raise TraceQueryError(text, 0, "`trace:id` stands alone", hint="an id names one trace: leave the rest out")
    return query


def _alternative(conditions: tuple[Condition, ...]) -> Alternative:
    return Alternative(
        spans=tuple(one for one in conditions if isinstance(one, SpanCondition)),
        traces=tuple(one for one in conditions if isinstance(one, TraceCondition)),
    )


class _Parser:
    def __init__(self, text: str) -> None:
        self.read = Reader(text)
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
                f"nothing may follow the braces, and `{rest}` does",
                code=NOT_SUPPORTED,
                hint="one span selector is served; pipelines and relations between selectors are not",
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

    def _subject(self, start: int, name: str, is_quoted: bool) -> Subject:
        if is_quoted:  # `span."odd name"`: the scope stands before the quotes
            scope, _, attribute = name.partition(".")
            return attribute_subject(f"{scope}.", attribute)
        try:
            subject = subject_of(name)
        except NotSupported as problem:
            raise self.read.failure(str(problem), at=start, code=NOT_SUPPORTED) from None
        if subject is None:
            hint = f"an attribute is `.{name}`; fields are {', '.join(sorted(INTRINSICS))}"
            raise self.read.failure(f"`{name[:100]}` is no field", at=start, hint=hint)
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
            subject = Subject(known)
        elif is_quoted or name in INTRINSICS or name.startswith((".", "span.", "resource.")):
            subject = self._subject(start, name, is_quoted)
        else:
            subject = attribute_named(name)
        return self._condition(start, subject, self.read.word_value)

    def _trace_duration(self, start: int, comparison: Comparison) -> Condition:
        self.read.expect("=")
        return self._built(start, Subject(TraceField.DURATION), comparison, self.read.word_value())

    def _error_flag(self, start: int) -> Condition:
        """`error=true`, as Tempo's `tags` and Jaeger call a span that failed."""
        self.read.expect("=")
        flag = self.read.word_value().value
        if flag not in {"true", "false"}:
            raise self.read.failure("`error` is true or false", at=start, hint="e.g. `error=true` or `status=error`")
        comparison = Comparison.EQUAL if flag == "true" else Comparison.NOT_EQUAL
        return self._built(start, Subject(Field.STATUS), comparison, _ERROR)

    # Both

    def _condition(self, start: int, subject: Subject, value: _ReadsValue) -> Condition:
        comparison = self.read.comparison()
        return self._built(start, subject, comparison, value())

    def _built(self, start: int, subject: Subject, comparison: Comparison, literal: Literal) -> Condition:
        self.conditions += 1
        if self.conditions > CONDITIONS_MAX:
            reason = f"there are more than {CONDITIONS_MAX} conditions"
            raise self.read.failure(reason, at=start, code=NOT_SUPPORTED)
        try:
            return condition_of(subject, comparison, literal)
        except Mismatch as problem:
            raise self.read.failure(str(problem), at=start, hint=problem.hint) from None


_ERROR = Literal(SpanStatus.ERROR.value)
