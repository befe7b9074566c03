"""What was set aside, and why? Every event and batch that was not used, counted by reason, with a few as examples.

Nothing of a batch that may not be here is kept, and nothing of one whose checksum is wrong, since its mask may be what
is damaged: of those only the header's numbers.
"""

# harch: pure

from __future__ import annotations

from collections import deque

from msgspec import Struct

# Reason: what it means, for people. The reasons of rows are those of `wire.rows`, of headers those of `wire.header`.
EXPLANATIONS = {
    "unknown_device": "The device is not in the pipeline's table; devices are added by an operator, never by an event.",
    "unknown_metric": "The pipeline has no such metric.",
    "bad_value": "A value is missing, not a finite number, or out of range for its column.",
    "bad_time": "The time of the event cannot be read, or lies before 1970 or after 2116.",
    "bad_flag": "The flag does not fit into its column.",
    "bad_event_id": "The event has no usable id, but the pipeline requires one.",
    "duplicate_event": "An event with this id was already accepted.",
    "late": "The event's window was already closed. It went to the late lane.",
    "future": "The event lies ahead of the clock, or beyond the windows that are open. It went to the late lane.",
    "too_large": "The event is larger than an event may be; it was not parsed.",
    "too_many": "The body has more rows than one body may have.",
    "time_span": "The rows of one body are too far apart; send them in time order.",
    "unreadable": "This is not JSON, CSV or Arrow of the expected form.",
    "bad_topic": "The MQTT topic does not match any of the source's topics.",
    "bad_frame": "The bytes on the socket are not length-framed batches. The connection was closed.",
    "unauthorised": "The sender did not present the key of the source. Nothing was read.",
    "too_many_connections": "The limit of open connections is reached. This one was closed.",
    "intake_full": "The stage is behind, and the input cannot slow its sender down. The message was not accepted.",
    "broker_lost": "The connection to the broker was lost. It is retried.",
    "bad_header": "The message does not start with a valid header.",
    "bad_checksum": "The message was damaged in transit. It is requested again.",
    "bad_columns": "The payload does not have the size required by its schema.",
    "unknown_schema": "The batch has a different schema than the pipeline.",
    "too_many_sources": "The limit of sources is reached, and none has ended.",
    "no_jurisdiction": "The batch permits no hub. It was dropped.",
    "no_compliant_hub": "No hub of the federation may receive the batch. It was dropped.",
    "not_here": "Other hubs may receive the batch, this one may not. It was dropped.",
    "policy_unknown": "The batch's policy version stayed unknown for too long. It was dropped.",
    "watermark_in_future": "The watermark of a source is ahead of the clock. It was clamped.",
}


class Quarantined(Struct, frozen=True):
    """One example. `shown` is empty where nothing of the content may be kept."""

    reason: str
    detail: str
    source: int = 0
    seq: int = 0
    excerpt: str = ""
    at_ns: int = 0


class Quarantine:
    """Counts without limit, examples within one: the newest `kept` of each reason."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self.counts: dict[str, int] = {}
        self._examples: dict[str, deque[Quarantined]] = {}

    def add(self, example: Quarantined, count: int = 1) -> None:
        """Counts `count` of one reason; keeps the example. Reasons come from code, so there are few of them."""
        if count:
            self.counts[example.reason] = self.counts.get(example.reason, 0) + count
            self._examples.setdefault(example.reason, deque(maxlen=self._kept)).append(example)

    def examples(self, reason: str | None = None) -> list[Quarantined]:
        """Newest last, of one reason or of all."""
        reasons = [reason] if reason is not None else list(self._examples)
        return [example for one in reasons for example in self._examples.get(one, ())]

    def explain(self) -> list[tuple[str, int, str]]:
        """Reason, count and sentence, the most frequent first."""
        ordered = sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))
        return [(reason, count, EXPLANATIONS.get(reason, "")) for reason, count in ordered]
