"""How is a file played again? CSV or NDJSON, line by line, in its own time or as fast as it goes.

Batches are cut by lines and by the time of events only, never by the clock, so the same file gives the same batches
with the same numbers: after a restart it is read from its start, and what the checkpoint has is passed over. A line
that is too long or cannot be read costs that line. A quoted CSV field must not contain a line break.
"""

from __future__ import annotations

import asyncio
import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import numpy as np

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.pipelines.sense.edge import EdgeBatcher
from harch.pipelines.sense.intake import Intake
from harch.pipelines.sense.quarantine import Quarantined
from harch.pipelines.sense.settings import NS_PER_S, FileSource
from harch.pipelines.wire.columns import EventSchema
from harch.pipelines.wire.header import BatchHeader, unpack_header
from harch.pipelines.wire.rows import ROW_BYTES_MAX, ParsedRows, RowReader

CHUNK_LINES = 5_000
PACED_CHUNK_LINES = 200  # smaller, so that the pace is kept


class FileInput:
    """One file, once. `after` says which batch of each source the stage already has."""

    def __init__(
        self,
        settings: FileSource,
        schema: EventSchema,
        edge: EdgeBatcher,
        reader: RowReader,
        intake: Intake,
        clock: Clock,
        *,
        after: Mapping[int, int] | None = None,
    ) -> None:
        self._settings = settings
        self._edge = edge
        self._reader = reader
        self._intake = intake
        self._clock = clock
        self._after = dict(after or {})
        self._is_new = not any(
            self._after.values()
        )  # from the first batch on that the stage does not have, the pace is kept
        rows = settings.rows
        self._numeric = {rows.time, rows.flag, *(rows.values.get(column.name, column.name) for column in schema.values)}
        self._began: tuple[int, float] | None = None  # event time and monotonic time of the first event

    async def run(self) -> None:
        chunks = self._chunks()
        while (rows := await asyncio.to_thread(next, chunks, None)) is not None:
            await self._pace(rows)
            # What a file says is as old as it is: only what lies ahead of the real clock is not believed.
            prepared = self._edge.prepare(rows, round(self._clock.now().timestamp() * NS_PER_S))
            self._edge.commit(prepared, self._intake.quarantine)
            for message in prepared.messages:
                header = unpack_header(message)
                if isinstance(header, BatchHeader) and header.seq > self._after.get(header.source, 0):
                    self._is_new = True
                    await self._intake.put(message)
        await self._intake.put(self._edge.watermark_only(is_end=True))

    def _chunks(self) -> Iterator[ParsedRows]:
        size = PACED_CHUNK_LINES if self._settings.speed else CHUNK_LINES
        try:
            with Path(self._settings.path).open("rb") as file:
                lines = self._lines(file)
                names = self._names(lines) if self._settings.format == "csv" else []
                while chunk := [line for _, line in zip(range(size), lines, strict=False)]:
                    yield self._csv(names, chunk) if names else self._reader.ndjson(b"\n".join(chunk))
        except OSError as error:
            raise HarchError(
                "E0202",
                f"{self._settings.path}: {error.strerror or error}",
                hint=f"fix source `{self._settings.name}`",
            ) from error

    def _lines(self, file: IO[bytes]) -> Iterator[bytes]:
        while line := file.readline(ROW_BYTES_MAX + 1):
            if len(line) > ROW_BYTES_MAX and not line.endswith(b"\n"):
                size = len(line)
                while part := file.readline(ROW_BYTES_MAX):
                    size += len(part)
                    if part.endswith(b"\n"):
                        break
                self._set_aside("too_large", f"a line of {size} bytes; at most {ROW_BYTES_MAX}", line)
            elif line.strip():
                yield line.rstrip(b"\r\n")

    def _names(self, lines: Iterator[bytes]) -> list[str]:
        head = next(lines, b"")
        names = self._fields(head)
        missing = [name for name in (self._settings.rows.time, self._settings.rows.device) if name not in (names or [])]
        if names is None or missing:
            raise HarchError(
                "E0202",
                f"{self._settings.path}: the header lacks column {' and column '.join(missing)}",
                hint="the first line of a CSV file is its header; `rows` maps names",
            )
        return names

    def _csv(self, names: list[str], lines: list[bytes]) -> ParsedRows:
        return self._reader.mappings(row for line in lines if (row := self._row(names, line)) is not None)

    def _row(self, names: list[str], line: bytes) -> Mapping[str, object] | None:
        fields = self._fields(line)
        if fields is None or len(fields) != len(names):
            self._set_aside("unreadable", f"a line of {len(fields or ())} fields in place of {len(names)}", line)
            return None
        pairs = zip(names, fields, strict=True)
        return {name: _number(text) if name in self._numeric else text for name, text in pairs if text}

    def _fields(self, line: bytes) -> list[str] | None:
        try:
            return next(csv.reader([line.decode("utf-8")]), None)
        except (csv.Error, UnicodeDecodeError):
            return None

    async def _pace(self, rows: ParsedRows) -> None:
        if not self._settings.speed or not rows.n or not self._is_new:
            return
        newest_ns = int(np.max(rows.times_ns))
        if self._began is None:
            self._began = (int(np.min(rows.times_ns)), self._clock.monotonic_s())
        due_s = self._began[1] + (newest_ns - self._began[0]) / NS_PER_S / self._settings.speed
        if (wait_s := due_s - self._clock.monotonic_s()) > 0:
            await self._clock.sleep(wait_s)

    def _set_aside(self, reason: str, detail: str, line: bytes) -> None:
        excerpt = line[:120].decode("utf-8", "replace")
        self._intake.quarantine.add(Quarantined(reason, detail, self._edge.source, 0, excerpt))


def _number(text: str) -> object:
    """A number if it is one; else the text, which is judged later."""
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text
