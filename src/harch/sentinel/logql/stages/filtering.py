"""Which lines stay? Filters on texts and on labels, worked out once a distinct value where that is possible."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from harch.sentinel.logql.stages.page import Bools, Page
from harch.sentinel.logql.stages.wanting import ERROR
from harch.sentinel.logql.syntax import stages
from harch.sentinel.logql.syntax.stages import Condition, LineOperator, Unit
from harch.sentinel.logql.syntax.units import duration_ns, size_bytes
from harch.sentinel.logql.texts.addresses import address_pattern
from harch.sentinel.logql.texts.patterns import pattern_expression
from harch.sentinel.model.matchers import whole_text_pattern

LABEL_FILTER_ERROR = "LabelFilterErr"
_COMPARED: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


def filter_lines(page: Page, stage: stages.LineFilter) -> None:
    tests = [_line_test(stage.operator, one) for one in stage.texts]
    if len(tests) == 1:
        found = [tests[0](text) for text in page.texts]
    else:
        found = [any(test(text) for test in tests) for text in page.texts]
    page.keep_where(np.logical_not(found) if stage.operator.is_negative else found)


def _line_test(kind: LineOperator, one: stages.LineText) -> Callable[[str], bool]:
    """Whether a line has it; negative filters turn the answer around."""
    if one.is_ip:
        return address_pattern(one.text).is_in
    if kind in (LineOperator.CONTAINS, LineOperator.LACKS):
        return lambda line: one.text in line
    fits = kind in (LineOperator.FITS, LineOperator.FITS_NOT)
    pattern = whole_text_pattern(pattern_expression(one.text) if fits else one.text)
    return lambda line: pattern.search(line) is not None


def filter_labels(page: Page, stage: stages.LabelFilter) -> None:
    page.keep_where(_holds(page, stage.condition))


def _holds(page: Page, condition: Condition) -> Bools:
    match condition:
        case stages.Both(left=left, right=right):
            return _holds(page, left) & _holds(page, right)
        case stages.Either(left=left, right=right):
            return _holds(page, left) | _holds(page, right)
        case stages.TextCondition(matcher=matcher):
            if not page.is_layered((matcher.name,)):
                return page.by_stream(lambda labels: matcher.matches(labels.get(matcher.name, "")))
            return _once_a_value(page.values(matcher.name), matcher.matches)
        case stages.AmountCondition():
            return _amount_holds(page, condition)
        case stages.AddressCondition():
            return _address_holds(page, condition)


def _once_a_value(values: Sequence[str], decide: Callable[[str], bool]) -> Bools:
    known: dict[str, bool] = {}
    for value in values:
        if value not in known:
            known[value] = decide(value)
    return np.array([known[value] for value in values], np.bool_)


def _amount_holds(page: Page, condition: stages.AmountCondition) -> Bools:
    """A line without the label does not pass; one whose value cannot be read does, with an error, as in Loki."""
    compare, amount = _COMPARED[condition.operator], condition.amount

    def decide(value: str) -> bool | None:
        found = amount_of(value, condition.unit)
        return None if found is None else compare(found, amount)

    return _with_errors(page, condition.label, decide, f"cannot be read as {condition.unit.value}")


def _address_holds(page: Page, condition: stages.AddressCondition) -> Bools:
    pattern = address_pattern(condition.pattern)

    def decide(value: str) -> bool | None:
        try:
            return pattern.holds(value) is not condition.is_negative
        except ValueError:
            return None

    return _with_errors(page, condition.label, decide, "is no address")


def _with_errors(page: Page, label: str, decide: Callable[[str], bool | None], wrong: str) -> Bools:
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
