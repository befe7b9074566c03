"""Which trace is this, and what are its spans called? Ids that travel, and ids that follow from what they stand for.

A span that outlives a process has an id that anybody can compute from the trace and from what the span is about. So a
hub that was restarted, the agent of a task and the hub that runs a guest name the same parent without telling it.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import NamedTuple

TRACEPARENT = "traceparent"
SAMPLED = 1
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SPAN_BYTES, _TRACE_BYTES = 8, 16
_SHARES = 1 << 64


class TraceContext(NamedTuple):
    """A trace and the span in it that what follows belongs to. An empty `span_id`: it has no span yet."""

    trace_id: bytes
    span_id: bytes
    sampled: bool = True

    @property
    def header(self) -> str:
        """As W3C Trace Context writes it."""
        return f"00-{self.trace_id.hex()}-{self.span_id.hex()}-{SAMPLED if self.sampled else 0:02x}"

    def within(self, span_id: bytes) -> TraceContext:
        return TraceContext(self.trace_id, span_id, self.sampled)


def read_header(text: str) -> TraceContext | None:
    """None for what is no `traceparent`: then a trace begins anew, as the standard wants it."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        return None
    version, trace, span, flags, rest = found.groups()
    if version == "ff" or (version == "00" and rest) or not int(trace, 16) or not int(span, 16):
        return None
    return TraceContext(bytes.fromhex(trace), bytes.fromhex(span), bool(int(flags, 16) & SAMPLED))


def span_id_of(trace_id: bytes, *words: str | int) -> bytes:
    """The id of the span that these words name in a trace; the same wherever it is asked for."""
    return blake2b("\0".join(map(str, words)).encode(), key=trace_id, digest_size=_SPAN_BYTES).digest()


def trace_id_of(*words: str | int) -> bytes:
    """The trace of something that has a name of its own, e.g. a window of a pipeline."""
    return blake2b("\0".join(map(str, words)).encode(), digest_size=_TRACE_BYTES, person=b"harch-trace").digest()


def is_in_share(trace_id: bytes, share: float) -> bool:
    """Whether a trace is among the `share` (0 to 1) that is kept; whoever asks gets the same answer."""
    return share >= 1.0 or int.from_bytes(trace_id[:8], "big") < share * _SHARES


# What the spans of a workload are called after: hub, agent and other hubs compute them alike.


def start_id(trace_id: bytes, workload_id: str, attempt: int) -> bytes:
    return span_id_of(trace_id, "start", workload_id, attempt)


def run_id(trace_id: bytes, workload_id: str, attempt: int) -> bytes:
    return span_id_of(trace_id, "run", workload_id, attempt)


def lease_id(trace_id: bytes, workload_id: str, epoch: int) -> bytes:
    return span_id_of(trace_id, "lease", workload_id, epoch)


def task_id(trace_id: bytes, workload_id: str, attempt: int, rank: int) -> bytes:
    return span_id_of(trace_id, "task", workload_id, attempt, rank)
