"""Do answers over hubs agree with central ones, and what can an attacker learn from them?

Hubs with telemetry from a seed, random questions, and somebody in another country who solves equations.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from harch.sentinel.federated.messages import SeriesResult
from harch.sentinel.model.histograms import STALE, BucketSpan, NativeHistogram, ResetHint
from harch.sentinel.model.labels import Labels, Matcher, labels
from harch.sentinel.model.selection import Samples, Selection, SeriesExemplars, SeriesTable
from harch.sentinel.promql.evaluate.values import MatrixResult, QueryResult, ScalarResult, VectorResult

# Hubs with telemetry, all from a seed, and a measure for answers: federated ones are compared with central ones.
#
# The central answer is that of one store with the series of all hubs.


Points = Sequence[tuple[int, float | NativeHistogram]]
SCRAPE_MS = 15_000
BOUNDS = ("0.1", "0.5", "1", "5", "+Inf")
JOBS, MODELS, ZONES = ("train", "serve"), ("a100", "h100", "card"), ("north", "south")
RELATIVE, ABSOLUTE = 1e-9, 1e-11  # what is left when sums of many thousands cancel out has no digits of its own


class MemoryMetrics:
    """A Queryable over `{labels: [(time_ms, value), …]}`."""

    def __init__(self, series: Mapping[Labels, Points]) -> None:
        self._series = dict(series)

    def select(self, matchers: Sequence[Matcher], start: int, end: int, *, limit: int) -> Selection:
        found = [one for one in self._series if _fits(matchers, one)]
        points = [[point for point in self._series[one] if start <= point[0] <= end] for one in found]
        flat = [point for each in points for point in each]
        cells = [value for _, value in flat if isinstance(value, NativeHistogram)]
        numbers = iter(range(len(cells)))
        places = [next(numbers) if isinstance(value, NativeHistogram) else -1 for _, value in flat]
        count = np.array([len(each) for each in points], np.int64)
        samples = Samples(
            np.cumsum(count) - count,
            count,
            np.array([time_ms for time_ms, _ in flat], np.int64),
            np.array([value.sum if isinstance(value, NativeHistogram) else value for _, value in flat], np.float64),
            histogram_at=np.array(places, np.int32) if cells else None,
            histograms=cells,
        )
        return Selection(SeriesTable.of(found), samples)

    def series(self, matchers: Sequence[Matcher], start: int, end: int) -> SeriesTable:
        there = [
            one
            for one, points in self._series.items()
            if _fits(matchers, one) and any(start <= at <= end for at, _ in points)
        ]
        return SeriesTable.of(there)

    def exemplars(self, matchers: Sequence[Matcher], start: int, end: int) -> Sequence[SeriesExemplars]:
        return ()


def _fits(matchers: Sequence[Matcher], one: Labels) -> bool:
    values = dict(one)
    return all(matcher.matches(values.get(matcher.name, "")) for matcher in matchers)


@dataclass(frozen=True, slots=True)
class TelemetryWorld:
    """Telemetry of several hubs, and the same in one place."""

    hubs: Mapping[str, MemoryMetrics]
    central: MemoryMetrics
    end_ms: int


def world(
    seed: int, *, hubs: int = 3, sources: int = 8, minutes: int = 40, hub_label: bool = True, churn: bool = True
) -> TelemetryWorld:
    """Hubs with gauges `m`, counters `c_total`, classic histograms `b_bucket` and native ones `h`.

    With `churn`, some series begin late, end early, miss scrapes or restart; without it all are scraped alike.
    """
    chance = random.Random(seed)  # noqa: S311 - the same world for the same seed
    all_series: dict[Labels, Points] = {}
    stores = {}
    for hub in range(hubs):
        name = f"hub-{hub}"
        series = _hub_series(chance, name, sources, minutes, hub_label=hub_label, churn=churn)
        stores[name] = MemoryMetrics(series)
        all_series |= series
    return TelemetryWorld(stores, MemoryMetrics(all_series), minutes * 60_000)


def _hub_series(
    chance: random.Random, hub: str, sources: int, minutes: int, *, hub_label: bool, churn: bool
) -> dict[Labels, Points]:
    series: dict[Labels, Points] = {}
    for source in range(sources):
        base = {
            "instance": f"{hub}-node-{source}",
            "job": chance.choice(JOBS),
            "model": chance.choice(MODELS),
            "zone": chance.choice(ZONES),
            **({"hub": hub} if hub_label else {}),
        }
        times = _times(chance, minutes, churn=churn)
        level, total, native = chance.uniform(-50, 1000), 0.0, [0.0, 0.0, 0.0]
        gauge: list[tuple[int, float]] = []
        counter: list[tuple[int, float]] = []
        natives: list[tuple[int, NativeHistogram]] = []
        buckets: dict[str, list[tuple[int, float]]] = {bound: [] for bound in BOUNDS}
        filled = [0.0] * len(BOUNDS)
        for time_ms in times:
            level += chance.gauss(0, 10)
            total += chance.expovariate(0.2)
            if churn and chance.random() < 0.01:
                total = 0.0
            gauge.append((time_ms, level))
            counter.append((time_ms, total))
            native = [each + chance.randrange(5) for each in native]
            spans, sums = (BucketSpan(0, 3),), native[0] + 2 * native[1] + 4 * native[2]
            natives.append((time_ms, NativeHistogram(sum(native), sums, 0, 0.0, 0.0, spans, tuple(native))))
            grown = [chance.randrange(4) for _ in BOUNDS]
            filled = [old + sum(grown[: place + 1]) for place, old in enumerate(filled)]
            for bound, count in zip(BOUNDS, filled, strict=True):
                buckets[bound].append((time_ms, count))
        if churn and gauge and chance.random() < 0.2:
            gauge.append((gauge[-1][0] + SCRAPE_MS, STALE))
        series[labels({"__name__": "m", **base})] = gauge
        series[labels({"__name__": "c_total", **base})] = counter
        series[labels({"__name__": "h", **base})] = natives
        for bound in BOUNDS:
            series[labels({"__name__": "b_bucket", "le": bound, **base})] = buckets[bound]
    return series


def _times(chance: random.Random, minutes: int, *, churn: bool) -> list[int]:
    offset = chance.randrange(SCRAPE_MS)
    times = [offset + SCRAPE_MS * number for number in range(minutes * 4)]
    if not churn:
        return times
    begin = chance.randrange(len(times) // 2) if chance.random() < 0.2 else 0
    end = len(times) - (chance.randrange(len(times) // 2) if chance.random() < 0.2 else 0)
    return [time_ms for time_ms in times[begin:end] if chance.random() > 0.03]


ResultPoints = dict[tuple[Labels, int], float | NativeHistogram]


def result_points(result: QueryResult) -> ResultPoints:
    """The values of an answer by labels and time."""
    value = result.value
    if isinstance(value, ScalarResult):
        return {((), value.time_ms): value.value}
    if isinstance(value, VectorResult):
        cells = value.histograms
        return {
            (value.series.labels_of(row), value.time_ms): number if cells is None or cells[row] is None else cells[row]
            for row, number in enumerate(value.values.tolist())
        }
    if not isinstance(value, MatrixResult):
        raise TypeError(f"nothing to compare: {type(value).__name__}")
    found: ResultPoints = {}
    for row, step in zip(*np.nonzero(value.present), strict=True):
        cell = None if value.histograms is None else value.histograms[row, step]
        key = (value.series.labels_of(int(row)), int(value.times[step]))
        found[key] = float(value.values[row, step]) if cell is None else cell
    return found


def difference(left: ResultPoints, right: ResultPoints) -> str:
    """What differs by more than rounding; empty if nothing does."""
    if left.keys() != right.keys():
        return f"only one has {sorted(left.keys() ^ right.keys())[:3]}"
    for key, value in left.items():
        other = right[key]
        if isinstance(value, NativeHistogram) or isinstance(other, NativeHistogram):
            if not (isinstance(value, NativeHistogram) and isinstance(other, NativeHistogram) and _alike(value, other)):
                return f"{key}: {value} and {other}"
        elif not _near(value, other):
            return f"{key}: {value!r} and {other!r}"
    return ""


def _near(left: float, right: float) -> bool:
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) and math.isnan(right)
    return left == right or math.isclose(left, right, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def _alike(left: NativeHistogram, right: NativeHistogram) -> bool:
    numbers = [(left.count, right.count), (left.sum, right.sum), (left.zero_count, right.zero_count)]
    numbers += zip(left.positive_counts, right.positive_counts, strict=False)
    hints = {left.reset_hint, right.reset_hint} <= {ResetHint.UNKNOWN, ResetHint.GAUGE}
    return (
        left.positive_spans == right.positive_spans
        and all(_near(one, other) for one, other in numbers)
        and (hints or left.reset_hint == right.reset_hint)
    )


# Questions over hubs with telemetry as `federated_telemetry.world` makes it, at random.


def question(chance: random.Random) -> str:
    """A query that hubs of one country can answer together: anything but what needs single samples of a range."""
    return _vector(chance, 3)


def remote_question(chance: random.Random) -> str:
    """A query that is cut into parts that other countries answer, if their groups are large enough."""
    clause = chance.choice(("", "", " by (job)", " by (zone)"))
    sums = [_remote_sum(chance, clause) for _ in range(2)]
    kind = chance.randrange(6)
    if kind <= 2:
        return sums[0]
    if kind == 3:
        return f"{sums[0]} {chance.choice(('/', '+', '-', '>'))} {sums[1]}"
    if kind == 4:
        return f"{chance.choice(('max', 'avg', 'min'))}_over_time(({sums[0]})[5m:1m])"
    return f"histogram_quantile(0.{chance.randrange(1, 10)}, sum by (le) (rate(b_bucket[5m])))"


def _remote_sum(chance: random.Random, clause: str) -> str:
    matcher = chance.choice(("", "", '{job="train"}', '{zone=~"n.*"}'))
    inner = chance.choice((f"m{matcher}", f"rate(c_total{matcher}[5m])", f"avg_over_time(m{matcher}[3m] offset 1m)"))
    operator = chance.choice(("sum", "count", "avg", "stddev", "stdvar", "group"))
    return f"{operator}{clause} ({inner})" if operator != "sum" else f"sum{clause} ({inner} * 8)"


_MATCHERS = ("", "", "", '{job="train"}', '{model!="card"}', '{zone=~"n.*"}', '{model=~"a100|h100",job="serve"}')
_CLAUSES = ("", "", " by (job)", " by (model, zone)", " without (instance)", " by (zone)", " without (instance, model)")
_CLAUSES_ALIKE = ("", " by (job)", " by (zone, job)")
_RATES = ("rate", "increase", "irate", "delta", "deriv", "avg_over_time", "sum_over_time", "max_over_time")


def _selector(chance: random.Random, name: str) -> str:
    return name + chance.choice(_MATCHERS)


def _moment(chance: random.Random) -> str:
    return chance.choice(("", "", "", "", " offset 2m", " offset -1m", " @ 1500", " @ end()", " @ start() offset 30s"))


def _series(chance: random.Random) -> str:
    """Something that every hub computes alone."""
    kind = chance.randrange(9)
    gauge = _selector(chance, "m") + _moment(chance)
    if kind == 0:
        return gauge
    if kind in (1, 2):
        span = chance.choice(("2m", "5m", "90s"))
        return f"{chance.choice(_RATES)}({_selector(chance, 'c_total')}[{span}]{_moment(chance)})"
    if kind == 3:
        return f"{chance.choice(('abs', 'ceil', 'sqrt', 'sgn', 'timestamp'))}({gauge})"
    if kind == 4:
        return (
            f"({gauge} {chance.choice(('*', '/', '+', '-', '>', '<=', '> bool'))} {chance.choice(('2', '100', '0.3'))})"
        )
    if kind == 5:
        return f"max_over_time({_selector(chance, 'm')}[5m:{chance.choice(('', '1m', '45s'))}])"
    if kind == 6:
        return f"quantile_over_time(0.{chance.randrange(10)}, {_selector(chance, 'm')}[4m])"
    if kind == 7:
        return f"clamp_min({gauge}, {chance.choice(('0', '200'))})"
    return f"-{gauge}"


def _sums(chance: random.Random, clauses: Sequence[str] = _CLAUSES) -> str:
    """Something that hubs compute in parts."""
    kind = chance.randrange(8)
    clause = chance.choice(clauses)
    operator = chance.choice(("sum", "count", "avg", "group", "stddev", "stdvar", "min", "max"))
    if kind <= 4:
        return f"{operator}{clause} ({_series(chance)})"
    if kind == 5:
        return f"sum{clause} ({chance.choice(('sum', 'count'))} by (job, model, zone) ({_series(chance)}))"
    if kind == 6:
        return f"{operator}{clause} (sum by (job, zone, model) ({_series(chance)}))"
    return f"sum{clause} ({_series(chance)} * {chance.choice(('8', '0.001', '-3'))})"


def _vector(chance: random.Random, depth: int) -> str:
    kind = chance.randrange(18)
    if depth == 0 or kind <= 5:
        return _sums(chance)
    if kind == 6:
        alike = chance.choice(_CLAUSES_ALIKE)
        sides = [_sums(chance, (alike,)) for _ in range(2)]
        return f"{sides[0]} {chance.choice(('/', '+', '-', '*', '>', '== bool', 'and', 'or', 'unless'))} {sides[1]}"
    if kind == 7:
        inner = chance.choice(("b_bucket", 'b_bucket{job="train"}'))
        clause = chance.choice(("le", "le, job", "le, model, zone"))
        return f"histogram_quantile(0.{chance.randrange(1, 10)}, sum by ({clause}) (rate({inner}[5m])))"
    if kind == 8:
        function = chance.choice(("max", "avg", "min", "last", "stddev"))
        range_step = f"{chance.choice(('5m', '7m'))}:{chance.choice(('', '1m', '90s'))}"
        return f"{function}_over_time(({_vector(chance, depth - 1)})[{range_step}]{_moment(chance)})"
    if kind == 9:
        clause = chance.choice(_CLAUSES)
        return f"{chance.choice(('topk', 'bottomk'))}{clause} ({chance.randrange(1, 4)}, {_selector(chance, 'm')})"
    if kind == 10:
        return f"quantile{chance.choice(_CLAUSES)} (0.{chance.randrange(10)}, {_series(chance)})"
    if kind == 11:
        return f'count_values{chance.choice(("", " by (job)"))} ("v", floor({_selector(chance, "m")} / 300))'
    if kind == 12:
        absent = (
            'absent(m{job="none"})',
            'absent(m{zone="north"})',
            "absent_over_time(m{job='none'}[5m])",
            "absent(sum(m))",
        )
        return chance.choice(absent)
    if kind == 13:
        return f"{_sums(chance)} * scalar({_sums(chance, ('',))})"
    if kind == 14:
        return f"sum{chance.choice(_CLAUSES)} ({chance.choice(('h', 'rate(h[5m])'))})"
    if kind == 15:
        return f"histogram_quantile(0.9, {chance.choice(('sum', 'avg'))} by (job) (increase(h[4m])))"
    if kind == 16:
        return f"{_series(chance)} - on (instance) group_left () {_selector(chance, 'm')}"
    function = chance.choice(("abs", "clamp_max", "label_replace", "round", "sort_desc", "timestamp"))
    inner = _vector(chance, depth - 1)
    more = {"clamp_max": ", 500", "label_replace": ', "site", "$1-x", "job", "(.*)"', "round": ", 0.5"}.get(
        function, ""
    )
    return f"{function}({inner}{more})"


# Somebody abroad who asks hundreds of harmless questions and then solves equations, to learn of a few GPUs.
#
# What such an attacker could learn is known from the questions alone: GPUs that no disclosed sum distinguishes are a
# *block*, and every combination of sums has all of a block, with one factor, or none of it.


MARKS = {"model": ("a", "b", "c"), "zone": ("n", "s"), "type": ("1", "2", "3"), "status": ("up", "down")}

Query = Callable[[str], Sequence[SeriesResult]]


@dataclass(slots=True)
class Victim:
    """GPUs with marks that may be named abroad; each has a value of its own at the time `at_ms`."""

    store: MemoryMetrics
    marks: list[dict[str, str]]
    values: npt.NDArray[np.float64]
    at_ms: int


def victim(chance: random.Random, count: int = 60, at_ms: int = 3_600_000) -> Victim:
    marks = [{name: chance.choice(options) for name, options in MARKS.items()} for _ in range(count)]
    values = np.array([chance.uniform(0, 1000) for _ in range(count)])
    times = range(at_ms - 600_000, at_ms + 60_000, 15_000)
    series: dict[Labels, list[tuple[int, float]]] = {}
    for number, mark in enumerate(marks):
        one = labels({"__name__": "load", "device": f"gpu-{number}", "job": "gpus", **mark})
        series[one] = [(time_ms, float(values[number])) for time_ms in times]
    return Victim(MemoryMetrics(series), marks, values, at_ms)


@dataclass(slots=True)
class Learned:
    """`members[i]` says who is in the i-th disclosed sum, `sums[i]` what it was."""

    members: list[npt.NDArray[np.float64]] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)

    @property
    def matrix(self) -> npt.NDArray[np.float64]:
        return np.array(self.members)

    def fewest(self) -> int:
        """Of how many GPUs the smallest thing speaks that any combination of the disclosed sums can speak of."""
        learned_columns = self.matrix[:, self.matrix.any(axis=0)]
        _, sizes = np.unique(learned_columns, axis=1, return_counts=True)
        return int(sizes.min())


def attack(chance: random.Random, marks: Sequence[dict[str, str]], query: Query, questions: int) -> Learned:
    """Random matchers and groups; the attacker knows who has which marks."""
    learned = Learned()
    for _ in range(questions):
        named = chance.sample(sorted(MARKS), chance.randrange(0, 4))
        chosen = {name: set(chance.sample(MARKS[name], chance.randrange(1, len(MARKS[name]) + 1))) for name in named}
        negative = {name: chance.random() < 0.3 for name in named}
        parts = [f'{name}{"!~" if negative[name] else "=~"}"{"|".join(sorted(chosen[name]))}"' for name in named]
        by = chance.sample(sorted(MARKS), chance.randrange(0, 3))
        for one in query(f"sum by ({', '.join(by)}) (load{{{','.join(parts)}}})"):
            group = dict(one.labels)
            inside = [
                all((mark[name] in chosen[name]) is not negative[name] for name in named)
                and all(mark[name] == value for name, value in group.items())
                for mark in marks
            ]
            learned.members.append(np.array(inside, np.float64))
            learned.sums.append(one.values[0])
    return learned
