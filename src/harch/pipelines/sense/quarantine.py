"""What was set aside, and why? Every event and batch that was not used, counted by reason, with a few as examples.

Nothing of a batch that may not be here is kept, and nothing of one whose checksum is wrong, since its mask may be what
is damaged: of those only the header's numbers.
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct

# Reason: what it means, for people. The reasons of rows are those of `wire.rows`, of headers those of `wire.header`.
EXPLANATIONS = {
    "unknown_device": "The device is not in the pipeline's table; an operator adds devices, an event never does.",
    "unknown_metric": "The metric is not one of the pipeline's.",
    "bad_value": "A value is missing, not a finite number, or outside of the bounds of its column.",
    "bad_time": "The time of the event cannot be read, or lies before 1970 or after 2116.",
    "bad_flag": "The flag does not fit into its column.",
    "bad_event_id": "The event has no usable id, although the pipeline asks for one.",
    "duplicate_event": "An event with this id was taken before.",
    "late": "The event's window was closed already. It went to the late lane.",
    "future": "The event lies ahead of the clock, or beyond the windows that are open. It went to the late lane.",
    "too_large": "The event is larger than an event may be; it was not parsed.",
    "too_many": "The body has more rows than one body may have.",
    "time_span": "The rows of one body lie too far apart; send them in the order of their times.",
    "unreadable": "This is not JSON, CSV or Arrow of the expected form.",
    "bad_topic": "The MQTT topic does not fit any of the source's topics.",
    "bad_frame": "The bytes on the socket are not length-framed batches. The connection was closed.",
    "unauthorised": "The sender did not show the key of the source. Nothing was read.",
    "too_many_connections": "As many connections as allowed are open. This one was closed.",
    "intake_full": "The stage is behind, and the input cannot make its sender wait. The message was not taken.",
    "broker_lost": "The connection to the broker ended. It is tried again.",
    "bad_header": "The message does not start with a header that can be believed.",
    "bad_checksum": "The message was damaged on its way. It is asked for again.",
    "bad_columns": "The payload has not the size that its schema demands.",
    "unknown_schema": "The batch has another schema than the pipeline.",
    "too_many_sources": "As many sources as allowed are known, and none has ended.",
    "no_jurisdiction": "The batch permits no hub at all. It was dropped.",
    "no_compliant_hub": "No hub of the federation may have the batch. It was dropped.",
    "not_here": "Other hubs may have the batch, this one may not. It was dropped.",
    "policy_unknown": "The batch's policy version stayed unknown for too long. It was dropped.",
    "watermark_in_future": "A source claims to be further than the clock. Its claim was cut.",
}


class Quarantined(Struct, frozen=True):
    """One example. `shown` is empty where nothing of the content may be kept."""

    reason: str
    detail: str
    source: int = 0
    seq: int = 0
    shown: str = ""
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
