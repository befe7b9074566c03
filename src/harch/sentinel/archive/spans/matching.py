"""Which spans of a group satisfy a query? Conditions over columns; each different value is looked at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from harch.sentinel.archive.spans.blocks import Block, Coded
from harch.sentinel.archive.spans.conditions import ORDERED, WITHOUT, holds, is_number
from harch.sentinel.archive.spans.rows import (
    ATTRIBUTE,
    DURATION,
    KIND,
    KINDS,
    MORE,
    NAME,
    RESOURCE,
    SERVICE,
    START,
    STATUS,
    STATUSES,
    unpacked_attributes,
)
from harch.sentinel.archive.texts import Mask
from harch.sentinel.model.selection import Codes
from harch.sentinel.model.spans import AttributeValue, Comparison, Field, SpanCondition

_ENUMS: dict[Field, tuple[str, Sequence[Any]]] = {Field.STATUS: (STATUS, STATUSES), Field.KIND: (KIND, KINDS)}
_TEXTS = {Field.SERVICE: SERVICE, Field.NAME: NAME}


def possible(block: Block, group: int, conditions: Sequence[SpanCondition], start_ns: int, end_ns: int) -> bool:
    """Whether the group can have spans that are asked for, without reading it."""
    facts = block.groups[group]
    in_time = facts.start_min < end_ns and facts.start_max >= start_ns
    return in_time and all(facts.may_satisfy(one) for one in conditions)


def matching(block: Block, group: int, conditions: Sequence[SpanCondition], start_ns: int, end_ns: int) -> Mask:
    facts = block.groups[group]
    if facts.start_min >= start_ns and facts.start_max < end_ns:
        mask: Mask = np.ones(facts.rows, np.bool_)
    else:
        starts = block.numbers(group, START)
        mask = (starts >= start_ns) & (starts < end_ns)
    for condition in conditions:
        if not mask.any():
            break
        mask = mask & _satisfying(block, group, condition)
    return mask


def field_values(block: Block, group: int, field: Field) -> tuple[Codes, list[str]]:
    """Service, name, status or kind of each row, as places in a list."""
    if field in _ENUMS:
        column, kinds = _ENUMS[field]
        return block.numbers(group, column).astype(np.int32), [one.value for one in kinds]
    coded = block.coded(group, _TEXTS[field])
    if coded is None:
        raise KeyError(field)
    return coded.codes, coded.values


def _satisfying(block: Block, group: int, condition: SpanCondition) -> Mask:
    if condition.field is Field.ATTRIBUTE:
        return _by_attribute(block, group, condition)
    if condition.field is Field.DURATION:
        numbers = block.numbers(group, DURATION)
        if is_number(condition.value) and condition.comparison in ORDERED:
            by_number: Mask = ORDERED[condition.comparison](numbers, condition.value)
            return by_number
        values, places = np.unique(numbers, return_inverse=True)
        return _held(places, values.tolist(), condition)
    codes, names = field_values(block, group, condition.field)
    return _held(codes, names, condition)


def _held(codes: Any, values: Sequence[AttributeValue], condition: SpanCondition) -> Mask:
    taken = np.array([holds(value, condition.comparison, condition.value) for value in values], np.bool_)
    found: Mask = taken[codes]
    return found


def _by_attribute(block: Block, group: int, condition: SpanCondition) -> Mask:
    """The span's own value counts; its resource's only where it has none."""
    count = block.groups[group].rows
    mask = np.full(count, condition.comparison in WITHOUT, np.bool_)
    own = block.coded(group, ATTRIBUTE + condition.attribute)
    if (
        own is not None
        and condition.comparison is Comparison.EQUAL
        and not _is_shared(block, group, condition.attribute)
    ):
        equal = own.equal_to(condition.value)
        places = [place for place, value in equal.items() if holds(value, Comparison.EQUAL, condition.value)]
        chosen = np.zeros(count, np.bool_)
        for place in places:
            chosen |= own.codes == place
        return chosen
    for coded, values in attribute_values(block, group, condition.attribute):
        known = np.array([value is not None for value in values], np.bool_)
        taken = np.array(
            [value is not None and holds(value, condition.comparison, condition.value) for value in values], np.bool_
        )
        if not len(values):
            continue
        has = (coded.codes >= 0) & known[coded.codes]
        mask = np.where(has, taken[coded.codes], mask)
    return mask


def _is_shared(block: Block, group: int, name: str) -> bool:
    """Whether resources, or the column for rare attributes, have it too."""
    packed = (block.coded(group, column) for column in (RESOURCE, MORE))
    return any(
        name == known for coded in packed if coded for value in coded.values for known, _ in unpacked_attributes(value)
    )


def attribute_values(block: Block, group: int, name: str) -> list[tuple[Coded, list[AttributeValue | None]]]:
    """Columns that have the attribute, the least important first, with its value for each of their values."""
    found: list[tuple[Coded, list[AttributeValue | None]]] = []
    for column in (RESOURCE, MORE):
        coded = block.coded(group, column)
        if coded is not None:
            found.append((coded, [dict(unpacked_attributes(packed)).get(name) for packed in coded.values]))
    own = block.coded(group, ATTRIBUTE + name)
    if own is not None:
        found.append((own, list(own.values)))
    return found
