"""Which groups of series may be disclosed at which steps? Those that are large, regular and cut nothing small.

A series is *regular* at a step if it has a sample in every quantum of the time that is read. A group with one that is
not is left out at that step: between two steps only that one might have changed.
"""

# harch: pure

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harch.sentinel.federated.disclosure.ledger import Memory, digest_of
from harch.sentinel.federated.disclosure.policy import TelemetryPolicy
from harch.sentinel.model.histograms import stale_mask
from harch.sentinel.model.labels import BUCKET_LABEL, METRIC_NAME, Labels
from harch.sentinel.model.selection import Ints, Selection

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Every series of a metric on the grid: labels, where it has a value, where it is regular, and its group.

    `group` is -1 for series that the question does not choose.
    """

    series: Sequence[Labels]
    present: Bools
    regular: Bools
    group: Ints
    groups: int


@dataclass(frozen=True, slots=True)
class LookbackWindow:
    """What a value at a time looks at: the time less `offset_ms`, and `window_ms` before it."""

    times: Ints
    window_ms: int
    offset_ms: int


def regular_places(selection: Selection, rows: Sequence[int], reading: LookbackWindow, quantum_ms: int) -> Bools:
    """Where these rows of a selection have a sample in every quantum of the window."""
    ends = (reading.times - reading.offset_ms) // quantum_ms
    quanta = reading.window_ms // quantum_ms
    regular = np.zeros((len(rows), len(ends)), np.bool_)
    samples = selection.samples
    for place, row in enumerate(rows):
        begin = int(samples.first[row])
        part = slice(begin, begin + int(samples.count[row]))
        live = samples.timestamps[part][~stale_mask(np.ascontiguousarray(samples.values[part]))]
        filled = np.unique(-(-live // quantum_ms))
        until = np.searchsorted(filled, ends, side="right")
        regular[place] = until - np.searchsorted(filled, ends - quanta, side="right") == quanta
    return regular


def source_of(labels: Labels, policy: TelemetryPolicy) -> Labels:
    """What a series is about: its labels without those that may be named abroad, and without its name."""
    return tuple(one for one in labels if one[0] != METRIC_NAME and one[0] not in policy.cross_border_labels)


def family_of(metric: str) -> str:
    """A histogram and its count and sum are one thing: what is disclosed of one says something of the others."""
    return re.sub(r"_(bucket|count|sum)$", "", metric)


def _element(labels: Labels) -> Labels:
    """A series apart from its name. The count of a histogram is its last bucket."""
    known = dict(labels)
    if known.pop(METRIC_NAME, "").endswith(("_count", "_sum")):
        known.setdefault(BUCKET_LABEL, "+Inf")
    return tuple(sorted(known.items()))


def permitted(
    ledger: str, found: Candidates, reading: LookbackWindow, policy: TelemetryPolicy, memory: Memory, *, now_s: float
) -> Bools | None:
    """`[group, step]`: what may be disclosed, all of which then counts as disclosed. None: the memory is full."""
    names = [(digest_of(_element(one)), digest_of(source_of(one, policy))) for one in found.series]
    bits = memory.bits(ledger, names)
    if bits is None:
        return None
    admission = _GroupAdmission(ledger, found, np.array(bits, np.int64), policy, memory)
    allowed = np.zeros((found.groups, found.present.shape[1]), np.bool_)
    for step in np.flatnonzero(is_closed(reading, policy, now_s)).tolist():
        end_ms = int(reading.times[step]) - reading.offset_ms
        for group in admission.admitted_at(step, pages_of(end_ms, reading.window_ms, policy), now_s):
            allowed[group, step] = True
    return allowed


def is_closed(reading: LookbackWindow, policy: TelemetryPolicy, now_s: float) -> Bools:
    """Which steps are over, so that what they read does not change any more."""
    closed: Bools = reading.times - reading.offset_ms <= int(now_s - policy.closing_s) * 1000
    return closed


def page_ms(policy: TelemetryPolicy) -> int:
    return max(policy.settling_s // 3, policy.quantum_s) * 1000


def pages_of(end_ms: int, window_ms: int, policy: TelemetryPolicy) -> range:
    """The pages of what is read, and of the time before in which nearly the same may have been disclosed to others."""
    length = page_ms(policy)
    return range((end_ms - window_ms - policy.settling_s * 1000) // length, end_ms // length + 1)


class _GroupAdmission:
    """Decides step by step; steps with the same series share the work of naming them."""

    def __init__(self, ledger: str, found: Candidates, bits: Ints, policy: TelemetryPolicy, memory: Memory) -> None:
        self._ledger, self._found, self._bits = ledger, found, bits
        self._policy, self._memory = policy, memory
        self._width = int(bits.max(initial=0)) + 1
        self._known: dict[bytes, tuple[int, list[tuple[int, int]]]] = {}

    def admitted_at(self, step: int, pages: range, now_s: float) -> list[int]:
        """The groups that may be disclosed, the largest first, so that small ones hide behind each other."""
        least = self._policy.k
        everyone, groups = self._sets(step)
        # The total counts as disclosed from the start: what is left of it beside groups stays large, too.
        self._memory.admit(self._ledger, dict.fromkeys(pages, everyone), least=least, now_s=now_s)
        admitted = []
        for group, members in groups:
            others = everyone & ~members
            if others and not self._memory.has_sources(self._ledger, others, least):
                continue
            if self._memory.admit(self._ledger, dict.fromkeys(pages, members), least=least, now_s=now_s):
                admitted.append(group)
        return admitted

    def _sets(self, step: int) -> tuple[int, list[tuple[int, int]]]:
        present, regular = self._found.present[:, step], self._found.regular[:, step]
        key = np.packbits(present).tobytes() + np.packbits(regular).tobytes()
        if key not in self._known:
            odd = set(self._found.group[present & ~regular].tolist())
            wanted = set(self._found.group[present].tolist()) - odd - {-1}
            sets = [(group, self._members(present & (self._found.group == group))) for group in wanted]
            sets.sort(key=lambda one: (-one[1].bit_count(), one[0]))
            self._known[key] = (self._members(present), sets)
        return self._known[key]

    def _members(self, rows: Bools) -> int:
        flags = np.zeros(self._width, np.bool_)
        flags[self._bits[rows]] = True
        return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")
