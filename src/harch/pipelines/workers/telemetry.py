"""What does a worker report? A status each second, alerts, and spans of a few windows from SENSE over THINK to ACT."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from typing import NamedTuple

import msgspec
from msgspec import Struct, field

from harch.base.clock import Clock, epoch_ns
from harch.base.rejection import Rejection
from harch.base.tracing.spans import Attributes, FinishedSpan, TraceContext, is_in_share, span_id_of, trace_id_of
from harch.pipelines.client.bucket import NatsBucket, Unreachable
from harch.pipelines.client.errors import NatsError
from harch.pipelines.engine.jetstream_admin import JetStreamAdmin
from harch.pipelines.think.counters import LATENCY_BOUNDS_MS, LatencyHistogram
from harch.pipelines.think.messages import decode_outputs
from harch.pipelines.wire.header import HEADER_BYTES, Buffer, first_time_ns, unpack_header
from harch.pipelines.workers.config import WorkerConfig
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


class StatusMeter(Struct):
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

    histogram: LatencyHistogram = field(default_factory=LatencyHistogram)
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


class WorkerAlert(Struct, frozen=True, kw_only=True):
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


# How long does a window take from SENSE over THINK to ACT? Spans of a few windows, by the hash of their name.
#
# Every worker computes from a window's name whether it is followed, and in which trace: the stages agree without a
# word,
# and nothing is added to the messages between them. Events and kernels are not touched: the question is asked once per
# window. Workers have no way to SENTINEL; they tell their hub, over a subject of their own.


SPANS_MAX = 256  # that wait to be exported; further ones are dropped, and counted
SPANS_PER_MESSAGE = 64
SERVICES = {"sense": "harchos-sense", "think": "harchos-think", "act": "harchos-act"}


class Made(NamedTuple):
    """A window that is followed, from the turn that closed it until it is delivered."""

    trace_id: bytes
    began_ns: int
    rows: int


class WindowSpans:
    """Of one worker. `publish` sends a message to the hub."""

    def __init__(self, config: WorkerConfig, clock: Clock, publish: Callable[[bytes], None]) -> None:
        self._share, self._clock, self._publish = config.trace_share, clock, publish
        self._words = ("window", config.site.hub, config.pipeline)
        self._about: Attributes = {"pipeline": config.pipeline, "worker": config.worker}
        self._thinks = config.route.thinks
        self._waiting: list[FinishedSpan] = []
        self.dropped = 0

    def trace_of(self, window_end_ns: int) -> bytes | None:
        """The trace of a window; None if it is not followed."""
        trace_id = trace_id_of(*self._words, window_end_ns)
        return trace_id if is_in_share(trace_id, self._share) else None

    def trace_in(self, message: Buffer) -> bytes | None:
        """Of the window that features or outputs are of."""
        return self.trace_of(first_time_ns(message))

    def now_ns(self) -> int:
        return epoch_ns(self._clock.now())

    def sensed(self, partition: int, made: Made) -> None:
        """Its features were delivered."""
        self._add(made.trace_id, "sense", partition, (), b"", made.began_ns, {"batch.rows": made.rows})

    def thought(
        self, partition: int, trace_id: bytes, began_ns: int, features: Buffer, outputs: list[bytes], error: str = ""
    ) -> None:
        """Its outputs were handed on, or it was given up as `error`."""
        header = unpack_header(features)
        about: Attributes = {
            "batch.rows": 0 if isinstance(header, Rejection) else header.n,
            "batch.outputs": len(outputs),
            "model.versions": _models(outputs),
        }
        self._add(trace_id, "think", partition, (), span_id_of(trace_id, "sense", partition), began_ns, about, error)

    def act_context(self, trace_id: bytes, partition: int, message: Buffer) -> TraceContext:
        """What commands of these outputs carry: the span that is exported when they are in the ledger."""
        return TraceContext(trace_id, span_id_of(trace_id, "act", partition, *_head(message)))

    def acted(self, partition: int, trace_id: bytes, message: Buffer, began_ns: int, *, commands: int) -> None:
        parent = span_id_of(trace_id, "think" if self._thinks else "sense", partition)
        self._add(trace_id, "act", partition, _head(message), parent, began_ns, {"act.commands": commands})

    def action_ended(self, context: TraceContext, began_ns: int, about: Attributes, error: str) -> None:
        """One command came to its end, however long after its window."""
        span_id = span_id_of(context.trace_id, "action", str(about["action.id"]))
        self._put(context.trace_id, span_id, context.span_id, "act.action", "act", began_ns, about, error)

    def flush(self) -> None:
        """Tells the hub, a bounded number at a time."""
        some, self._waiting = self._waiting[:SPANS_PER_MESSAGE], self._waiting[SPANS_PER_MESSAGE:]
        if some:
            self._publish(msgspec.msgpack.encode(some))

    def _add(
        self,
        trace_id: bytes,
        stage: str,
        partition: int,
        words: tuple[str, ...],
        parent: bytes,
        began_ns: int,
        about: Attributes,
        error: str = "",
    ) -> None:
        span_id = span_id_of(trace_id, stage, partition, *words)
        self._put(
            trace_id, span_id, parent, f"{stage}.window", stage, began_ns, {"partition": partition, **about}, error
        )

    def _put(
        self,
        trace_id: bytes,
        span_id: bytes,
        parent: bytes,
        name: str,
        stage: str,
        began_ns: int,
        about: Attributes,
        error: str,
    ) -> None:
        if len(self._waiting) >= SPANS_MAX:
            self.dropped += 1
            return
        self._waiting.append(
            FinishedSpan(
                trace_id=trace_id,
                span_id=span_id,
                parent_id=parent,
                name=name,
                start_ns=began_ns,
                end_ns=max(began_ns, self.now_ns()),
                error=error,
                attributes={**self._about, **about},
                service=SERVICES[stage],
            )
        )


def _models(outputs: list[bytes]) -> str:
    """Who decided: models with their versions."""
    found = (decode_outputs(message) for message in outputs)
    refs = [one[1].ref for one in found if not isinstance(one, Rejection)]
    return ",".join(sorted({f"{ref.model}@{ref.version}" for ref in refs}))


def _head(message: Buffer) -> tuple[str]:
    """Names one message of outputs: its head has its source, its number and its checksum."""
    return (bytes(memoryview(message)[:HEADER_BYTES]).hex(),)
