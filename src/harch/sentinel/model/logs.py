"""What is a log line, and how is it asked for? Streams have labels; lines come and go in columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import numpy as np

from harch.sentinel.model.labels import Labels, Matcher
from harch.sentinel.model.selection import Codes, Ints

# Structured metadata with a meaning of its own: links to traces, and how bad it is.
TRACE_ID, SPAN_ID, LEVEL = "trace_id", "span_id", "level"
LEVELS = ("trace", "debug", "info", "warn", "error", "critical")


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Lines of one stream on their way in. Columns of equal length; `metadata` may be empty: no line has any.

    Times are nanoseconds since 1970, in any order. Metadata belongs to a line, not to its stream: it is found by
    filters and never by stream selectors.
    """

    labels: Labels
    times_ns: Sequence[int]
    bodies: Sequence[str]
    metadata: Sequence[Labels] = ()


@dataclass(frozen=True, slots=True)
class LinesWritten:
    """What became of a write: how many lines were taken, and why others were not."""

    lines: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)  # error code -> how many lines
    first_refusal: str = ""  # the sentence about the first one


class FilterKind(Enum):
    """The line filters of LogQL that a store can apply before anything else is looked at."""

    CONTAINS = "|="
    LACKS = "!="
    MATCHES = "|~"
    MATCHES_NOT = "!~"


@dataclass(frozen=True, slots=True)
class LineFilter:
    """`MATCHES` searches an RE2 expression anywhere in the line. `CONTAINS` of an empty text takes every line."""

    kind: FilterKind
    text: str


class LineOrder(Enum):
    ANY = "any"  # for counting: the store gives what is cheapest
    NEWEST_FIRST = "backward"
    OLDEST_FIRST = "forward"


@dataclass(frozen=True, slots=True)
class LogRequest:
    """Which lines? `start_ns` is included, `end_ns` is not. All filters must hold.

    `metadata` matchers look at the line's metadata. Columns that are not asked for may be left out of the answer.
    """

    matchers: tuple[Matcher, ...]
    start_ns: int
    end_ns: int
    filters: tuple[LineFilter, ...] = ()
    metadata: tuple[Matcher, ...] = ()
    order: LineOrder = LineOrder.NEWEST_FIRST
    limit: int | None = None  # lines; None: all of them
    with_bodies: bool = True
    with_metadata: bool = True
    scanned_bytes_max: int = 64 << 30  # raw bytes of lines that may be looked at; beyond it E0624


@dataclass(frozen=True, slots=True)
class LineChunk:
    """Lines of an answer, in the order that was asked for. Line i is of stream `streams[stream_at[i]]`.

    `texts` and `metadata` are empty where they were not asked for; `metadata` also where no line has any.
    `text_bytes` is always there: the length of each line in UTF-8.
    """

    streams: Sequence[Labels]
    stream_at: Codes
    times_ns: Ints
    text_bytes: Ints
    bodies: Sequence[str] = ()
    metadata: Sequence[Labels] = ()

    def __len__(self) -> int:
        return len(self.times_ns)


def chunk_of(lines: Sequence[tuple[Labels, int, str, Labels]]) -> LineChunk:
    """A chunk of (stream, time, text, metadata), as given. For small answers and tests."""
    streams: dict[Labels, int] = {}
    places = [streams.setdefault(line[0], len(streams)) for line in lines]
    return LineChunk(
        streams=tuple(streams),
        stream_at=np.array(places, np.int32),
        times_ns=np.array([line[1] for line in lines], np.int64),
        text_bytes=np.array([len(line[2].encode()) for line in lines], np.int64),
        bodies=[line[2] for line in lines],
        metadata=[line[3] for line in lines] if any(line[3] for line in lines) else (),
    )


class LogReadable(Protocol):
    """What LogQL asks of a store, for one tenant."""

    def scan(self, request: LogRequest, stopped: Callable[[], bool]) -> Iterator[LineChunk]:
        """Matching lines, chunk by chunk, at most `limit` in all; ends early once `stopped()` says so.

        Lines of the same time are in the order of their streams' labels, then of their arrival.
        """
        ...

    def streams(self, matchers: Sequence[Matcher], start_ns: int, end_ns: int) -> Sequence[Labels]:
        """Streams that have lines in the range, sorted."""
        ...


class LogStore(LogReadable, Protocol):
    """One tenant's lines."""

    def append(self, batches: Sequence[LogBatch]) -> LinesWritten:
        """Returning means that the lines that were taken are on disk."""
        ...

    def watch(self, callback: Callable[[Sequence[LogBatch]], None]) -> Callable[[], None]:
        """`heard` is called with what was taken, in the writer's thread, so it must be quick. Returns how to end it."""
        ...

    def delete(self, matchers: Sequence[Matcher], filters: Sequence[LineFilter], start_ns: int, end_ns: int) -> int:
        """Erases for good what matches: out of answers at once, off the disk with the next upkeep or `purge`.

        Returns how many lines that were.
        """
        ...

    def purge(self) -> None:
        """Takes erased lines off the disk now."""
        ...

    def maintain(self) -> None:
        """Writes what has become old enough into files, merges small ones, drops what retention lets go."""
        ...

    def facts(self) -> Mapping[str, object]:
        """Counts for people and dashboards: streams, lines, bytes raw and on disk, time range."""
        ...
