"""What is left of a piece of work when it is over? A span: ids, a name, two times, figures; never what people wrote.

Attributes hold ids, sizes, states and figures. Commands, environments and secrets have no place in a span.
"""

from __future__ import annotations

from msgspec import Struct

Value = str | bool | int | float
Attributes = dict[str, Value]

INTERNAL, SERVER, CLIENT, PRODUCER, CONSUMER = 1, 2, 3, 4, 5  # as OTLP numbers them
EVENTS_MAX = 64  # per span; what comes later is counted in `events_dropped`
ATTRIBUTES_MAX = 64
TEXT_MAX = 256


class SpanEvent(Struct, frozen=True, array_like=True, gc=False):
    at_ns: int
    name: str
    attributes: Attributes = {}


class FinishedSpan(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """`error`: None if nothing was said, empty if it went well, else a word for what went wrong.

    `service`: of another process, on whose behalf this one tells it; empty for its own.
    """

    trace_id: bytes
    span_id: bytes
    parent_id: bytes = b""
    name: str
    start_ns: int
    end_ns: int
    kind: int = INTERNAL
    error: str | None = None
    attributes: Attributes = {}
    events: tuple[SpanEvent, ...] = ()
    service: str = ""


class Resource(Struct, frozen=True):
    """Who tells spans: the service, and what else identifies the process."""

    service: str
    attributes: Attributes = {}

    def of(self, service: str) -> Resource:
        return Resource(service, self.attributes) if service and service != self.service else self
