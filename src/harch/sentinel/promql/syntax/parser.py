"""What does this query say? Text in, checked tree out; whatever is wrong is a PromqlSyntaxError with its place."""

# harch: pure

from __future__ import annotations

from harch.sentinel.model.labels import METRIC_NAME, Labels, Matcher, MatchKind, labels
from harch.sentinel.promql.syntax.checks import (
    check_aggregate,
    check_call,
    check_selector,
    check_unary,
    checked_binary,
)
from harch.sentinel.promql.syntax.clauses import (
    at_metric_name,
    at_modifier,
    read_binary_modifiers,
    read_label_names,
    read_modifier,
    read_number,
    read_selector,
    signed,
)
from harch.sentinel.promql.syntax.cursor import DEFAULT_OPTIONS, Feature, ParserOptions, TokenCursor
from harch.sentinel.promql.syntax.lexer import TokenKind
from harch.sentinel.promql.syntax.literals import quote, unquote
from harch.sentinel.promql.syntax.nodes import (
    AGGREGATIONS,
    AGGREGATIONS_WITH_PARAMETER,
    SIGNATURES,
    Aggregate,
    Binary,
    Expr,
    FunctionCall,
    NumberLiteral,
    Paren,
    StringLiteral,
    TextSpan,
    Unary,
    VectorSelector,
)

_PRECEDENCE = {
    "or": 1,
    "and": 2,
    "unless": 2,
    **dict.fromkeys(("==", "!=", "<", ">", "<=", ">=", "</", ">/"), 3),
    **dict.fromkeys(("+", "-"), 4),
    **dict.fromkeys(("*", "/", "%", "atan2"), 5),
    "^": 6,
}
_SIGN_PRECEDENCE = 6  # a sign binds as `*` does: -1^2 is -(1^2), -1*2 is (-1)*2
_OPERANDS = frozenset({TokenKind.WORD, TokenKind.METRIC, TokenKind.NUMBER, TokenKind.DURATION, TokenKind.STRING})
_FUNCTION_KEYWORDS = frozenset({"start", "end", "step", "range", "max_of", "min_of"})


def parse(query: str, options: ParserOptions = DEFAULT_OPTIONS) -> Expr:
    """The tree of a query."""
    cursor = TokenCursor(query, options)
    if cursor.at_end():
        cursor.fail(TextSpan(0, 0), "no expression found in input", hint="write a selector, such as `up`")
    expr = _Parser(cursor).expression(0)
    if not cursor.at_end():
        cursor.unexpected()
    return expr


def parse_selector(text: str, options: ParserOptions = DEFAULT_OPTIONS) -> tuple[Matcher, ...]:
    """The matchers of a plain series selector, as `match[]` and federation take it; nothing may follow it."""
    return _plain_selector(text, options).matchers


def parse_labels(text: str, options: ParserOptions = DEFAULT_OPTIONS) -> Labels:
    """The labels of one series written as a selector, `name{label="value"}`; only `=` is allowed. `{}` has none."""
    cursor = TokenCursor(text, options)
    selector = _read_plain(cursor)
    pairs: dict[str, str] = {}
    for matcher in selector.matchers:
        if matcher.kind is not MatchKind.EQUAL:
            cursor.fail(selector.span, f"a series has labels, not matchers: {matcher}")
        if matcher.name in pairs:
            what = "metric name" if matcher.name == METRIC_NAME else f"label {quote(matcher.name)}"
            cursor.fail(selector.span, f"{what} must not be set twice")
        pairs[matcher.name] = matcher.value
    return labels(pairs)


def _plain_selector(text: str, options: ParserOptions) -> VectorSelector:
    cursor = TokenCursor(text, options)
    selector = _read_plain(cursor)
    check_selector(cursor, selector)
    return selector


def _read_plain(cursor: TokenCursor) -> VectorSelector:
    if not at_metric_name(cursor) and not cursor.at_sign("{"):
        cursor.unexpected("series selector", "metric name or label matchers")
    selector = read_selector(cursor)
    if not cursor.at_end():
        cursor.unexpected("series selector")
    return selector


