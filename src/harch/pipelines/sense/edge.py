"""How do rows become batches?

At the rim, where a row gets its source, its sequence number, its mask and its watermark, and where an event that came
before is left out.
"""

# harch: pure

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from harch.pipelines.sense.quarantine import Quarantine, Quarantined
from harch.pipelines.sense.settings import NS_PER_S, SenseSettings
from harch.pipelines.wire.columns import Columns, EventSchema, encode_columns
from harch.pipelines.wire.header import BatchHeader, Flags, pack_batch
from harch.pipelines.wire.rows import ParsedRows

# Did this very event come before? The newest ids of a source, as 64-bit hashes within a limit.
#
# For senders that repeat themselves, such as MQTT with QoS 1 or a client after a time-out. It remembers as far back as
# its limit reaches and as long as the process lives; the sequence numbers of batches do the rest.


class RecentIds:
    """At most `kept_max` ids; the oldest goes first."""

    def __init__(self, kept_max: int) -> None:
        self._kept_max = kept_max
        self._seen: dict[bytes, None] = {}

    def fresh(self, ids: Sequence[str]) -> NDArray[np.bool_]:
        """True for ids that are neither remembered nor named before in the same list. Remembers nothing."""
        found, here = np.ones(len(ids), np.bool_), set()
        for place, name in enumerate(ids):
            key = _hash_of(name)
            found[place] = key not in self._seen and key not in here
            here.add(key)
        return found

    def remember(self, ids: Iterable[str]) -> None:
        for name in ids:
            self._seen[_hash_of(name)] = None
        while len(self._seen) > self._kept_max:
            del self._seen[next(iter(self._seen))]


def _hash_of(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=8).digest()


# How do rows become batches? At the rim, where a row gets its source, its sequence number, its mask and its watermark.
#
# `prepare` changes nothing, so that what finds no room can be refused and sent again; `commit` makes it so. A batch
# holds
# events that are near to each other in time, so that windows need not be open further than they are.


BATCH_EVENTS_MAX = 65_536
BATCHES_PER_CALL_MAX = 4096


class Permit(Struct, frozen=True):
    """Where the events of a source may be: a mask of hubs, in the numbering of one policy version."""

    juris_mask: int
    policy_version: int


class PreparedBatches(Struct, frozen=True, kw_only=True):
    """Batches that could be sent, and what was left out. Good until the next `commit` of its edge."""

    messages: tuple[bytes, ...]
    events: int
    newest_ns: int
    event_ids: tuple[str, ...]
    aside: tuple[tuple[Quarantined, int], ...]  # examples with the count that each stands for

    @property
    def bytes(self) -> int:
        return sum(len(message) for message in self.messages)


