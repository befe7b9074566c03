"""How do an agent's own lines, and the output of its tasks, reach the SENTINEL of its hub?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from harch.base.config import SENTINEL_SWITCH
from harch.execution.spool import read_spool
from harch.execution.taskdir import OutputRecord, key_of, read_output_record
from harch.sentinel.log_shipper.tail import OutputSource, OutputTail
from harch.sentinel.model.labels import Labels, labels
from harch.sentinel.node.sensors import SensorReading, series

if TYPE_CHECKING:
    from harch.execution.admission import AgentConfig
    from harch.sentinel.log_shipper.shipper import Shipper

EVERY_S = 5.0


def ship_agent_logs(config: AgentConfig, url: str) -> Shipper | None:
    """Starts it; `close` ends it. `url` is where SENTINEL takes samples of nodes. None where telemetry is off, or the
    packages for it are missing."""
    if os.environ.get(SENTINEL_SWITCH, "").lower() == "off":
        return None
    try:
        from harch.sentinel.log_shipper.shipper import PATH, SPOOL_BYTES_MAX, Shipper
    except ImportError:
        return None
    from harch.base.clock import SystemClock
    from harch.base.tracing.exporter import HttpPost
    from harch.base.tracing.tracer import TraceFilter
    from harch.sentinel.log_shipper.records import ShippingHandler
    from harch.sentinel.node.spool import RequestSpool

    folder = config.state_dir / "own-logs"
    outputs = TaskOutputs(config.state_dir, config.agent_id)
    handler = ShippingHandler()
    handler.addFilter(TraceFilter())
    shipper = Shipper(
        labels({"job": "harchos-agent", "agent": config.agent_id}),
        handler,
        RequestSpool(folder, SPOOL_BYTES_MAX),
        HttpPost(url, lambda: config.api_key, path=PATH),
        SystemClock(),
        OutputTail(folder / "told.json", outputs.sources),
        every_s=EVERY_S,
    )
    shipper.start()
    return shipper


class ShipperMetrics:
    """What became of lines, as readings of the node."""

    def __init__(self, shipper: Shipper) -> None:
        self._shipper = shipper

    def read(self) -> Iterator[SensorReading]:
        counts = self._shipper.counts
        yield SensorReading(series("harchos_agent_log_lines_sent_total"), float(counts.sent))
        yield SensorReading(series("harchos_agent_log_lines_dropped_total"), float(counts.dropped + counts.refused))
        yield SensorReading(series("harchos_agent_log_lost_bytes_total"), float(counts.lost_bytes))


class TaskOutputs:
    """The output of running tasks, and of those that ended since the last look. Folders that have not changed cost two
    calls of the kernel each."""

    def __init__(self, state_dir: Path, agent_id: str) -> None:
        self._state_dir, self._agent_id = state_dir, agent_id
        self._about: dict[str, OutputRecord | None] = {}
        self._seen: dict[str, tuple[int, str, int]] = {}  # folder's time, last segment, its size

    def sources(self) -> Iterator[OutputSource]:
        names = set()
        for parent, ended in (("tasks", False), ("logs", True)):
            for name in _names(self._state_dir / parent):
                folder = self._state_dir / parent / name if ended else self._state_dir / parent / name / "log"
                about = self._about_of(name, folder)
                names.add(name)
                if about is not None:
                    is_over = ended or (folder.parent / "ended.json").exists()
                    yield self._source(name, folder, about, ended=is_over)
        for known in (self._about, self._seen):
            for gone in [name for name in known if name not in names]:
                known.pop(gone, None)

    def _about_of(self, name: str, folder: Path) -> OutputRecord | None:
        if name not in self._about:
            found = read_output_record(folder)
            if found is None and not folder.exists():
                return None  # it is being made, or moved
            self._about[name] = found
        return self._about[name]

    def _source(self, name: str, folder: Path, about: OutputRecord, *, ended: bool) -> OutputSource:
        key = key_of(name)
        more = {"workload_id": about.workload}
        if key is not None:
            more |= {"attempt": str(key.attempt), "rank": str(key.rank)}
        if about.trace:
            more["trace_id"] = about.trace.split("-")[1]
        return OutputSource(
            name,
            about.tenant,
            _stream(about, self._agent_id),
            self._reader(name, str(folder)),
            ended,
            labels(more),
        )

    def _reader(self, name: str, folder: str) -> Callable[[int, int], tuple[int, bytes, int, int]]:
        def read(offset: int, bytes_max: int) -> tuple[int, bytes, int, int]:
            time_ns = os.stat(folder).st_mtime_ns
            known = self._seen.get(name)
            if known is not None and known[0] == time_ns and known[2] == offset:
                segment = os.stat(known[1])
                if segment.st_size + int(os.path.basename(known[1])) == offset:
                    return offset, b"", offset, segment.st_mtime_ns
            begin, data, end = read_spool(folder, offset, bytes_max)
            if end < offset:
                raise FileNotFoundError(folder)
            segments = sorted(one for one in os.listdir(folder) if one.isdecimal())
            if not segments:
                return offset, b"", offset, time_ns
            last = os.path.join(folder, segments[-1])
            self._seen[name] = (time_ns, last, end)
            return begin, data, end, os.stat(last).st_mtime_ns

        return read


def _stream(about: OutputRecord, agent_id: str) -> Labels:
    return labels({"job": "harchos-task", "agent": agent_id, "node": about.node, "workload": about.name})


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
