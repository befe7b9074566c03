"""Which stages follow the selector?

`|= "text"`, `| json`, `| level="error" and duration > 1s`, `| line_format "…"` and their like.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from harch.base.errors import HarchError
from harch.sentinel.logql.syntax import nodes
from harch.sentinel.logql.syntax.cursor import (
    checked,
    read_duration,
    read_matcher_after,
    read_name,
    read_number,
    read_size,
    read_text,
)
from harch.sentinel.logql.syntax.lexer import ALONE, FORMATS, PARSERS
from harch.sentinel.logql.syntax.nodes import Condition, Stage
from harch.sentinel.logql.text.fields import compiled_pattern, json_path, pattern_expression
from harch.sentinel.logql.text.templates import compiled_template
from harch.sentinel.logql.text.values import address_pattern
from harch.sentinel.model.labels import Matcher, is_plain_label_name, whole_text_pattern
from harch.sentinel.promql.syntax.clauses import check_expression
from harch.sentinel.promql.syntax.cursor import TokenCursor
from harch.sentinel.promql.syntax.lexer import QueryToken, TokenKind

CONDITIONS_MAX = 100  # of one filter; they nest to the left
_COMPARISONS = frozenset({"=", "!=", "=~", "!~", "==", ">", ">=", "<", "<="})
_WORDS = frozenset({"and", "or", "unless"})


def at_comparison(cursor: TokenCursor, token: QueryToken) -> bool:
    return token.kind is TokenKind.SIGN and token.text in _COMPARISONS


def read_condition(cursor: TokenCursor) -> Condition:
    """`and` binds closer than `or`; a comma and a space are an `and` that comes last."""
    return _Reader(cursor).listed()


class _Reader:
    def __init__(self, cursor: TokenCursor) -> None:
        self.cursor = cursor
        self.count = 0

    def listed(self) -> Condition:
        cursor = self.cursor
        cursor.enter()
        left = self.either()
        while self._is_next_condition() or (cursor.at_sign(",") and self._condition_follows(cursor.following)):
            if cursor.at_sign(","):
                cursor.take()
            left = nodes.Both(left, self.either())
        cursor.leave()
        return left

    def either(self) -> Condition:
        cursor = self.cursor
        left = self.both()
        while cursor.at_keyword("or") and self._condition_follows(cursor.following):
            cursor.take()
            left = nodes.Either(left, self.both())
        return left

    def both(self) -> Condition:
        cursor = self.cursor
        left = self.single()
        while cursor.at_keyword("and") and self._condition_follows(cursor.following):
            cursor.take()
            left = nodes.Both(left, self.single())
        return left

    def _condition_follows(self, token: QueryToken) -> bool:
        """`and`, `or` after a range aggregation join numbers, so what follows decides."""
        return token.kind is TokenKind.WORD or (token.kind is TokenKind.SIGN and token.text == "(")

    def _is_next_condition(self) -> bool:
        token = self.cursor.token
        if token.kind is not TokenKind.WORD or token.keyword in _WORDS:
            return False
        return at_comparison(self.cursor, self.cursor.following)

    def single(self) -> Condition:
        cursor = self.cursor
        self.count += 1
        if self.count > CONDITIONS_MAX:
            cursor.fail(cursor.span(cursor.token), f"a filter may have at most {CONDITIONS_MAX} conditions")
        if cursor.at_sign("("):
            cursor.take()
            inner = self.listed()
            cursor.expect(")", "label filter")
            return inner
        if cursor.token.kind is not TokenKind.WORD:
            cursor.unexpected("label filter", "a label's name")
        label = cursor.take()
        if not at_comparison(cursor, cursor.token):
            cursor.unexpected("label filter", "a comparison such as =, != or >")
        return self.compared(label)

    def compared(self, label: QueryToken) -> Condition:
        cursor, value = self.cursor, self.cursor.following
        if value.keyword == "ip":
            return self.address(label)
        if value.kind is TokenKind.STRING:
            return nodes.TextCondition(read_matcher_after(cursor, label))
        sign = cursor.take()
        if sign.text in ("=~", "!~"):
            cursor.unexpected("label filter", "a regular expression in quotes")
        operator = "==" if sign.text == "=" else sign.text
        if cursor.token.kind is TokenKind.DURATION:
            amount = float(read_duration(cursor, "label filter"))
            return nodes.AmountCondition(label.text, operator, amount, nodes.Unit.DURATION)
        if cursor.token.kind is TokenKind.BYTES:
            return nodes.AmountCondition(label.text, operator, float(read_size(cursor)), nodes.Unit.BYTES)
        if cursor.token.kind is not TokenKind.NUMBER and not cursor.at_sign("+", "-"):
            cursor.unexpected("label filter", "a string, number, duration, size or ip()")
        return nodes.AmountCondition(label.text, operator, read_number(cursor, "label filter"), nodes.Unit.NUMBER)

    def address(self, label: QueryToken) -> Condition:
        cursor = self.cursor
        if not cursor.at_sign("=", "!="):
            cursor.unexpected("ip filter", "= or !=")
        is_negative = cursor.take().text == "!="
        start = cursor.take()
        cursor.expect("(", "ip filter")
        text = read_text(cursor, "ip filter")
        cursor.expect(")", "ip filter")
        checked(cursor, start, partial(address_pattern, text))
        return nodes.AddressCondition(label.text, is_negative, text)


# Which stages follow the selector? `|= "text"`, `| json`, `| label > 5`, `| line_format "…"` and their like.


STAGES_MAX = 100
_LINE_OPERATORS = {operator.value: operator for operator in nodes.LineOperator}
_FLAGS = ("--strict", "--keep-empty")


def at_stage(cursor: TokenCursor) -> bool:
    """Whether a stage begins here, other than `unwrap`."""
    if cursor.at_sign(*_LINE_OPERATORS):
        # After a whole query `!=` could also compare numbers; a text tells that it is a filter.
        return not cursor.at_sign("!=") or cursor.following.kind is TokenKind.STRING or cursor.following.keyword == "ip"
    return cursor.at_sign("|") and cursor.following.keyword != "unwrap"


def read_stages(cursor: TokenCursor, known: tuple[Stage, ...] = ()) -> tuple[Stage, ...]:
    """The stages up to something else."""
    found = list(known)
    while at_stage(cursor):
        found.append(_read_stage(cursor))
        if len(found) > STAGES_MAX:
            cursor.fail(cursor.span(cursor.token), f"a pipeline may have at most {STAGES_MAX} stages")
    return tuple(found)


def _read_stage(cursor: TokenCursor) -> Stage:
    if cursor.at_sign("|"):
        cursor.take()
        word = cursor.token
        # `| json != "x"` is a parser and a filter on lines; `| json = "x"` can only mean a label of that name.
        compared = at_comparison(cursor, cursor.following)
        is_alone = word.keyword in ALONE and cursor.following.text in ("!=", "!~")
        if word.keyword in PARSERS | FORMATS and (is_alone or not compared):
            cursor.take()
            return _NAMED[word.keyword](cursor, word)
        if word.kind is not TokenKind.WORD and not cursor.at_sign("("):
            cursor.unexpected("pipeline", "a parser, a filter on labels, or a format")
        condition = read_condition(cursor)
        return nodes.LabelFilter(condition, span=cursor.span_to_here(cursor.span(word)))
    return _read_line_filter(cursor)


def _read_line_filter(cursor: TokenCursor) -> nodes.LineFilterStage:
    sign = cursor.take()
    operator = _LINE_OPERATORS[sign.text]
    strings = [_read_line_text(cursor, operator)]
    while cursor.at_keyword("or") and (cursor.following.kind is TokenKind.STRING or cursor.following.keyword == "ip"):
        cursor.take()
        strings.append(_read_line_text(cursor, operator))
    return nodes.LineFilterStage(operator, tuple(strings), span=cursor.span_to_here(cursor.span(sign)))


def _read_line_text(cursor: TokenCursor, operator: nodes.LineOperator) -> nodes.LineText:
    start = cursor.token
    if cursor.at_keyword("ip"):
        if operator not in (nodes.LineOperator.CONTAINS, nodes.LineOperator.LACKS):
            cursor.fail(cursor.span(start), "ip() takes `|=` and `!=` only")
        cursor.take()
        cursor.expect("(", "ip filter")
        text = read_text(cursor, "ip filter")
        cursor.expect(")", "ip filter")
        checked(cursor, start, partial(address_pattern, text))
        return nodes.LineText(text, is_ip=True)
    text = read_text(cursor, "line filter")
    if operator in (nodes.LineOperator.MATCHES, nodes.LineOperator.MATCHES_NOT):
        check_expression(cursor, text, cursor.span(start))
    if operator in (nodes.LineOperator.FITS, nodes.LineOperator.FITS_NOT):
        checked(cursor, start, partial(pattern_expression, text))
    return nodes.LineText(text)


def _read_json(cursor: TokenCursor, word: QueryToken) -> Stage:
    found = _read_extractions(cursor, json_path)
    return nodes.Json(found, span=cursor.span_to_here(cursor.span(word)))


def _read_logfmt(cursor: TokenCursor, word: QueryToken) -> Stage:
    flags: set[str] = set()
    while cursor.token.kind is TokenKind.FLAG:
        flag = cursor.take()
        if flag.text not in _FLAGS:
            cursor.fail(cursor.span(flag), f"logfmt has no flag {flag.text}", hint=f"its flags are {', '.join(_FLAGS)}")
        flags.add(flag.text)
    found = _read_extractions(cursor, _field_name)
    span = cursor.span_to_here(cursor.span(word))
    return nodes.Logfmt(found, "--strict" in flags, "--keep-empty" in flags, span=span)


def _field_name(expression: str) -> None:
    if not expression or any(character in ' ="' for character in expression):
        raise HarchError("E0685", f"`{expression}` is not a field name")


def _read_extractions(cursor: TokenCursor, check: Callable[[str], object]) -> tuple[nodes.Extraction, ...]:
    """`a="x.y", b`; nothing where no name follows."""
    found: list[nodes.Extraction] = []
    while cursor.token.kind is TokenKind.WORD:
        label = cursor.take()
        expression = label.text
        start = cursor.token
        if cursor.at_sign("="):
            cursor.take()
            start = cursor.token
            expression = read_text(cursor, "extraction")
        checked(cursor, start, partial(check, expression))
        found.append(nodes.Extraction(label.text, expression))
        if not cursor.at_sign(","):
            break
        cursor.take()
        if cursor.token.kind is not TokenKind.WORD:
            cursor.unexpected("extraction", "a label's name")
    return tuple(found)


def _read_pattern(cursor: TokenCursor, word: QueryToken) -> Stage:
    start = cursor.token
    text = read_text(cursor, "pattern")
    checked(cursor, start, partial(compiled_pattern, text))
    return nodes.PatternParser(text, span=cursor.span_to_here(cursor.span(word)))


def _read_regexp(cursor: TokenCursor, word: QueryToken) -> Stage:
    start = cursor.token
    text = read_text(cursor, "regexp")
    check_expression(cursor, text, cursor.span(start))
    names = whole_text_pattern(text).groupindex
    if not names:
        cursor.fail(cursor.span(start), "at least one named capture is needed", hint="write `(?P<label>…)`")
    for name in names:
        if not is_plain_label_name(name):
            cursor.fail(cursor.span(start), f"`{name}` cannot be a label's name")
    return nodes.Regexp(text, span=cursor.span_to_here(cursor.span(word)))


def _read_unpack(cursor: TokenCursor, word: QueryToken) -> Stage:
    return nodes.Unpack(span=cursor.span(word))


def _read_line_format(cursor: TokenCursor, word: QueryToken) -> Stage:
    start = cursor.token
    text = read_text(cursor, "line_format")
    checked(cursor, start, partial(compiled_template, text))
    return nodes.LineFormat(text, span=cursor.span_to_here(cursor.span(word)))


def _read_label_format(cursor: TokenCursor, word: QueryToken) -> Stage:
    found: list[nodes.LabelAssignment] = []
    while True:
        label = cursor.token
        name = read_name(cursor, "label_format")
        cursor.expect("=", "label_format")
        start = cursor.token
        if start.kind is TokenKind.STRING:
            text = read_text(cursor, "label_format")
            checked(cursor, start, partial(compiled_template, text))
            found.append(nodes.LabelAssignment(name, text, is_template=True))
        else:
            found.append(nodes.LabelAssignment(name, read_name(cursor, "label_format"), is_template=False))
        if len({one.label for one in found}) != len(found):
            cursor.fail(cursor.span(label), f"label {name} is set twice in one label_format")
        if name in ("__error__", "__error_details__"):
            cursor.fail(cursor.span(label), f"{name} cannot be formatted")
        if not cursor.at_sign(","):
            return nodes.LabelFormat(tuple(found), span=cursor.span_to_here(cursor.span(word)))
        cursor.take()


def _read_decolorize(cursor: TokenCursor, word: QueryToken) -> Stage:
    return nodes.Decolorize(span=cursor.span(word))


def _read_label_list(cursor: TokenCursor) -> tuple[str | Matcher, ...]:
    found: list[str | Matcher] = []
    while True:
        label = cursor.token
        name = read_name(cursor, "list of labels")
        found.append(read_matcher_after(cursor, label) if at_comparison(cursor, cursor.token) else name)
        if not cursor.at_sign(","):
            return tuple(found)
        cursor.take()


def _read_drop(cursor: TokenCursor, word: QueryToken) -> Stage:
    return nodes.DropLabels(_read_label_list(cursor), span=cursor.span_to_here(cursor.span(word)))


def _read_keep(cursor: TokenCursor, word: QueryToken) -> Stage:
    return nodes.KeepLabels(_read_label_list(cursor), span=cursor.span_to_here(cursor.span(word)))


_NAMED = {
    "json": _read_json,
    "logfmt": _read_logfmt,
    "pattern": _read_pattern,
    "regexp": _read_regexp,
    "unpack": _read_unpack,
    "line_format": _read_line_format,
    "label_format": _read_label_format,
    "decolorize": _read_decolorize,
    "drop": _read_drop,
    "keep": _read_keep,
}
