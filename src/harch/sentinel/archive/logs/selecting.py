"""Which lines of a source are asked for? Streams first, then times, then texts: the dearest question comes last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from harch.base.errors import HarchError
from harch.sentinel.archive.grams import grams_in
from harch.sentinel.archive.literals import required_literals
from harch.sentinel.archive.logs.rows import REST, LogRows, rest_labels
from harch.sentinel.archive.texts import Mask, Texts, passing, sizes_of
from harch.sentinel.model.labels import Labels
from harch.sentinel.model.logs import SPAN_ID, TRACE_ID, FilterKind, LineFilter
from harch.sentinel.model.matchers import Matcher, MatchKind
from harch.sentinel.model.selection import Codes, Ints
from harch.sentinel.store.bytes_kernels import Array


class Source(Protocol):
    """Lines that are looked at together: a group of rows of a file, or a piece of memory. Columns come when asked."""

    @property
    def streams(self) -> Sequence[Labels]: ...

    def stream_at(self) -> Codes: ...

    def times(self) -> Ints: ...

    def sizes(self) -> Ints: ...

    def texts(self) -> Texts: ...

    def more(self, name: str) -> Texts | None:
        """None: every line is empty there."""
        ...


class MemorySource:
    def __init__(self, rows: LogRows) -> None:
        self._rows = rows

    @property
    def streams(self) -> Sequence[Labels]:
        return self._rows.streams

    def stream_at(self) -> Codes:
        return self._rows.stream_at

    def times(self) -> Ints:
        return self._rows.times

    def sizes(self) -> Ints:
        return sizes_of(self._rows.texts)

    def texts(self) -> Texts:
        return self._rows.texts

    def more(self, name: str) -> Texts | None:
        return self._rows.extras.get(name)


@dataclass(slots=True)
class Budget:
    """Bytes of lines that a query may still look at."""

    bytes_max: int
    used: int = 0

    def spend(self, count: int) -> None:
        self.used += count
        if self.used > self.bytes_max:
            raise HarchError("E0624", f"the query looks at more than {self.bytes_max} bytes of log lines")


@dataclass(slots=True)
class Wanted:
    """What a line must be, prepared once for a whole query."""

    matchers: tuple[Matcher, ...]
    filters: tuple[LineFilter, ...]
    metadata: tuple[Matcher, ...] = ()
    grams: Array = field(init=False)
    _known: dict[Labels, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.filters = tuple(one for one in self.filters if one.text or one.kind is not FilterKind.CONTAINS)
        self.grams = grams_in(_literals(self.filters, self.metadata))

    def streams(self, streams: Sequence[Labels]) -> Mask:
        """Which of these streams the matchers take; each is looked at once."""
        if not self.matchers:
            return np.ones(len(streams), np.bool_)
        return np.array([self._takes(stream) for stream in streams], np.bool_)

    def _takes(self, stream: Labels) -> bool:
        found = self._known.get(stream)
        if found is None:
            values = dict(stream)
            found = all(matcher.matches(values.get(matcher.name, "")) for matcher in self.matchers)
            self._known[stream] = found
        return found


def _literals(filters: Sequence[LineFilter], metadata: Sequence[Matcher]) -> list[str]:
    """Texts that every wanted line has, in itself or in its metadata."""
    found: list[str] = []
    for one in filters:
        if one.kind is FilterKind.CONTAINS:
            found.append(one.text)
        elif one.kind is FilterKind.MATCHES:
            found += required_literals(one.text)
    for matcher in metadata:
        is_plain = matcher.value.isascii() and matcher.value.isprintable() and not set('"\\') & set(matcher.value)
        if matcher.kind is MatchKind.EQUAL and is_plain:
            found.append(matcher.value)
    return found


def places_of(source: Source, wanted: Wanted, start_ns: int, end_ns: int, budget: Budget | None) -> Ints:
    """The rows of a source that are asked for, in their order. Raises E0624 once the budget is spent."""
    chosen = wanted.streams(source.streams)
    if not chosen.any():
        return np.empty(0, np.int64)
    times = source.times()
    mask = (times >= start_ns) & (times < end_ns)
    if not chosen.all():
        mask &= chosen[source.stream_at()]
    places: Ints = np.flatnonzero(mask)
    if not len(places):
        return places
    if wanted.filters:
        texts = source.texts()
        if budget is not None:
            sizes = sizes_of(texts)
            budget.spend(int(sizes.sum() if len(places) == len(sizes) else sizes[places].sum()))
        if len(places) < len(texts):
            texts = texts.take(places)
        for number, one in enumerate(wanted.filters):
            kept = passing(texts, one)
            if not kept.all():
                places = places[kept]
                if number + 1 < len(wanted.filters):
                    texts = texts.filter(kept)
    for matcher in wanted.metadata:
        if len(places):
            places = places[_matching(source, matcher, places)]
    return places


def _matching(source: Source, matcher: Matcher, places: Ints) -> Mask:
    """Each different value is looked at once."""
    column = source.more(matcher.name if matcher.name in (TRACE_ID, SPAN_ID) else REST)
    if column is None:
        return np.full(len(places), matcher.matches(""), np.bool_)
    coded = column.take(places).dictionary_encode()
    values: list[str] = coded.dictionary.to_pylist()
    if matcher.name not in (TRACE_ID, SPAN_ID):
        values = [dict(rest_labels(value)).get(matcher.name, "") for value in values]
    taken = np.array([matcher.matches(value) for value in values], np.bool_)
    found: Mask = taken[coded.indices.to_numpy()]
    return found


@dataclass(frozen=True, slots=True)
class Found:
    """Lines that were asked for, of one source."""

    order: tuple[int, int]  # by arrival, among those of one stream and time
    streams: Sequence[Labels]
    stream_at: Codes
    times: Ints
    sizes: Ints
    texts: Texts | None
    extras: Mapping[str, Texts]

    def __len__(self) -> int:
        return len(self.times)


def found_in(source: Source, places: Ints, order: tuple[int, int], extras: Sequence[str], *, with_texts: bool) -> Found:
    """The columns of these rows that were asked for."""
    times = source.times()
    all_of_them = len(places) == len(times)

    def of(column: Texts) -> Texts:
        return column if all_of_them else column.take(places)

    if with_texts:
        texts = of(source.texts())
        sizes = sizes_of(texts)
    else:
        texts, sizes = None, source.sizes() if all_of_them else source.sizes()[places]
    columns = ((name, source.more(name)) for name in extras)
    return Found(
        order,
        source.streams,
        source.stream_at() if all_of_them else source.stream_at()[places],
        times if all_of_them else times[places],
        sizes,
        texts,
        {name: of(column) for name, column in columns if column is not None},
    )
