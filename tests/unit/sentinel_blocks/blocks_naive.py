"""What should a store answer? The slow and obvious way: a dictionary of labels to a dictionary of times to samples."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from harch.sentinel.model.histograms import STALE, BucketSpan, NativeHistogram, ResetHint
from harch.sentinel.model.labels import Labels, Matcher, MatchKind, labels
from harch.sentinel.model.selection import Samples, Selection, SeriesTable


@dataclass(frozen=True, slots=True)
class Sample:
    """Bits in place of floats, so that NaNs and zeros compare as they are."""

    bits: int
    start: int = 0
    histogram: NativeHistogram | None = None


Model = dict[Labels, dict[int, Sample]]


def bits_of(value: float) -> int:
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])


def value_of(bits: int) -> float:
    return float(np.uint64(bits).view(np.float64))


def selection_of(model: Model, *, gap: int = 0) -> Selection:
    """The model as a store would lend it, with `gap` unused places between the regions."""
    series = list(model)
    first, count, times, bits, starts, at = [], [], [], [], [], []
    histograms: list[NativeHistogram] = []
    for label_set in series:
        samples = sorted(model[label_set].items())
        first.append(len(times))
        count.append(len(samples))
        for time, sample in samples:
            times.append(time)
            bits.append(sample.bits)
            starts.append(sample.start)
            at.append(-1 if sample.histogram is None else len(histograms))
            histograms += [] if sample.histogram is None else [sample.histogram]
        for unused in (times, bits, starts):
            unused += [0] * gap
        at += [-1] * gap
    return Selection(
        SeriesTable.of(series),
        Samples(
            np.array(first, np.int64),
            np.array(count, np.int64),
            np.array(times, np.int64),
            np.array(bits, np.uint64).view(np.float64),
            np.array(starts, np.int64) if any(starts) else None,
            np.array(at, np.int32) if histograms else None,
            histograms,
        ),
    )


def model_of(selection: Selection) -> Model:
    """What a selection says, without series that have no samples."""
    found: Model = {}
    samples = selection.samples
    bits = samples.values.view(np.uint64)
    for place in range(selection.series.count):
        region = range(int(samples.first[place]), int(samples.first[place] + samples.count[place]))
        times = [int(samples.timestamps[at]) for at in region]
        assert times == sorted(set(times))
        if times:
            label_set = selection.series.labels_of(place)
            assert label_set not in found
            found[label_set] = {
                time: Sample(
                    int(bits[at]),
                    0 if samples.starts is None else int(samples.starts[at]),
                    _histogram_at(samples, at),
                )
                for time, at in zip(times, region, strict=True)
            }
    return found


def _histogram_at(samples: Samples, at: int) -> NativeHistogram | None:
    if samples.histogram_at is None or samples.histogram_at[at] < 0:
        return None
    return samples.histograms[samples.histogram_at[at]]


def chosen(model: Model, matchers: Sequence[Matcher], start: int, end: int) -> Model:
    """What a query finds."""
    found = {}
    for label_set, samples in model.items():
        if all(matcher.matches(dict(label_set).get(matcher.name, "")) for matcher in matchers):
            kept = {time: sample for time, sample in samples.items() if start <= time <= end}
            if kept:
                found[label_set] = kept
    return found


def merged(models: Iterable[Model]) -> Model:
    """Later models win."""
    result: Model = {}
    for model in models:
        for label_set, samples in model.items():
            result[label_set] = {**result.get(label_set, {}), **samples}
    return result


def erased(model: Model, matchers: Sequence[Matcher], start: int, end: int) -> Model:
    gone = chosen(model, matchers, start, end)
    left = {
        label_set: {time: sample for time, sample in samples.items() if time not in gone.get(label_set, {})}
        for label_set, samples in model.items()
    }
    return {label_set: samples for label_set, samples in left.items() if samples}


VALUES = st.one_of(
    st.integers(-1000, 1000).map(float),
    st.integers(-10_000, 10_000).map(lambda number: number / 100),
    st.sampled_from([0.0, -0.0, STALE, float("inf"), float("-inf"), float("nan"), 5e-324, 1.7e308, 2.0**53]),
    st.integers(0, 2**64 - 1).map(value_of),
)
LABEL_SETS = st.builds(
    lambda name, job, path: labels({"__name__": name, "job": job, "path": path}),
    st.sampled_from(["up", "requests_total", "temperature"]),
    st.sampled_from(["", "a", "b", "ab"]),
    st.sampled_from(["", "/", "/v1", "é"]),
)
MATCHERS = st.lists(
    st.builds(
        Matcher,
        st.sampled_from(MatchKind),
        st.sampled_from(["__name__", "job", "path", "absent"]),
        st.sampled_from(["", "up", "a", "b", "a|b", ".*", ".+", "/.*", "x"]),
    ),
    max_size=3,
)
SPANS = st.lists(st.builds(BucketSpan, st.integers(-3, 5), st.integers(0, 3)), max_size=2).map(tuple)


@st.composite
def histograms(draw: st.DrawFn) -> NativeHistogram:
    positive, negative = draw(SPANS), draw(SPANS)
    counts = st.floats(0, 1e6, allow_nan=False)
    return NativeHistogram(
        count=draw(counts),
        sum=draw(VALUES.filter(lambda value: value == value)),
        schema=draw(st.sampled_from([-53, -4, 0, 8])),
        zero_threshold=draw(st.sampled_from([0.0, 1e-128, 0.001])),
        zero_count=draw(counts),
        positive_spans=positive,
        positive_counts=tuple(draw(counts) for span in positive for _ in range(span.length)),
        negative_spans=negative,
        negative_counts=tuple(draw(counts) for span in negative for _ in range(span.length)),
        custom_bounds=draw(st.sampled_from([(), (0.1, 1.0)])),
        reset_hint=draw(st.sampled_from(ResetHint)),
        is_integer=draw(st.booleans()),
    )


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    start = draw(st.sampled_from([0, 0, 0, -5, 1_000]))
    if draw(st.integers(0, 9)) == 0:
        histogram = draw(histograms())
        return Sample(bits_of(histogram.sum), start, histogram)
    return Sample(bits_of(draw(VALUES)), start)


@st.composite
def models(draw: st.DrawFn, start: int = -500, end: int = 3_000) -> Model:
    times = st.dictionaries(st.integers(start, end - 1), samples(), min_size=1, max_size=12)
    return draw(st.dictionaries(LABEL_SETS, times, max_size=6))
