"""What does a table say about this moment? Replays a CSV file (also gzipped) by a mapping of its columns.

The row in force is the latest one that is not later than now: a replay under a simulated clock sees no future, unless
its operator says that later rows are a forecast.
"""

from __future__ import annotations

import asyncio
import csv
import gzip
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from harch.base.clock import Clock
from harch.carbon.signals.sites import SignalSite
from harch.carbon.signals.source import SourceFailed
from harch.carbon.units import quantity
from harch.carbon.values import Evidence, Quantity, Reading, Signal

ROWS_MAX = 2_000_000
AHEAD_ROWS_MAX = 500
Cells = tuple[float | None, ...]  # None: an empty cell. No value is not a bad value.
Rows = dict[str, tuple[list[datetime], list[Cells]]]


@dataclass(frozen=True, slots=True)
class CsvColumn:
    """Where the values of a signal are, and in which unit."""

    name: str
    unit: str


@dataclass(slots=True, kw_only=True)
class CsvFile:
    """A file that is read at the first question and again when it has changed. Rows without a place are for all."""

    name: str
    path: Path
    time_column: str
    columns: Mapping[Signal, CsvColumn]
    place_column: str = ""  # holds grid zones or hubs; empty: the table is about every place
    naive_is_utc: bool = False  # times without a zone are refused unless the operator says that they are UTC
    evidence: Evidence = Evidence.MEASURED
    forecast: bool = False  # rows about times to come are a forecast
    by_zone: bool = False
    _read: tuple[tuple[int, int], Rows] | None = None
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def provides(self) -> frozenset[Signal]:
        return frozenset(self.columns)

    async def fetch(self, site: SignalSite, clock: Clock) -> list[Reading[Quantity]]:
        async with self._reading:
            rows = await asyncio.to_thread(self._rows)
        times, values = rows.get(site.hub) or rows.get(site.grid_zone) or rows.get("") or ([], [])
        now = clock.now()
        at = bisect_right(times, now) - 1
        if at < 0:
            raise SourceFailed(self.name, f"no row for {site.hub} or {site.grid_zone} until now")
        rows_read = range(at, min(at + 1 + AHEAD_ROWS_MAX, len(times))) if self.forecast else (at,)
        return [
            Reading(
                signal=signal,
                value=quantity(signal, number, column.unit),
                at=times[row],
                source=self.name,
                evidence=self.evidence if row == at else Evidence.ESTIMATED,
                received_at=now,
                ahead=row > at,
            )
            for row in rows_read
            for (signal, column), number in zip(self.columns.items(), values[row], strict=True)
            if number is not None and (row == at or math.isfinite(number))
        ]

    def _rows(self) -> Rows:
        try:
            status = self.path.stat()
            version = (status.st_mtime_ns, status.st_size)
            if self._read is None or self._read[0] != version:
                self._read = (version, self._parse())
        except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
            raise SourceFailed(self.name, f"{self.path.name} cannot be read ({type(error).__name__})") from error
        return self._read[1]

    def _parse(self) -> Rows:
        found: dict[str, list[tuple[datetime, Cells]]] = {}
        opener = gzip.open if self.path.suffix == ".gz" else open
        with opener(self.path, "rt", encoding="utf-8", newline="") as file:
            table = csv.reader(file)
            for place, moment, numbers in self._records(table):
                found.setdefault(place, []).append((moment, numbers))
        rows: Rows = {}
        for place, entries in found.items():
            entries.sort(key=lambda entry: entry[0])
            rows[place] = ([moment for moment, _ in entries], [numbers for _, numbers in entries])
        return rows

    def _records(self, table: Iterator[list[str]]) -> Iterator[tuple[str, datetime, Cells]]:
        header = next(table, [])
        wanted = [self.time_column, *(column.name for column in self.columns.values())]
        if self.place_column:
            wanted.append(self.place_column)
        if missing := [name for name in wanted if name not in header]:
            raise SourceFailed(self.name, f"{self.path.name} has no column {', '.join(missing)}")
        time_at = header.index(self.time_column)
        place_at = header.index(self.place_column) if self.place_column else None
        value_at = [header.index(column.name) for column in self.columns.values()]
        for number, row in enumerate(table):
            if number >= ROWS_MAX:
                raise SourceFailed(self.name, f"{self.path.name} has more than {ROWS_MAX:,} rows")
            if len(row) < len(header):
                continue  # the last line of a file that is being written
            place = "" if place_at is None else row[place_at]
            yield place, self._moment(row[time_at], number + 2), tuple(_number(row[at]) for at in value_at)

    def _moment(self, text: str, line: int) -> datetime:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise SourceFailed(self.name, f"{self.path.name}, line {line}: `{text[:40]}` is not a time") from error
        if moment.tzinfo is None:
            if not self.naive_is_utc:
                raise SourceFailed(
                    self.name,
                    f"{self.path.name}, line {line}: the time has no time zone",
                    hint='set `naive_times = "utc"` if the column is in UTC',
                )
            moment = moment.replace(tzinfo=UTC)
        return moment.astimezone(UTC)


def _number(text: str) -> float | None:
    if not text.strip():
        return None
    try:
        return float(text)
    except ValueError:
        return math.nan  # shown as a rejection like any other value that is no number
