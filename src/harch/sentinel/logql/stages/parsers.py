"""Which labels are in the line? json, logfmt, pattern, regexp and unpack."""

# harch: pure

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import msgspec

from harch.sentinel.logql.stages.page import LabelsRead, LinePage
from harch.sentinel.logql.syntax import nodes
from harch.sentinel.logql.text.fields import Path, compiled_pattern, json_path, logfmt_pairs
from harch.sentinel.model.labels import whole_text_pattern

JSON_ERROR, LOGFMT_ERROR = "JSONParserErr", "LogfmtParserErr"
SHAPES_MAX = 1_000
DEPTH_MAX = 32  # of objects in a line; deeper ones make no labels
_PACKED_LINE = "_entry"
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")

# Values stay as they are written until somebody wants one: 1.0 is not 1, and most are never looked at.
_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])
_lists = msgspec.json.Decoder(list[msgspec.Raw])
_strings = msgspec.json.Decoder(str)
_QUOTE, _BRACE, _BRACKET, _NULL = b'"'[0], b"{"[0], b"["[0], b"n"[0]

Fields = dict[str, msgspec.Raw]


@lru_cache(maxsize=16_384)
def label_name(key: str) -> str:
    """A name that labels can have: what does not fit becomes `_`, and a digit does not come first."""
    name = _NOT_IN_NAMES.sub("_", key.strip())
    return f"_{name}" if name[:1].isdigit() else name


def _object_of(page: LinePage, place: int, text: str) -> Fields | None:
    """The object that a line is; None, and an error of the line, where it is none."""
    try:
        return _objects.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as wrong:
        page.fail(place, JSON_ERROR, str(wrong))
    except RecursionError:
        page.fail(place, JSON_ERROR, "objects are nested too deeply")
    return None


def _value(raw: msgspec.Raw, *, with_structure: bool = False) -> str:
    """A value as a label: texts without quotes, numbers as they are written, nothing for null.

    Objects and lists are JSON, if they are asked for.
    """
    data = bytes(raw)
    if data[0] == _QUOTE:
        return str(_strings.decode(data))
    if data[0] == _NULL or (data[0] in (_BRACE, _BRACKET) and not with_structure):
        return ""
    return data.decode()


def parse_json(page: LinePage, stage: nodes.Json, wanted: LabelsRead | None) -> None:
    if stage.extractions:
        _extract_json(page, stage, wanted)
        return
    shapes: dict[tuple[str, ...], list[tuple[str, str]]] = {}  # most lines have the same keys as others before them
    for place, text in enumerate(page.bodies):
        fields = _object_of(page, place, text)
        if fields is None:
            continue
        shape = tuple(fields)
        chosen = shapes.get(shape)
        if chosen is None:
            chosen = _wanted_keys(shape, "", wanted)
            if len(shapes) < SHAPES_MAX:
                shapes[shape] = chosen
        _flatten(page, place, fields, chosen, wanted, 1)


def _wanted_keys(keys: Iterable[str], prefix: str, wanted: LabelsRead | None) -> list[tuple[str, str]]:
    """Keys that may become labels, with their names."""
    named = [(key, f"{prefix}_{_NOT_IN_NAMES.sub('_', key)}" if prefix else label_name(key)) for key in keys]
    return [(key, name) for key, name in named if wanted is None or wanted.may_use(name)]


def _flatten(
    page: LinePage, place: int, fields: Fields, chosen: list[tuple[str, str]], wanted: LabelsRead | None, depth: int
) -> None:
    for key, name in chosen:
        data = bytes(fields[key])
        first = data[0]
        if first == _QUOTE:
            value = _strings.decode(data)
        elif first == _BRACE:
            if depth < DEPTH_MAX:
                inner = _objects.decode(data)
                _flatten(page, place, inner, _wanted_keys(inner, name, wanted), wanted, depth + 1)
            continue
        elif first in (_BRACKET, _NULL):
            continue
        else:
            value = data.decode()
        if name:
            page.extract(name, place, value, wanted)


def _extract_json(page: LinePage, stage: nodes.Json, wanted: LabelsRead | None) -> None:
    paths = [(one.label, json_path(one.expression)) for one in stage.extractions]
    chosen = [(label, path) for label, path in paths if wanted is None or wanted.may_use(label)]
    for place, text in enumerate(page.bodies):
        fields = _object_of(page, place, text) if not text.lstrip().startswith("[") else _list_of(page, place, text)
        if fields is not None:
            for label, path in chosen:
                raw = _at_path(fields, path)
                page.extract(label, place, "" if raw is None else _value(raw, with_structure=True), wanted)


def _list_of(page: LinePage, place: int, text: str) -> list[msgspec.Raw] | None:
    try:
        return _lists.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as wrong:
        page.fail(place, JSON_ERROR, str(wrong))
        return None


def _at_path(value: Fields | list[msgspec.Raw], path: Path) -> msgspec.Raw | None:
    """What stands there; None where nothing does."""
    found: msgspec.Raw | None = None
    for part in path:
        if found is not None:
            first = bytes(found)[0]
            if first not in (_BRACE, _BRACKET):
                return None
            value = _objects.decode(found) if first == _BRACE else _lists.decode(found)
        if isinstance(part, int):
            found = value[part] if isinstance(value, list) and part < len(value) else None
        else:
            found = value.get(part) if isinstance(value, dict) else None
        if found is None:
            return None
    return found


def parse_logfmt(page: LinePage, stage: nodes.Logfmt, wanted: LabelsRead | None) -> None:
    labels_by_expression = {one.expression: one.label for one in stage.extractions}
    for place, text in enumerate(page.bodies):
        pairs, wrong = logfmt_pairs(text, strict=stage.strict)
        for key, value in pairs:
            name = label_name(key)
            if labels_by_expression:
                name = labels_by_expression.get(key) or labels_by_expression.get(name) or ""
            elif not value and not stage.keep_empty:
                continue
            if name and (wanted is None or wanted.may_use(name)):
                page.extract(name, place, value, wanted)
        if wrong:
            page.fail(place, LOGFMT_ERROR, wrong)


def parse_pattern(page: LinePage, stage: nodes.PatternParser, wanted: LabelsRead | None) -> None:
    pattern = compiled_pattern(stage.text)
    for place, text in enumerate(page.bodies):
        for name, value in pattern.captured(text):
            page.extract(name, place, value, wanted)


def parse_regexp(page: LinePage, stage: nodes.Regexp, wanted: LabelsRead | None) -> None:
    pattern: Any = whole_text_pattern(stage.expression)
    names = list(pattern.groupindex.items())
    for place, text in enumerate(page.bodies):
        found = pattern.search(text)
        if found is not None:
            for name, group in names:
                page.extract(name, place, found.group(group) or "", wanted)


def unpack(page: LinePage, _: nodes.Unpack, wanted: LabelsRead | None) -> None:
    """Lines that were packed with their labels: `_entry` becomes the line again."""
    for place, text in enumerate(page.bodies):
        fields = _object_of(page, place, text)
        for key, raw in (fields or {}).items():
            if bytes(raw)[0] != _QUOTE:
                continue
            if key == _PACKED_LINE:
                page.bodies[place] = _value(raw)
                page.bodies_changed = True
            else:
                page.extract(label_name(key), place, _value(raw), wanted)


Parser = Callable[[LinePage, Any, LabelsRead | None], None]
PARSERS: dict[type, Parser] = {
    nodes.Json: parse_json,
    nodes.Logfmt: parse_logfmt,
    nodes.PatternParser: parse_pattern,
    nodes.Regexp: parse_regexp,
    nodes.Unpack: unpack,
}
