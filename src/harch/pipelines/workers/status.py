"""How does a worker do? A small value that every worker writes to the status bucket each second, for `top`, metrics and
the autoscaler; and how to read those of all workers."""

from __future__ import annotations

import os
import resource

import msgspec
from msgspec import Struct, field

from harch.pipelines.client.errors import NatsError
from harch.pipelines.engine.jetstream_api import JetStreamAdmin
from harch.pipelines.think.counters import LATENCY_BOUNDS_MS, Histogram
from harch.pipelines.workers.bucket import NatsBucket, Unreachable
from harch.pipelines.workers.names import PipelineNames

_PAGE = os.sysconf("SC_PAGE_SIZE")


class WorkerStatus(Struct, frozen=True, kw_only=True):
    """One worker, as of `at_ms`. Counters only grow while the process lives; `incarnation` changes when it starts anew.

    `lag`: what waits for this stage as the worker sees it. `busy`: its share of one core since the last status.
    """

    worker: str
    stage: str
    pipeline: str
    at_ms: int
    incarnation: str
    pid: int  # as it sees itself: in a sandbox not what the machine calls it
    health: str  # `starting`, `ok`, `trouble`, `draining`
    trouble: str = ""
    partitions: tuple[int, ...] = ()
    counters: dict[str, int] = {}
    gauges: dict[str, float] = {}
    lag: float = 0.0
    rate: float = 0.0  # events or rows per second
    drain_rate: float = 0.0  # of what `lag` counts, per second
    busy: float = 0.0
    memory_bytes: int = 0
    latency_ms: dict[str, float] = {}  # p50, p99, max of what the stage measures
    latency_counts: tuple[int, ...] = ()  # by the bounds of LATENCY_BOUNDS_MS
    endpoints: dict[str, str] = {}  # addresses that it serves, by name
    details: dict[str, str] = {}


class Meter(Struct):
    """Turns totals into rates and shares between two looks."""

    at_s: float = 0.0
    cpu_s: float = 0.0
    done: float = 0.0
    drained: float = 0.0
    busy: float = 0.0
    rate: float = 0.0
    drain_rate: float = 0.0

    def look(self, now_s: float, done: float, drained: float) -> None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = usage.ru_utime + usage.ru_stime
        passed_s = now_s - self.at_s
        if self.at_s and passed_s > 0:
            self.busy = min(1.0, max(0.0, (cpu_s - self.cpu_s) / passed_s))
            self.rate = max(0.0, (done - self.done) / passed_s)
            self.drain_rate = max(0.0, (drained - self.drained) / passed_s)
        self.at_s, self.cpu_s, self.done, self.drained = now_s, cpu_s, done, drained


class Latency(Struct):
    """A histogram with its largest value."""

    histogram: Histogram = field(default_factory=Histogram)
    max_ms: float = 0.0

    def add(self, latency_ms: float) -> None:
        self.histogram.add(latency_ms)
        self.max_ms = max(self.max_ms, latency_ms)

    def join(self, other: Latency) -> None:
        """Adds what another one has measured."""
        both = zip(self.histogram.counts, other.histogram.counts, strict=True)
        self.histogram.counts = [mine + theirs for mine, theirs in both]
        self.max_ms = max(self.max_ms, other.max_ms)

    def summary(self) -> dict[str, float]:
        last = LATENCY_BOUNDS_MS[-1]
        return {
            "p50": min(last, self.histogram.quantile_ms(0.5)),
            "p99": min(last, self.histogram.quantile_ms(0.99)),
            "max": self.max_ms,
        }


class Alert(Struct, frozen=True, kw_only=True):
    """Something that a person should hear of, as it goes over the subject of alerts."""

    pipeline: str
    worker: str
    stage: str
    rule: str
    detail: str
    count: int
    at_ms: int


def memory_bytes() -> int:
    """What this process holds in memory."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def read_statuses(admin: JetStreamAdmin, names: PipelineNames) -> list[WorkerStatus]:
    """All workers that said something lately, by name. Give it the controller's client. Raises NatsError."""
    stream = f"KV_{names.status_bucket}"
    info = await admin.call(f"STREAM.INFO.{stream}", {"subjects_filter": f"$KV.{names.status_bucket}.>"})
    subjects = sorted((info.get("state") or {}).get("subjects") or {})
    bucket = NatsBucket(admin.client, names.status_bucket)
    found = []
    for subject in subjects:
        try:
            entry = await bucket.get(subject.removeprefix(f"$KV.{names.status_bucket}."))
        except Unreachable as error:
            raise NatsError(str(error)) from error
        if entry is not None:
            found.append(msgspec.json.decode(entry.value, type=WorkerStatus))
    return found
