"""Where is the parser, how far may it go, and what may a query use?

A position in the tokens, with the limits of the language.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NoReturn, Protocol, TypeVar

from harch.base.errors import HarchError
from harch.sentinel.promql.syntax.errors import NOT_ENABLED, TOO_LARGE, PromqlSyntaxError, QueryText
from harch.sentinel.promql.syntax.lexer import QueryToken, TokenKind, tokenise
from harch.sentinel.promql.syntax.nodes import NOWHERE, TextSpan, children

QUERY_BYTES_MAX = 128 * 1024
NODES_MAX = 10_000
REPETITIONS_MAX = 10_000  # the sum of n in all `x{n}` of matchers: each is compiled n times, milliseconds a thousand
# Parser, checks, printer and evaluator recurse over the tree; none may come near Python's limit of 1,000 frames.
DEPTH_MAX = 100
DURATION_PARTS_MAX = 32  # operands of one computed duration


class Feature(Enum):
    """What Prometheus calls experimental; the value is the name of its feature flag."""

    EXPERIMENTAL_FUNCTIONS = "promql-experimental-functions"
    DURATION_EXPRESSIONS = "promql-duration-expr"
    EXTENDED_RANGE_SELECTORS = "promql-extended-range-selectors"
    BINARY_FILL_MODIFIERS = "promql-binop-fill-modifiers"


ALL_FEATURES = frozenset(Feature)


@dataclass(frozen=True, slots=True)
class ParserOptions:
    """Everything is on unless it is switched off: experimental parts may change when Prometheus changes them."""

    features: frozenset[Feature] = field(default=ALL_FEATURES)
    query_bytes_max: int = QUERY_BYTES_MAX
    nodes_max: int = NODES_MAX
    depth_max: int = DEPTH_MAX
    duration_parts_max: int = DURATION_PARTS_MAX
    repetitions_max: int = REPETITIONS_MAX


DEFAULT_OPTIONS = ParserOptions()


# Where is the parser, and how far may it go? A position in the tokens, with the limits of a tree.
#
# LogQL is read with the same cursor: it has other tokens and nodes, which `Language` names.


class Positioned(Protocol):
    """A node that knows where in the text it stands."""

    @property
    def span(self) -> TextSpan: ...


NodeT = TypeVar("NodeT", bound=Positioned)


class SyntaxFailure(Protocol):
    def __call__(self, query: str, span: TextSpan, reason: str, *, code: str = ..., hint: str = "") -> HarchError: ...


@dataclass(frozen=True, slots=True)
class Language:
    """What differs between the languages that are read this way."""

    tokenise: Callable[[str], list[QueryToken]]
    children: Callable[[Any], Sequence[Positioned]]
    failure: SyntaxFailure


PROMQL = Language(tokenise, children, PromqlSyntaxError)


class TokenCursor:
    """The tokens of one query and the place that is read now."""

    def __init__(self, query: str, options: ParserOptions, language: Language = PROMQL) -> None:
        self.query = query
        self.options = options
        self._language = language
        # A character takes one byte at least, so long text is refused before anything is computed from it.
        if len(query) > options.query_bytes_max:
            raise language.failure(
                "",
                NOWHERE,
                f"the query is longer than {options.query_bytes_max} bytes",
                code=TOO_LARGE,
                hint="split it, or record parts of it with rules",
            )
        try:
            query.encode()
        except UnicodeEncodeError as broken:  # half of a surrogate pair, as JSON can carry it
            before = query[: broken.start]
            place = TextSpan(len(before.encode()), len(before.encode()))
            raise language.failure(before, place, "invalid UTF-8 rune") from broken
        self._source = QueryText(query)
        self._tokens = language.tokenise(query)
        self._index = 0
        self._nesting = 0
        self._nodes = 0
        self._repetitions = 0
        self._depths: dict[int, int] = {}

    @property
    def token(self) -> QueryToken:
        return self._tokens[self._index]

    @property
    def following(self) -> QueryToken:
        return self.ahead(1)

    def ahead(self, count: int) -> QueryToken:
        """The token so many places on; the last one where the text has ended."""
        return self._tokens[min(self._index + count, len(self._tokens) - 1)]

    def at_end(self) -> bool:
        return self.token.kind is TokenKind.END

    def at_sign(self, *signs: str) -> bool:
        return self.token.kind is TokenKind.SIGN and self.token.text in signs

    def at_keyword(self, *keywords: str) -> bool:
        return self.token.keyword in keywords and self.token.keyword != ""

    def take(self) -> QueryToken:
        token = self.token
        if token.kind is TokenKind.ERROR:
            self.unexpected()
        self._index += 1
        return token

    def expect(self, sign: str, context: str, expected: str | None = None) -> QueryToken:
        if not self.at_sign(sign):
            self.unexpected(context, f'"{sign}"' if expected is None else expected)
        return self.take()

    def span(self, first: QueryToken, last: QueryToken | None = None) -> TextSpan:
        return self._source.span(first.start, (first if last is None else last).end)

    def span_to_here(self, start: TextSpan) -> TextSpan:
        """From there to the end of the token taken last."""
        return TextSpan(start.start, self.span(self._tokens[max(self._index - 1, 0)]).end)

    def unexpected(self, context: str = "", expected: str = "") -> NoReturn:
        token = self.token
        if token.kind is TokenKind.ERROR:
            raise self._language.failure(self.query, self.span(token), token.text)
        reason = f"unexpected {token.described()}"
        reason += f" in {context}" if context else ""
        reason += f", expected {expected}" if expected else ""
        raise self._language.failure(self.query, self.span(token), reason)

    def fail(self, span: TextSpan, reason: str, *, hint: str = "") -> NoReturn:
        raise self._language.failure(self.query, span, reason, hint=hint)

    def require(self, feature: Feature, span: TextSpan, reason: str) -> None:
        if feature not in self.options.features:
            hint = f"enable the feature `{feature.value}`"
            raise self._language.failure(self.query, span, reason, code=NOT_ENABLED, hint=hint)

    def enter(self) -> None:
        """One level deeper into parentheses, arguments or signs; `leave` goes back."""
        self._nesting += 1
        if self._nesting > self.options.depth_max:
            self._too_deep(self.span(self.token))

    def leave(self) -> None:
        self._nesting -= 1

    def built(self, node: NodeT) -> NodeT:
        """Counts a node in; every node of the tree passes here, so that no tree outgrows its limits unseen."""
        depth = 1 + max((self._depths.get(id(child), 0) for child in self._language.children(node)), default=0)
        if depth > self.options.depth_max:
            self._too_deep(node.span)
        self._depths[id(node)] = depth
        self._nodes += 1
        if self._nodes > self.options.nodes_max:
            hint = "split it, or record parts of it with rules"
            self._too_large(f"the query has more than {self.options.nodes_max} parts", hint, node.span)
        return node

    def count_repetitions(self, repetitions: int, span: TextSpan) -> None:
        """Regular expressions are compiled while a query is read, so what they cost is limited together."""
        self._repetitions += repetitions
        limit = self.options.repetitions_max
        if self._repetitions > limit:
            sentence = f"the counted repetitions of all regular expressions exceed {limit}"
            self._too_large(sentence, "use `+` or `*` instead of `{n}`", span)

    def _too_deep(self, span: TextSpan) -> NoReturn:
        hint = "group long chains with parentheses, or record parts of the query with rules"
        self._too_large(f"the query nests deeper than {self.options.depth_max} levels", hint, span)

    def _too_large(self, what: str, hint: str, span: TextSpan) -> NoReturn:
        raise self._language.failure(self.query, span, what, code=TOO_LARGE, hint=hint)
