"""Which labels are in the line? json, logfmt, pattern, regexp and unpack."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from harch.sentinel.logql.stages.page import Page, Wanted
from harch.sentinel.logql.syntax import stages
from harch.sentinel.logql.texts.json_paths import at_path, json_path
from harch.sentinel.logql.texts.logfmt import logfmt_pairs
from harch.sentinel.logql.texts.patterns import compiled_pattern
from harch.sentinel.model.matchers import whole_text_pattern

JSON_ERROR, LOGFMT_ERROR = "JSONParserErr", "LogfmtParserErr"
DEPTH_MAX = 32  # of objects in a line; deeper ones make no labels
_PACKED_LINE = "_entry"
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")


class _NumberText(str):
    """A number as it was written: 1.0 is not 1."""

    __slots__ = ()


_decoder = json.JSONDecoder(parse_float=_NumberText, parse_int=_NumberText, parse_constant=_NumberText)


def decoded_json(text: str) -> object:
    """Raises ValueError for what is no JSON."""
    try:
        return _decoder.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


@lru_cache(maxsize=16_384)
def label_name(key: str) -> str:
    """A name that labels can have: what does not fit becomes `_`, and a digit does not come first."""
    name = _NOT_IN_NAMES.sub("_", key.strip())
    return f"_{name}" if name[:1].isdigit() else name


def _scalar_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _clean(value) if isinstance(value, str) else ""


def _clean(text: str) -> str:
    """Half characters, which JSON can carry, are no text."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def parse_json(page: Page, stage: stages.Json, wanted: Wanted | None) -> None:
    if stage.extractions:
        _extract_json(page, stage, wanted)
        return
    for place, text in enumerate(page.texts):
        value = _object_of(page, place, text)
        if value is None:
            continue
        _flatten(page, place, value, "", wanted, 1)


def _object_of(page: Page, place: int, text: str) -> dict[str, Any] | None:
    """The object that a line is; None, and an error of the line, where it is none."""
    try:
        value = decoded_json(text)
    except ValueError as wrong:
        page.fail(place, JSON_ERROR, str(wrong))
        return None
    if isinstance(value, dict):
        return value
    page.fail(place, JSON_ERROR, "expecting json object, but it is not")
    return None


def _flatten(page: Page, place: int, found: dict[str, Any], prefix: str, wanted: Wanted | None, depth: int) -> None:
    for key, value in found.items():
        name = f"{prefix}_{_NOT_IN_NAMES.sub('_', key)}" if prefix else label_name(key)
        if isinstance(value, str | bool):
            if name:
                page.extract(name, place, _scalar_text(value), wanted)
        elif isinstance(value, dict) and depth < DEPTH_MAX:
            _flatten(page, place, value, name, wanted, depth + 1)


def _extract_json(page: Page, stage: stages.Json, wanted: Wanted | None) -> None:
    paths = [(one.label, json_path(one.expression)) for one in stage.extractions]
    for place, text in enumerate(page.texts):
        try:
            value = decoded_json(text)
        except ValueError as wrong:
            page.fail(place, JSON_ERROR, str(wrong))
            continue
        for label, path in paths:
            found = at_path(value, path)
            if isinstance(found, dict | list):
                page.extract(label, place, _shown(found), wanted)
            else:
                page.extract(label, place, _scalar_text(found), wanted)


def _shown(value: object) -> str:
    try:
        return _clean(_json_text(value))
    except RecursionError:
        return ""


def _json_text(value: object) -> str:
    """Objects and lists as JSON, numbers as they were written."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{_json_text(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_json_text, value)) + "]"
    return str(value) if isinstance(value, _NumberText) else json.dumps(value, ensure_ascii=False)


def parse_logfmt(page: Page, stage: stages.Logfmt, wanted: Wanted | None) -> None:
    asked = {one.expression: one.label for one in stage.extractions}
    for place, text in enumerate(page.texts):
        pairs, wrong = logfmt_pairs(text, strict=stage.strict)
        for key, value in pairs:
            name = label_name(key)
            if asked:
                target = asked.get(key) or asked.get(name)
                if target is not None:
                    page.extract(target, place, value, wanted)
            elif name and (value or stage.keep_empty):
                page.extract(name, place, value, wanted)
        if wrong:
            page.fail(place, LOGFMT_ERROR, wrong)


def parse_pattern(page: Page, stage: stages.Pattern, wanted: Wanted | None) -> None:
    pattern = compiled_pattern(stage.text)
    for place, text in enumerate(page.texts):
        for name, value in pattern.captured(text):
            page.extract(name, place, value, wanted)


def parse_regexp(page: Page, stage: stages.Regexp, wanted: Wanted | None) -> None:
    pattern: Any = whole_text_pattern(stage.expression)
    names = list(pattern.groupindex.items())
    for place, text in enumerate(page.texts):
        found = pattern.search(text)
        if found is not None:
            for name, group in names:
                page.extract(name, place, found.group(group) or "", wanted)


def unpack(page: Page, _: stages.Unpack, wanted: Wanted | None) -> None:
    """Lines that were packed with their labels: `_entry` becomes the line again."""
    for place, text in enumerate(page.texts):
        value = _object_of(page, place, text)
        if value is None:
            continue
        for key, one in value.items():
            if type(one) is str and key != _PACKED_LINE:
                page.extract(label_name(key), place, _clean(one), wanted)
        packed = value.get(_PACKED_LINE)
        if type(packed) is str:
            page.texts[place] = _clean(packed)
            page.changed_texts = True


Parser = Callable[[Page, Any, Wanted | None], None]
PARSERS: dict[type, Parser] = {
    stages.Json: parse_json,
    stages.Logfmt: parse_logfmt,
    stages.Pattern: parse_pattern,
    stages.Regexp: parse_regexp,
    stages.Unpack: unpack,
}
