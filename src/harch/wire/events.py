"""What does a hub answer about its history? Events, one by one and in pages."""

# harch: pure

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from harch.wire.pages import Pagination


class EventRecord(Struct, frozen=True, kw_only=True):
    """One line of the hub's history. `seq` grows without gaps and is the SSE event id."""

    seq: int
    at: datetime
    kind: str  # e.g. workload.submitted, workload.running, agent.lost, store.failed
    subject: str = ""
    tenant: str = ""
    message: str = ""
    data: dict[str, object] = {}


class EventPage(Struct, frozen=True, kw_only=True):
    """Ask again with `after=next_after`; `last_seq` is the newest event that the hub has."""

    items: list[EventRecord]
    total: int = 0
    pagination: Pagination = Pagination()
    next_after: int
    last_seq: int
    remark: str = ""  # of an empty page, if there has never been an event of that kind
