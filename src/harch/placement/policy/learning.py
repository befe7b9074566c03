"""How do new lessons reach a running engine? They are built aside, from a copy, and swapped in as one value."""

from __future__ import annotations

from typing import NamedTuple

from harch.placement.policy.lessons import Lessons, learn
from harch.placement.policy.node_values import NodeValues, new_scratch, new_values, revalue_all
from harch.placement.policy.shapes import Ints, NodeArrays, SmallInts
from harch.placement.policy.value import ValueMemo, new_memo


class Snapshot(NamedTuple):
    """What learning needs, copied: later changes of the engine do not reach it."""

    nodes: NodeArrays
    versions: SmallInts
    history: Ints
    models: int
    arrivals: int
    turnover: float


class Prepared(NamedTuple):
    """New lessons and what they make of the snapshot's nodes, ready to be adopted."""

    lessons: Lessons
    values: NodeValues
    memo: ValueMemo
    versions: SmallInts
    arrivals: int


def prepare(snapshot: Snapshot) -> Prepared:
    """Learns from a snapshot. Pure and slow (tens of milliseconds): safe to run in a thread."""
    lessons = learn(snapshot.history, snapshot.nodes, snapshot.models, snapshot.turnover)
    values = new_values(snapshot.nodes.size)
    memo = new_memo(snapshot.nodes.size)
    revalue_all(snapshot.nodes, values, lessons, memo, new_scratch(snapshot.nodes))
    return Prepared(lessons, values, memo, snapshot.versions, snapshot.arrivals)
