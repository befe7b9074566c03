"""What does a whole pipeline do to a page?

Stage after stage: filters on lines and labels, and formats that rewrite them.
"""

# harch: pure

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from harch.base.errors import HarchError
from harch.sentinel.logql.stages.page import ERROR, ERROR_DETAILS, Bools, LabelsRead, LinePage
from harch.sentinel.logql.stages.parsers import PARSERS
from harch.sentinel.logql.syntax import nodes
from harch.sentinel.logql.syntax.nodes import Condition, LineOperator, Stage, Unit
from harch.sentinel.logql.text.fields import pattern_expression
from harch.sentinel.logql.text.templates import LineTemplate, compiled_template
from harch.sentinel.logql.text.values import address_pattern, duration_ns, size_bytes
from harch.sentinel.model.labels import Matcher, whole_text_pattern

LABEL_FILTER_ERROR = "LabelFilterErr"
_COMPARED: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


def filter_lines(page: LinePage, stage: nodes.LineFilterStage) -> None:
    tests = [_line_test(stage.operator, one) for one in stage.strings]
    if len(tests) == 1:
        found = [tests[0](text) for text in page.bodies]
    else:
        found = [any(test(text) for test in tests) for text in page.bodies]
    page.keep_where(np.logical_not(found) if stage.operator.is_negative else found)


def _line_test(kind: LineOperator, one: nodes.LineText) -> Callable[[str], bool]:
    """Whether a line has it; negative filters turn the answer around."""
    if one.is_ip:
        return address_pattern(one.text).is_in
    if kind in (LineOperator.CONTAINS, LineOperator.LACKS):
        return lambda line: one.text in line
    fits = kind in (LineOperator.FITS, LineOperator.FITS_NOT)
    pattern = whole_text_pattern(pattern_expression(one.text) if fits else one.text)
    return lambda line: pattern.search(line) is not None


def filter_labels(page: LinePage, stage: nodes.LabelFilter) -> None:
    page.keep_where(_holds(page, stage.condition))


def _holds(page: LinePage, condition: Condition) -> Bools:
    match condition:
        case nodes.Both(left=left, right=right):
            return _holds(page, left) & _holds(page, right)
        case nodes.Either(left=left, right=right):
            return _holds(page, left) | _holds(page, right)
        case nodes.TextCondition(matcher=matcher):
            if not page.is_layered((matcher.name,)):
                return page.by_stream(lambda labels: matcher.matches(labels.get(matcher.name, "")))
            return _once_a_value(page.values(matcher.name), matcher.matches)
        case nodes.AmountCondition():
            return _amount_holds(page, condition)
        case nodes.AddressCondition():
            return _address_holds(page, condition)


def _once_a_value(values: Sequence[str], decide: Callable[[str], bool]) -> Bools:
    known: dict[str, bool] = {}
    for value in values:
        if value not in known:
            known[value] = decide(value)
    return np.array([known[value] for value in values], np.bool_)


def _amount_holds(page: LinePage, condition: nodes.AmountCondition) -> Bools:
    """A line without the label does not pass; one whose value cannot be read does, with an error, as in Loki."""
    compare, amount = _COMPARED[condition.operator], condition.amount

    def decide(value: str) -> bool | None:
        found = amount_of(value, condition.unit)
        return None if found is None else compare(found, amount)

    return _with_errors(page, condition.label, decide, f"cannot be read as {condition.unit.value}")


def _address_holds(page: LinePage, condition: nodes.AddressCondition) -> Bools:
    pattern = address_pattern(condition.pattern)

    def decide(value: str) -> bool | None:
        try:
            return pattern.holds(value) is not condition.is_negative
        except ValueError:
            return None

    return _with_errors(page, condition.label, decide, "is not an address")


def _with_errors(page: LinePage, label: str, decide: Callable[[str], bool | None], wrong: str) -> Bools:
    kept = np.zeros(len(page), np.bool_)
    known: dict[str, bool | None] = {"": False}
    failed_before = page.parsed.get(ERROR)
    for place, value in enumerate(page.values(label)):
        if failed_before is not None and failed_before[place]:
            kept[place] = True  # what is known to be wrong is only filtered by its error
            continue
        if value not in known:
            known[value] = decide(value)
        verdict = known[value]
        if verdict is None:
            page.fail(place, LABEL_FILTER_ERROR, f"label {label}: `{value[:80]}` {wrong}")
        kept[place] = verdict is not False
    return kept


def amount_of(value: str, unit: Unit) -> float | None:
    """What a label's value counts; None where it cannot be read."""
    match unit:
        case Unit.NUMBER:
            try:
                return float(value.strip()) if "_" not in value else None
            except ValueError:
                return None
        case Unit.DURATION:
            return cast("float | None", duration_ns(value))
        case Unit.BYTES:
            return cast("float | None", size_bytes(value))


# How are lines and labels rewritten? line_format, label_format, decolorize, drop and keep.


TEMPLATE_ERROR = "TemplateFormatErr"
WRITTEN_CHARS_MAX = 64 << 20  # of one stage on one page
_COLOUR = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])")


