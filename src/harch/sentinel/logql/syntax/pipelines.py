"""Which stages follow the selector? `|= "text"`, `| json`, `| label > 5`, `| line_format "…"` and their like."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from harch.base.errors import HarchError
from harch.sentinel.logql.syntax import stages
from harch.sentinel.logql.syntax.conditions import at_comparison, read_condition
from harch.sentinel.logql.syntax.lexer import ALONE, FORMATS, PARSERS
from harch.sentinel.logql.syntax.reading import checked, read_matcher_after, read_name, read_text
from harch.sentinel.logql.syntax.stages import Stage
from harch.sentinel.logql.texts.addresses import address_pattern
from harch.sentinel.logql.texts.json_paths import json_path
from harch.sentinel.logql.texts.patterns import compiled_pattern, pattern_expression
from harch.sentinel.logql.texts.templates import compiled_template
from harch.sentinel.model.labels import is_plain_label_name
from harch.sentinel.model.matchers import Matcher, whole_text_pattern
from harch.sentinel.promql.syntax.cursor import Cursor
from harch.sentinel.promql.syntax.selectors import check_expression
from harch.sentinel.promql.syntax.tokens import Kind, Token

STAGES_MAX = 100
_LINE_OPERATORS = {operator.value: operator for operator in stages.LineOperator}
_FLAGS = ("--strict", "--keep-empty")


def at_stage(cursor: Cursor) -> bool:
    """Whether a stage begins here, other than `unwrap`."""
    if cursor.at_sign(*_LINE_OPERATORS):
        # After a whole query `!=` could also compare numbers; a text tells that it is a filter.
        return not cursor.at_sign("!=") or cursor.following.kind is Kind.STRING or cursor.following.keyword == "ip"
    return cursor.at_sign("|") and cursor.following.keyword != "unwrap"


def read_stages(cursor: Cursor, known: tuple[Stage, ...] = ()) -> tuple[Stage, ...]:
    """The stages up to something else."""
    found = list(known)
    while at_stage(cursor):
        found.append(_read_stage(cursor))
        if len(found) > STAGES_MAX:
            cursor.fail(cursor.span(cursor.token), f"a pipeline may have {STAGES_MAX} stages")
    return tuple(found)


def _read_stage(cursor: Cursor) -> Stage:
    if cursor.at_sign("|"):
        cursor.take()
        word = cursor.token
        # `| json != "x"` is a parser and a filter on lines; `| json = "x"` can only mean a label of that name.
        compared = at_comparison(cursor, cursor.following)
        is_alone = word.keyword in ALONE and cursor.following.text in ("!=", "!~")
        if word.keyword in PARSERS | FORMATS and (is_alone or not compared):
            cursor.take()
            return _NAMED[word.keyword](cursor, word)
        if word.kind is not Kind.WORD and not cursor.at_sign("("):
            cursor.unexpected("pipeline", "a parser, a filter on labels, or a format")
        condition = read_condition(cursor)
        return stages.LabelFilter(condition, span=cursor.span_to_here(cursor.span(word)))
    return _read_line_filter(cursor)


def _read_line_filter(cursor: Cursor) -> stages.LineFilter:
    sign = cursor.take()
    operator = _LINE_OPERATORS[sign.text]
    texts = [_read_line_text(cursor, operator)]
    while cursor.at_keyword("or") and (cursor.following.kind is Kind.STRING or cursor.following.keyword == "ip"):
        cursor.take()
        texts.append(_read_line_text(cursor, operator))
    return stages.LineFilter(operator, tuple(texts), span=cursor.span_to_here(cursor.span(sign)))


def _read_line_text(cursor: Cursor, operator: stages.LineOperator) -> stages.LineText:
    start = cursor.token
    if cursor.at_keyword("ip"):
        if operator not in (stages.LineOperator.CONTAINS, stages.LineOperator.LACKS):
            cursor.fail(cursor.span(start), "ip() takes `|=` and `!=` only")
        cursor.take()
        cursor.expect("(", "ip filter")
        text = read_text(cursor, "ip filter")
        cursor.expect(")", "ip filter")
        checked(cursor, start, partial(address_pattern, text))
        return stages.LineText(text, is_ip=True)
    text = read_text(cursor, "line filter")
    if operator in (stages.LineOperator.MATCHES, stages.LineOperator.MATCHES_NOT):
        check_expression(cursor, text, cursor.span(start))
    if operator in (stages.LineOperator.FITS, stages.LineOperator.FITS_NOT):
        checked(cursor, start, partial(pattern_expression, text))
    return stages.LineText(text)


def _read_json(cursor: Cursor, word: Token) -> Stage:
    found = _read_extractions(cursor, json_path)
    return stages.Json(found, span=cursor.span_to_here(cursor.span(word)))


def _read_logfmt(cursor: Cursor, word: Token) -> Stage:
    flags: set[str] = set()
    while cursor.token.kind is Kind.FLAG:
        flag = cursor.take()
        if flag.text not in _FLAGS:
            cursor.fail(cursor.span(flag), f"logfmt has no flag {flag.text}", hint=f"its flags are {', '.join(_FLAGS)}")
        flags.add(flag.text)
    found = _read_extractions(cursor, _field_name)
    span = cursor.span_to_here(cursor.span(word))
    return stages.Logfmt(found, "--strict" in flags, "--keep-empty" in flags, span=span)


def _field_name(expression: str) -> None:
    if not expression or any(character in ' ="' for character in expression):
        raise HarchError("E0685", f"`{expression}` is no name of a field")


def _read_extractions(cursor: Cursor, check: Callable[[str], object]) -> tuple[stages.Extraction, ...]:
    """`a="x.y", b`; nothing where no name follows."""
    found: list[stages.Extraction] = []
    while cursor.token.kind is Kind.WORD:
        label = cursor.take()
        expression = label.text
        start = cursor.token
        if cursor.at_sign("="):
            cursor.take()
            start = cursor.token
            expression = read_text(cursor, "extraction")
        checked(cursor, start, partial(check, expression))
        found.append(stages.Extraction(label.text, expression))
        if not cursor.at_sign(","):
            break
        cursor.take()
        if cursor.token.kind is not Kind.WORD:
            cursor.unexpected("extraction", "a label's name")
    return tuple(found)


def _read_pattern(cursor: Cursor, word: Token) -> Stage:
    start = cursor.token
    text = read_text(cursor, "pattern")
    checked(cursor, start, partial(compiled_pattern, text))
    return stages.Pattern(text, span=cursor.span_to_here(cursor.span(word)))


def _read_regexp(cursor: Cursor, word: Token) -> Stage:
    start = cursor.token
    text = read_text(cursor, "regexp")
    check_expression(cursor, text, cursor.span(start))
    names = whole_text_pattern(text).groupindex
    if not names:
        cursor.fail(cursor.span(start), "at least one named capture is needed", hint="write `(?P<label>…)`")
    for name in names:
        if not is_plain_label_name(name):
            cursor.fail(cursor.span(start), f"`{name}` cannot be a label's name")
    return stages.Regexp(text, span=cursor.span_to_here(cursor.span(word)))


def _read_unpack(cursor: Cursor, word: Token) -> Stage:
    return stages.Unpack(span=cursor.span(word))


def _read_line_format(cursor: Cursor, word: Token) -> Stage:
    start = cursor.token
    text = read_text(cursor, "line_format")
    checked(cursor, start, partial(compiled_template, text))
    return stages.LineFormat(text, span=cursor.span_to_here(cursor.span(word)))


def _read_label_format(cursor: Cursor, word: Token) -> Stage:
    found: list[stages.Assignment] = []
    while True:
        label = cursor.token
        name = read_name(cursor, "label_format")
        cursor.expect("=", "label_format")
        start = cursor.token
        if start.kind is Kind.STRING:
            text = read_text(cursor, "label_format")
            checked(cursor, start, partial(compiled_template, text))
            found.append(stages.Assignment(name, text, is_template=True))
        else:
            found.append(stages.Assignment(name, read_name(cursor, "label_format"), is_template=False))
        if len({one.label for one in found}) != len(found):
            cursor.fail(cursor.span(label), f"label {name} is written twice in one label_format")
        if name in ("__error__", "__error_details__"):
            cursor.fail(cursor.span(label), f"{name} cannot be formatted")
        if not cursor.at_sign(","):
            return stages.LabelFormat(tuple(found), span=cursor.span_to_here(cursor.span(word)))
        cursor.take()


def _read_decolorize(cursor: Cursor, word: Token) -> Stage:
    return stages.Decolorize(span=cursor.span(word))


def _read_label_list(cursor: Cursor) -> tuple[str | Matcher, ...]:
    found: list[str | Matcher] = []
    while True:
        label = cursor.token
        name = read_name(cursor, "list of labels")
        found.append(read_matcher_after(cursor, label) if at_comparison(cursor, cursor.token) else name)
        if not cursor.at_sign(","):
            return tuple(found)
        cursor.take()


def _read_drop(cursor: Cursor, word: Token) -> Stage:
    return stages.Drop(_read_label_list(cursor), span=cursor.span_to_here(cursor.span(word)))


def _read_keep(cursor: Cursor, word: Token) -> Stage:
    return stages.Keep(_read_label_list(cursor), span=cursor.span_to_here(cursor.span(word)))


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
