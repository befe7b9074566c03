"""What is known of the lines that are worked on?

One page: bodies, and labels in columns of three layers, of those that are needed at all.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress

import numpy as np
import numpy.typing as npt

from harch.base.errors import HarchError
from harch.sentinel.model.labels import Labels
from harch.sentinel.model.logs import LineChunk
from harch.sentinel.model.selection import Codes, Ints

ERROR, ERROR_DETAILS = "__error__", "__error_details__"
EXTRACTED = "_extracted"  # put behind a name that the stream has already


class LabelsRead:
    """The names of labels that a pipeline and its answer look at."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset({*names, ERROR, ERROR_DETAILS})
        self._known: dict[str, bool] = {}

    def __contains__(self, name: object, /) -> bool:
        return name in self.names

    def may_use(self, name: str) -> bool:
        """Whether a field of this name, or anything below it, may become a label that is wanted."""
        known = self._known.get(name)
        if known is None:
            below = f"{name}_"  # also where the name gets another ending
            known = not name or name in self.names or any(one.startswith(below) for one in self.names)
            if len(self._known) < _KNOWN_MAX:
                self._known[name] = known
        return known


_KNOWN_MAX = 10_000


# What is known of the lines that are worked on? One page: texts, and labels in columns of three layers.
#
# A line's labels are those of its stream, then its metadata, then what the pipeline extracted or wrote. Later layers
# hide
# earlier ones. Labels of streams are kept once a stream; the others are lists of one value a line: None means that the
# layer says nothing, "" that the label is gone.


# A column has a place for every line of its page, whoever has the label, so both numbers have a limit.
PAGE_LINES = 2_048
COLUMNS_MAX = 5_000

Layer = dict[str, list[str | None]]
Bools = npt.NDArray[np.bool_]


def pages(chunk: LineChunk, wanted: LabelsRead | None, *, whole: bool) -> Iterator[LinePage]:
    """The lines of a chunk on pages; on one page if they are only counted."""
    size = len(chunk) if whole else PAGE_LINES
    for begin in range(0, len(chunk), max(size, 1)):
        part = slice(begin, begin + size)
        yield LinePage(
            LineChunk(
                chunk.streams,
                chunk.stream_at[part],
                chunk.times_ns[part],
                chunk.text_bytes[part],
                chunk.bodies[part],
                chunk.metadata[part],
            ),
            wanted,
        )


class LinePage:
    """Lines on their way through a pipeline. Stages change it in place."""

    def __init__(self, chunk: LineChunk, wanted: LabelsRead | None = None) -> None:
        self.streams: Sequence[Mapping[str, str]] = [dict(labels) for labels in chunk.streams]
        self.stream_at: Codes = chunk.stream_at
        self.times_ns: Ints = chunk.times_ns
        self.text_bytes: Ints = chunk.text_bytes
        self.bodies: list[str] = list(chunk.bodies)
        self.metadata: Layer = {}
        self.parsed: Layer = {}
        self.bodies_changed = False
        self._codes: list[int] | None = None
        if len(chunk.metadata):
            self._put_metadata(chunk.metadata, wanted)

    def __len__(self) -> int:
        return len(self.times_ns)

    @property
    def codes(self) -> list[int]:
        """The stream of every line, as a list: single places of arrays are slow to look at."""
        if self._codes is None:
            self._codes = self.stream_at.tolist()
        return self._codes

    def _put_metadata(self, metadata: Sequence[Labels], wanted: LabelsRead | None) -> None:
        codes = self.codes
        for place, labels in enumerate(metadata):
            for name, value in labels:
                if wanted is None or wanted.may_use(name):
                    taken = name in self.streams[codes[place]]
                    self.put(self.metadata, name + EXTRACTED if taken else name, place, value)

    def put(self, layer: Layer, name: str, place: int, value: str) -> None:
        column = layer.get(name)
        if column is None:
            if len(layer) >= COLUMNS_MAX:
                raise HarchError(
                    "E0687",
                    f"the lines have more than {COLUMNS_MAX} different labels",
                    hint='select the fields you need: | json a="b", or | logfmt a',
                )
            column = layer[name] = [None] * len(self)
        column[place] = value

    def extract(self, name: str, place: int, value: str, wanted: LabelsRead | None) -> None:
        """A label out of the line. A label of the stream is not hidden by it: the new one gets another name."""
        if name in self.streams[self.codes[place]]:
            name += EXTRACTED
        if wanted is None or name in wanted:
            self.put(self.parsed, name, place, value)

    def fail(self, place: int, kind: str, details: str) -> None:
        """Notes what went wrong with a line; the first mistake stays."""
        if not self.value(ERROR, place):
            self.put(self.parsed, ERROR, place, kind)
            self.put(self.parsed, ERROR_DETAILS, place, details)

    def value(self, name: str, place: int) -> str:
        """A label of one line; empty where there is none."""
        for layer in (self.parsed, self.metadata):
            column = layer.get(name)
            found = None if column is None else column[place]
            if found is not None:
                return found
        return self.streams[self.codes[place]].get(name, "")

    def values(self, name: str) -> list[str]:
        """A label of every line."""
        by_stream = [labels.get(name, "") for labels in self.streams]
        found: list[str] = [by_stream[code] for code in self.codes]
        for layer in (self.metadata, self.parsed):
            column = layer.get(name)
            if column is not None:
                found = [below if above is None else above for above, below in zip(column, found, strict=True)]
        return found

    def has_errors(self) -> bool:
        return any(self.parsed.get(ERROR, ()))

    def labels_at(self, place: int) -> dict[str, str]:
        """All labels of one line, for templates."""
        labels = dict(self.streams[self.codes[place]])
        for layer in (self.metadata, self.parsed):
            for name, column in layer.items():
                if (value := column[place]) is not None:
                    labels[name] = value
        return {name: value for name, value in labels.items() if value}

    def keep_where(self, kept: Sequence[bool] | Bools) -> None:
        """Drops all other lines."""
        mask = np.asarray(kept, np.bool_)
        if mask.all():
            return
        chosen = mask.tolist()
        self.stream_at, self.times_ns = self.stream_at[mask], self.times_ns[mask]
        self.text_bytes, self._codes = self.text_bytes[mask], None
        self.bodies = list(compress(self.bodies, chosen)) if self.bodies else []
        for layer in (self.metadata, self.parsed):
            for name, column in layer.items():
                layer[name] = list(compress(column, chosen))

    def by_stream(self, decide: Callable[[Mapping[str, str]], bool]) -> Bools:
        """A decision for every line that only its stream's labels matter to."""
        return np.array([decide(labels) for labels in self.streams], np.bool_)[self.stream_at]

    def is_layered(self, names: Iterable[str]) -> bool:
        """Whether any of these labels differs between lines of one stream."""
        return any(name in self.parsed or name in self.metadata for name in names)

    def names(self) -> set[str]:
        """All labels that any line may have."""
        return {name for labels in self.streams for name in labels} | set(self.metadata) | set(self.parsed)

    def forget(self, name: str) -> None:
        """Takes a label away from all lines."""
        self.metadata.pop(name, None)
        self.parsed.pop(name, None)
        if any(name in labels for labels in self.streams):
            self.parsed[name] = [""] * len(self)
