"""How are blocks read that follow each other in time? Each straight to its place in the answer, without merging."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harch.sentinel.model.matchers import Matcher
from harch.sentinel.model.selection import Ints, Selection
from harch.sentinel.store.blocks.block import Block
from harch.sentinel.store.blocks.merging import empty_selection, merge_tables
from harch.sentinel.store.blocks.reader import ReadAnswer, ReadPlan


def select_in_turn(asked: Sequence[tuple[Block, int, int]], matchers: Sequence[Matcher], limit: int) -> Selection:
    """Samples of blocks whose spans do not overlap. Raises E0603 beyond `limit` samples, before any value is read."""
    plans: list[tuple[Block, ReadPlan]] = []
    tables = []
    for block, low, high in sorted(asked, key=lambda one: one[1]):
        table, plan = block.plan(matchers, low, high, limit=limit)
        if table.count:
            limit -= int(plan.count.sum())
            plans.append((block, plan))
            tables.append(table)
    if not plans:
        return empty_selection()
    series, homes = (tables[0], [np.arange(tables[0].count)]) if len(tables) == 1 else merge_tables(tables)
    answer = ReadAnswer.for_counts(_total(plans, homes, series.count))
    target = answer.samples.first.copy()
    for (block, plan), home in zip(plans, homes, strict=True):
        block.fill(plan, target[home], answer)
        target[home] += plan.count
    return Selection(series, answer.finished())


def _total(plans: Sequence[tuple[Block, ReadPlan]], homes: Sequence[Ints], series: int) -> Ints:
    total = np.zeros(series, np.int64)
    for (_, plan), home in zip(plans, homes, strict=True):
        total[home] += plan.count
    return total
