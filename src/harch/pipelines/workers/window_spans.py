"""How long does a window take from SENSE over THINK to ACT? Spans of a few windows, by the hash of their name.

Every worker computes from a window's name whether it is followed, and in which trace: the stages agree without a word,
and nothing is added to the messages between them. Events and kernels are not touched: the question is asked once per
window. Workers have no way to SENTINEL; they tell their hub, over a subject of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from harch.base.clock import Clock, epoch_ns
from harch.base.rejection import Rejection
from harch.base.tracing.context import TraceContext, is_in_share, span_id_of, trace_id_of
from harch.base.tracing.span import Attributes, FinishedSpan
from harch.pipelines.think.messages import decode_outputs
from harch.pipelines.wire.checksum import Buffer
from harch.pipelines.wire.header import HEADER_BYTES, first_time_ns, unpack_header
from harch.pipelines.workers.config import WorkerConfig

SPANS_MAX = 256  # that wait to be told; further ones are dropped, and counted
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
        """What commands of these outputs carry: the span that is told when they are in the ledger."""
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