class EdgeBatcher:
    """One source. `seq` is the last number that was used before, where a source goes on after a restart."""

    def __init__(
        self, name: str, settings: SenseSettings, permit: Permit, *, disorder_s: float, priority: int, seq: int = 0
    ) -> None:
        self.source = source_number(name)
        self.permit = permit
        self.seq = seq
        self._schema = settings.event_schema
        self._priority = priority
        self._disorder_ns = round(disorder_s * NS_PER_S)
        self._future_ns = round(settings.windows.future_s * NS_PER_S)
        self._span_ns = _span_ns(settings, self._schema)
        self._newest_ns = 0
        self._recent = RecentIds(settings.limits.event_ids_kept) if settings.limits.event_ids_kept else None

    def prepare(self, rows: ParsedRows, now_ns: int) -> PreparedBatches:
        """The batches of these rows, in the order of their times."""
        aside = [(Quarantined(row.reason, row.detail, self.source, 0, row.excerpt, now_ns), 1) for row in rows.rejected]
        for reason, count in rows.rejected_by_reason.items():
            listed = sum(row.reason == reason for row in rows.rejected)
            if count > listed:
                aside.append((Quarantined(reason, "and more", self.source, 0, "", now_ns), count - listed))
        usable = np.ones(rows.n, np.bool_)
        if self._recent is not None and rows.event_ids:
            usable = self._recent.fresh(rows.event_ids)
            self._leave_out(aside, "duplicate_event", ~usable, rows, now_ns)
        future = usable & (rows.times_ns > now_ns + self._future_ns)
        self._leave_out(aside, "future", future, rows, now_ns)
        picks = np.flatnonzero(usable & ~future)
        picks = picks[np.argsort(rows.times_ns[picks], kind="stable")]
        messages, sent = self._batches(rows, picks)
        if sent < len(picks):
            too_far = np.zeros(rows.n, np.bool_)
            too_far[picks[sent:]] = True
            self._leave_out(aside, "time_span", too_far, rows, now_ns)
        newest_ns = int(rows.times_ns[picks[sent - 1]]) if sent else 0
        ids = tuple(rows.event_ids[place] for place in picks[:sent]) if rows.event_ids else ()
        return PreparedBatches(messages=messages, events=sent, newest_ns=newest_ns, event_ids=ids, aside=tuple(aside))

    def commit(self, prepared: PreparedBatches, quarantine: Quarantine) -> None:
        """The batches are on their way: counts, numbers and ids move on."""
        self.seq += len(prepared.messages)
        self._newest_ns = max(self._newest_ns, prepared.newest_ns)
        if self._recent is not None:
            self._recent.remember(prepared.event_ids)
        for example, count in prepared.aside:
            quarantine.add(example, count)

    def watermark_only(self, *, is_end: bool = False, now_ns: int | None = None) -> bytes:
        """A message without events: how far the source is; with `now_ns`, that it is as far as the clock."""
        newest_ns = self._newest_ns if now_ns is None else max(self._newest_ns, now_ns)
        mark_ns = max(0, newest_ns - (0 if is_end else self._disorder_ns))
        flags = Flags.WATERMARK_ONLY | (Flags.END if is_end else Flags(0))
        return pack_batch(self._header(0, self.seq, mark_ns, mark_ns, 0, flags))

    def _batches(self, rows: ParsedRows, picks: NDArray[np.int64]) -> tuple[tuple[bytes, ...], int]:
        messages: list[bytes] = []
        start, newest_ns = 0, self._newest_ns
        while start < len(picks) and len(messages) < BATCHES_PER_CALL_MAX:
            first_ns = int(rows.times_ns[picks[start]])
            end = int(np.searchsorted(rows.times_ns[picks], first_ns + self._span_ns, side="right"))
            end = min(end, start + BATCH_EVENTS_MAX)
            some = picks[start:end]
            newest_ns = max(newest_ns, int(rows.times_ns[some[-1]]))
            ticks = (rows.times_ns[some] - first_ns) // self._schema.tick_ns
            columns = Columns(ticks, rows.device[some], rows.metric[some], rows.flag[some], rows.values[:, some])
            payload = encode_columns(self._schema, columns)
            mark_ns = max(0, newest_ns - self._disorder_ns)
            header = self._header(len(some), self.seq + len(messages) + 1, first_ns, mark_ns, len(payload), Flags(0))
            messages.append(pack_batch(header, payload))
            start = end
        return tuple(messages), start

    def _header(self, n: int, seq: int, first_ns: int, mark_ns: int, size: int, flags: Flags) -> BatchHeader:
        return BatchHeader(
            schema=self._schema.id,
            n=n,
            juris_mask=self.permit.juris_mask,
            policy_version=self.permit.policy_version,
            source=self.source,
            seq=seq,
            t_first_ns=first_ns,
            watermark_ns=mark_ns,
            payload_len=size,
            flags=flags,
            priority=self._priority,
        )

    def _leave_out(
        self,
        aside: list[tuple[Quarantined, int]],
        reason: str,
        which: NDArray[np.bool_],
        rows: ParsedRows,
        now_ns: int,
    ) -> None:
        if count := int(which.sum()):
            row = int(rows.indexes[np.flatnonzero(which)[0]])
            aside.append((Quarantined(reason, f"row {row} and others", self.source, 0, "", now_ns), count))


def source_number(name: str) -> int:
    """The number of a source on the wire: the same for the same name at every start."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")


def _span_ns(settings: SenseSettings, schema: EventSchema) -> int:
    """How much time one batch may cover: what the windows keep open, and what the time column can hold."""
    skew_ns = round(settings.windows.skew_s * NS_PER_S)
    return min(max(settings.windows.pane_ns, skew_ns), schema.ticks_max * schema.tick_ns)