def format_lines(page: LinePage, stage: nodes.LineFormat, now_ns: int) -> None:
    template = compiled_template(stage.template)
    columns = _columns(page, template)
    times, room = page.times_ns.tolist(), WRITTEN_CHARS_MAX
    for place, text in enumerate(page.bodies):
        try:
            page.bodies[place] = template.written(_labels(page, columns, place), text, times[place], now_ns)
        except HarchError as wrong:
            page.fail(place, TEMPLATE_ERROR, wrong.message)
        room = _room_left(room, page.bodies[place])
    page.bodies_changed = True


def _room_left(room: int, text: str) -> int:
    if len(text) > room:
        formatted = f"templates produce more than {WRITTEN_CHARS_MAX >> 20} MiB for one page of lines"
        raise HarchError("E0687", formatted, hint="shorten their output per line")
    return room - len(text)


def _columns(page: LinePage, template: LineTemplate) -> dict[str, list[str]] | None:
    """The labels that a plain template reads, once a page; None: it may read any."""
    return None if template.labels is None else {name: page.values(name) for name in template.labels}


def _labels(page: LinePage, columns: dict[str, list[str]] | None, place: int) -> dict[str, str]:
    if columns is None:
        return page.labels_at(place)
    return {name: values[place] for name, values in columns.items()}


def format_labels(page: LinePage, stage: nodes.LabelFormat, now_ns: int) -> None:
    """One assignment after the other: each sees what those before it wrote."""
    for one in stage.assignments:
        if one.is_template:
            _write_label(page, one, now_ns)
        else:
            _rename_label(page, one)


def _rename_label(page: LinePage, one: nodes.LabelAssignment) -> None:
    values = page.values(one.value)
    if not any(values):
        return
    target = page.values(one.label)
    page.parsed[one.label] = [new or old for new, old in zip(values, target, strict=True)]
    if one.label != one.value:
        page.parsed[one.value] = [""] * len(page)


def _write_label(page: LinePage, one: nodes.LabelAssignment, now_ns: int) -> None:
    template = compiled_template(one.value)
    columns = _columns(page, template)
    times, bodies, room = page.times_ns.tolist(), page.bodies, WRITTEN_CHARS_MAX
    for place in range(len(page)):
        text = bodies[place] if bodies else ""
        try:
            value = template.written(_labels(page, columns, place), text, times[place], now_ns)
        except HarchError as wrong:
            page.fail(place, TEMPLATE_ERROR, wrong.message)
            continue
        room = _room_left(room, value)
        page.put(page.parsed, one.label, place, value)


def decolorize(page: LinePage) -> None:
    page.bodies = [_COLOUR.sub("", text) if "\x1b" in text else text for text in page.bodies]
    page.bodies_changed = True


def drop_labels(page: LinePage, stage: nodes.DropLabels) -> None:
    for one in stage.labels:
        name = one if isinstance(one, str) else one.name
        if isinstance(one, str):
            page.forget(name)
            if name == ERROR:
                page.forget(ERROR_DETAILS)
        else:
            _forget_where(page, one)


def _forget_where(page: LinePage, matcher: Matcher) -> None:
    for place, value in enumerate(page.values(matcher.name)):
        if value and matcher.matches(value):
            page.put(page.parsed, matcher.name, place, "")


def keep_labels(page: LinePage, stage: nodes.KeepLabels) -> None:
    """What is named stays, where its value matches; `__error__` always does."""
    plain = {one for one in stage.labels if isinstance(one, str)} | {ERROR, ERROR_DETAILS}
    matchers: dict[str, list[Matcher]] = {}
    for one in stage.labels:
        if isinstance(one, Matcher):
            matchers.setdefault(one.name, []).append(one)
    for name in page.names() - plain:
        if name not in matchers:
            page.forget(name)
            continue
        for place, value in enumerate(page.values(name)):
            if value and not any(matcher.matches(value) for matcher in matchers[name]):
                page.put(page.parsed, name, place, "")


# What does a whole pipeline do to a page? Stage after stage, once it is known what the store has done already.


@dataclass(frozen=True, slots=True)
class LinePipeline:
    """Stages in order. `wanted` says which labels the answer needs; None: all of them."""

    stages: tuple[Stage, ...]
    wanted: LabelsRead | None
    now_ns: int

    def run(self, page: LinePage) -> None:
        for stage in self.stages:
            if not len(page):
                return
            self._apply(stage, page)

    def _apply(self, stage: Stage, page: LinePage) -> None:
        match stage:
            case nodes.LineFilterStage():
                filter_lines(page, stage)
            case nodes.LabelFilter():
                filter_labels(page, stage)
            case nodes.LineFormat():
                format_lines(page, stage, self.now_ns)
            case nodes.LabelFormat():
                format_labels(page, stage, self.now_ns)
            case nodes.Decolorize():
                decolorize(page)
            case nodes.DropLabels():
                drop_labels(page, stage)
            case nodes.KeepLabels():
                keep_labels(page, stage)
            case _:
                PARSERS[type(stage)](page, stage, self.wanted)


def may_drop_lines(pipeline: tuple[Stage, ...]) -> bool:
    """Whether fewer lines may come out than went in."""
    return any(isinstance(stage, nodes.LineFilterStage | nodes.LabelFilter) for stage in pipeline)
