"""The head against a dictionary: what is taken, refused, read, cut and erased, in any order."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.sentinel.model.labels import Matcher, MatchKind, labels
from harch.sentinel.model.selection import Selection, SeriesBatch
from harch.sentinel.store.head.head import Head
from harch.sentinel.store.head.journal import NoJournal
from harch.sentinel.store.limits import TenantLimits
from harch.sentinel.store.write_request import Receipt, request_of

ALL_TIMES = (int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max))
SERIES = [labels({"__name__": "m", "n": str(number)}) for number in range(3)]
BITS = [0, 1 << 63, 0x7FF0000000000002, 0x7FF8000000000001, 0xFFF0000000000000, 0x7FF0000000000000, 0x3FF0000000000000]


def number(bits: int) -> float:
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


@dataclass
class Model:
    window: int | None
    samples: dict[int, dict[int, int]] = field(default_factory=dict)  # series -> time -> bits
    cut: dict[int, dict[int, int]] = field(default_factory=dict)
    newest: dict[int, int] = field(default_factory=dict)
    is_cut: bool = False

    def append(self, series: int, time: int, bits: int) -> str:
        """The code of a refusal; empty if it is taken or known."""
        known = {**self.samples.get(series, {}), **self.cut.get(series, {})}
        newest = self.newest.get(series)
        if newest is None or time > newest:
            self.newest[series] = time
        elif time in known:
            return "" if known[time] == bits else "E0611"
        elif self.window is not None and newest - time > self.window:
            return "E0610"
        self.samples.setdefault(series, {})[time] = bits
        return ""

    def take_front(self, until: int) -> None:
        if not self.is_cut:
            self.is_cut = True
            for series, samples in self.samples.items():
                self.cut[series] = {time: bits for time, bits in samples.items() if time <= until}
                self.samples[series] = {time: bits for time, bits in samples.items() if time > until}

    def forget(self, idle_since: int) -> None:
        if self.is_cut:
            self.cut, self.is_cut = {}, False
            for series in list(self.newest):
                if not self.samples.get(series) and self.newest[series] < idle_since:
                    del self.newest[series]

    def erase(self, series: int, start: int, end: int) -> None:
        for number in range(len(SERIES)):
            merged = {**self.cut.get(number, {}), **self.samples.get(number, {})}
            if number == series:
                merged = {time: bits for time, bits in merged.items() if not start <= time <= end}
            self.samples[number] = merged
        self.cut, self.is_cut = {}, False

    def read(self, start: int, end: int) -> dict[int, dict[int, int]]:
        both = {series: {**self.cut.get(series, {}), **self.samples.get(series, {})} for series in range(len(SERIES))}
        ranged = {
            series: {time: bits for time, bits in samples.items() if start <= time <= end}
            for series, samples in both.items()
        }
        return {series: samples for series, samples in ranged.items() if samples}


def read(selection: Selection) -> dict[int, dict[int, int]]:
    found: dict[int, dict[int, int]] = {}
    samples = selection.samples
    for place in range(selection.series.count):
        first, count = int(samples.first[place]), int(samples.count[place])
        times = samples.timestamps[first : first + count]
        assert (np.diff(times) > 0).all()
        bits = samples.values[first : first + count].view(np.uint64).tolist()
        found[int(dict(selection.series.labels_of(place))["n"])] = dict(zip(times.tolist(), bits, strict=True))
    return found


times = st.integers(-150, 150)
runs = st.lists(st.tuples(times, st.sampled_from(BITS)), min_size=1, max_size=80)
steps = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 2), runs),
    st.tuples(st.just("append"), st.integers(0, 2), runs.map(sorted)),
    st.tuples(st.just("read"), times, times),
    st.tuples(st.just("cut"), times, st.just(0)),
    st.tuples(st.just("forget"), times, st.just(0)),
    st.tuples(st.just("erase"), st.integers(0, 2), st.tuples(times, times)),
)


@given(st.sampled_from([None, 40]), st.lists(steps, max_size=25))
@settings(max_examples=100)
def test_a_head_holds_what_a_dictionary_would(window: int | None, story: list[tuple[str, int, object]]) -> None:
    limits = TenantLimits(out_of_order_ms=window, samples_in_memory_max=1 << 14, series_max=64, label_names_max=8)
    head, model = Head(limits, NoJournal()), Model(window)
    for action, first, second in story:
        if action == "append":
            _append(head, model, first, second)  # type: ignore[arg-type]
        elif action == "read":
            start, end = min(first, second), max(first, second)  # type: ignore[call-overload]
            assert read(head.select([], start, end)) == model.read(start, end)
        elif action == "cut":
            handed = head.cut(first)
            model.take_front(first)
            assert read(handed) == {series: samples for series, samples in model.cut.items() if samples}
        elif action == "forget":
            head.forget(idle_since=first)
            model.forget(first)
        else:
            span = sorted(second)  # type: ignore[call-overload]
            head.erase([Matcher(MatchKind.EQUAL, "n", str(first))], *span)
            model.erase(first, *span)
    assert read(head.select([], *ALL_TIMES)) == model.read(*ALL_TIMES)
    assert head.sample_count == sum(len(samples) for samples in model.read(*ALL_TIMES).values())


def _append(head: Head, model: Model, series: int, run: list[tuple[int, int]]) -> None:
    batch = SeriesBatch(SERIES[series], [time for time, _ in run], [number(bits) for _, bits in run])
    receipt: Receipt = head.append(request_of([batch], head.limits), now_ms=0)
    codes = [model.append(series, time, bits) for time, bits in run]
    expected = {code: codes.count(code) for code in codes if code}
    assert (receipt.samples, dict(receipt.refused)) == (codes.count(""), expected)


@given(st.lists(st.integers(0, 400), min_size=300, max_size=400, unique=True))
@settings(max_examples=10)
def test_chunks_that_late_samples_need_come_back_when_they_are_cut(shuffled: list[int]) -> None:
    limits = TenantLimits(out_of_order_ms=None, samples_in_memory_max=1 << 12, series_max=64)
    head = Head(limits, NoJournal())
    for _ in range(20):  # without reuse, the memory would be full after a few rounds
        batch = SeriesBatch(SERIES[0], shuffled, [1.0] * len(shuffled))
        assert not head.append(request_of([batch], limits), now_ms=0).refused
        assert read(head.cut(1000)) == {0: dict.fromkeys(sorted(shuffled), 0x3FF0000000000000)}
        head.forget()
    assert head.sample_count == 0