class _Parser:
    """Precedence climbing over the tokens. The cursor counts nesting and nodes."""

    def __init__(self, cursor: TokenCursor) -> None:
        self._cursor = cursor

    def expression(self, precedence_min: int) -> Expr:
        cursor = self._cursor
        cursor.enter()
        left = self._operand()
        while (operator := self._operator()) and _PRECEDENCE[operator] >= precedence_min:
            token = cursor.take()
            matching, return_bool = read_binary_modifiers(cursor)
            right = self.expression(_PRECEDENCE[operator] + (operator != "^"))
            binary = Binary(
                operator,
                left,
                right,
                matching,
                return_bool,
                span=TextSpan(left.span.start, right.span.end),
                operator_span=cursor.span(token),
            )
            left = cursor.built(checked_binary(cursor, binary))
        cursor.leave()
        return left

    def _operator(self) -> str:
        token = self._cursor.token
        name = token.text if token.kind is TokenKind.SIGN else token.keyword
        return name if name in _PRECEDENCE else ""

    def _operand(self) -> Expr:
        cursor = self._cursor
        if cursor.at_sign("+", "-"):
            sign = cursor.take()
            operand = self.expression(_SIGN_PRECEDENCE)
            if isinstance(operand, NumberLiteral):
                return cursor.built(signed(operand, sign, cursor))
            unary = Unary(sign.text, operand, span=cursor.span_to_here(cursor.span(sign)))
            check_unary(cursor, unary)
            return cursor.built(unary)
        return self._modified(self._primary())

    def _modified(self, operand: Expr) -> Expr:
        while at_modifier(self._cursor):
            operand = read_modifier(self._cursor, operand)
        return operand

    def _primary(self) -> Expr:
        cursor = self._cursor
        token = cursor.token
        if token.kind in (TokenKind.NUMBER, TokenKind.DURATION):
            return cursor.built(read_number(cursor))
        if token.kind is TokenKind.STRING:
            cursor.take()
            return cursor.built(StringLiteral(unquote(token.text), span=cursor.span(token)))
        if cursor.at_sign("("):
            cursor.take()
            inner = self.expression(0)
            cursor.expect(")", "", "")
            return cursor.built(Paren(inner, span=cursor.span_to_here(cursor.span(token))))
        called = cursor.following.kind is TokenKind.SIGN and cursor.following.text == "("
        if token.keyword in AGGREGATIONS and (called or cursor.following.keyword in ("by", "without")):
            return self._aggregate()
        if token.keyword in AGGREGATIONS and cursor.following.kind in _OPERANDS and not cursor.following.keyword:
            cursor.take()  # a name may stand here, but nothing may follow it: it was meant as an aggregation
            cursor.unexpected("aggregation")
        if token.kind is TokenKind.WORD and called and (not token.keyword or token.keyword in _FUNCTION_KEYWORDS):
            return self._call()
        if not at_metric_name(cursor) and not cursor.at_sign("{"):
            cursor.unexpected()
        return self._selector()

    def _selector(self, *, may_be_empty: bool = False) -> VectorSelector:
        selector = read_selector(self._cursor)
        if not may_be_empty:
            check_selector(self._cursor, selector)
        return selector

    def _aggregate(self) -> Aggregate:
        cursor = self._cursor
        operator = cursor.take()
        grouping: tuple[str, ...] | None = None
        without = False
        if cursor.at_keyword("by", "without"):
            without = cursor.take().keyword == "without"
            grouping = read_label_names(cursor)
        if not cursor.at_sign("("):
            cursor.unexpected("aggregation")
        arguments = self._arguments()
        if grouping is None and cursor.at_keyword("by", "without"):
            without = cursor.take().keyword == "without"
            grouping = read_label_names(cursor)
        span = cursor.span_to_here(cursor.span(operator))
        wanted = 2 if operator.keyword in AGGREGATIONS_WITH_PARAMETER else 1
        if not arguments:
            cursor.fail(span, "no arguments for aggregate expression provided")
        if len(arguments) != wanted:
            sentence = "wrong number of arguments for aggregate expression provided"
            cursor.fail(span, f"{sentence}, expected {wanted}, got {len(arguments)}")
        parameter = arguments[0] if wanted == 2 else None
        aggregate = Aggregate(operator.keyword, arguments[-1], parameter, grouping or (), without, span=span)
        check_aggregate(cursor, aggregate)
        return cursor.built(aggregate)

    def _call(self) -> FunctionCall:
        cursor = self._cursor
        name = cursor.take()
        function = name.keyword or name.text
        signature = SIGNATURES.get(function)
        if signature is None:
            cursor.fail(cursor.span(name), f"unknown function with name {quote(name.text)}")
        if signature.experimental:
            sentence = f"function {quote(function)} is not enabled"
            cursor.require(Feature.EXPERIMENTAL_FUNCTIONS, cursor.span(name), sentence)
        arguments = self._arguments(labels_only_at=1 if function == "info" else None)
        call = FunctionCall(function, arguments, span=cursor.span_to_here(cursor.span(name)))
        check_call(cursor, call)
        return cursor.built(call)

    def _arguments(self, *, labels_only_at: int | None = None) -> tuple[Expr, ...]:
        """What stands between parentheses; one argument of `info` is a bare list of matchers, which may be empty."""
        cursor = self._cursor
        cursor.take()
        arguments: list[Expr] = []
        while not cursor.at_sign(")"):
            if len(arguments) == labels_only_at and cursor.at_sign("{"):
                arguments.append(self._modified(self._selector(may_be_empty=True)))
            else:
                arguments.append(self.expression(0))
            if cursor.at_sign(","):
                comma = cursor.take()
                if cursor.at_sign(")"):
                    cursor.fail(cursor.span(comma), "trailing commas not allowed in function call args")
            elif not cursor.at_sign(")"):
                cursor.unexpected()
        cursor.take()
        return tuple(arguments)
