"""How do accepted events get to SENSE?

Split by device, kept in the spool, sent on credit, kept until a checkpoint has them.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.pipelines.sense.edge import Permit
from harch.pipelines.sense.flow_control import Credit, Sending
from harch.pipelines.sense.intake import Intake
from harch.pipelines.sense.quarantine import Quarantine, Quarantined
from harch.pipelines.wire.columns import Columns, EventSchema, decode_columns, encode_columns, select
from harch.pipelines.wire.header import (
    HEADER_BYTES,
    BatchHeader,
    Buffer,
    Flags,
    SequenceGap,
    check_payload,
    pack_batch,
    read_gap,
    unpack_header,
)
from harch.pipelines.workers.source_storage import LineKey, SourceSpool, SpooledBatch


class PartitionPiece(Struct, frozen=True):
    """The events of one message that go to one partition. The header has neither its number nor its length yet."""

    partition: int
    header: BatchHeader
    payload: bytes


def partition_of(devices: NDArray[np.generic], partitions: int) -> NDArray[np.int64]:
    """The partition of each device number: neighbours go to different ones."""
    return devices.astype(np.int64) % partitions


def split(message: Buffer, schema: EventSchema, partitions: int, permit: Permit) -> list[PartitionPiece] | Rejection:
    """The pieces of a message, in the order of their partitions; a Rejection if it is none of this schema.

    Where events may be is narrowed to what the pipeline permits: a sender may say less, never more.
    """
    header = unpack_header(message)
    if isinstance(header, Rejection):
        return header
    payload = check_payload(header, message)
    if isinstance(payload, Rejection):
        return payload
    if header.is_gap or header.is_watermark_only:
        return []
    if header.schema != schema.id:
        detail = f"schema {header.schema:#010x}; this pipeline reads {schema.id:#010x}"
        return Rejection("batch", "unknown_schema", detail, "send the pipeline's schema")
    columns = decode_columns(schema, header.n, payload)
    if isinstance(columns, Rejection):
        return columns
    if header.policy_version == permit.policy_version:
        header = replace(header, juris_mask=header.juris_mask & permit.juris_mask)
    if partitions == 1:
        return [PartitionPiece(0, header, bytes(payload))]
    homes = partition_of(columns.device, partitions)
    return [
        PartitionPiece(int(home), *_picked(header, columns, np.flatnonzero(homes == home), schema))
        for home in np.unique(homes)
    ]


def _picked(
    header: BatchHeader, columns: Columns, picks: NDArray[np.intp], schema: EventSchema
) -> tuple[BatchHeader, bytes]:
    payload = encode_columns(schema, select(columns, picks))
    return replace(header, n=len(picks), payload_len=len(payload)), payload


# How do accepted events get to SENSE? Split by device, kept in the spool, sent on credit, kept until a checkpoint has
# them. A sender that can wait is made to wait when there is no room; of the others the least important is shed, and
# told.


LINES_MAX = 65_536
LINE_BYTES_MIN = 1 << 20
_PIECE_OVERHEAD_BYTES = 64


class Outflow:
    """All lines of one source worker's source: one per sender and partition. Never waits."""

    def __init__(
        self,
        spool: SourceSpool,
        schema: EventSchema,
        permit: Permit,
        *,
        partitions: int,
        bytes_max: int,
        can_wait: bool,
        keep: Callable[[Sequence[Buffer]], None] | None = None,
    ) -> None:
        """`keep` gets every batch before it is accepted, for later; it may raise E0752, and then nothing is taken."""
        self.permit = permit
        self.quarantine = Quarantine(100)
        self.counters: Counter[str] = Counter()
        self.news = asyncio.Event()
        self.room = asyncio.Event()
        self._spool = spool
        self._schema = schema
        self._partitions = partitions
        self._can_wait = can_wait
        self._keep = keep
        self._line_bytes_max = max(LINE_BYTES_MIN, bytes_max // partitions)
        self._senders = spool.senders()
        self._lines: dict[LineKey, Sending] = {}
        self._ended: set[int] = set()
        self._last_message_s: dict[int, float] = {}  # when each sender was heard last
        for key, saved in spool.lines().items():
            self._resume(key, saved.last_seq, saved.messages)

    def last_seq(self, source: int) -> int:
        """The last number of a sender that was accepted, also before a restart."""
        return self._senders.get(source, 0)

    @property
    def buffered_bytes(self) -> int:
        return sum(line.buffered_bytes for line in self._lines.values())

    @property
    def is_drained(self) -> bool:
        return all(line.is_drained for line in self._lines.values())

    def totals(self) -> dict[str, int]:
        found: Counter[str] = Counter(self.counters)
        for line in self._lines.values():
            for name in line.counters.__struct_fields__:
                found[name] += getattr(line.counters, name)
        return dict(found)

    def accept(self, messages: Sequence[Buffer], now_s: float) -> bool:
        """All of them or none. True: they survive this process. What is no message is counted and passed over."""
        pieces: list[PartitionPiece] = []
        seqs: dict[int, int] = {}
        fresh = [message for message in messages if self._read(message, pieces, seqs)]
        if not self._has_room(pieces):
            return False
        kept = self._stamped(pieces)
        if kept or seqs:
            try:
                if self._keep is not None and fresh:
                    self._keep(fresh)
                self._spool.add(kept, seqs)
            except HarchError:
                self.counters["spool_failures"] += 1
                return False
        self._senders.update(seqs)
        self._last_message_s.update(dict.fromkeys(seqs, now_s))
        for one in kept:
            line = self._line(one.source, one.partition, one.message)
            shed = line.counters.batches_shed
            line.offer(one.message)
            if line.counters.batches_shed > shed:
                self._give_room_back(one.source, one.partition, line)
        self._follow_watermarks(pieces)
        self.news.set()
        return True

    def credit(self, partition: int, credit: Credit) -> None:
        line = self._lines.get((credit.source, partition))
        if line is not None:
            line.credit(credit)
            self._spool.checkpointed(credit.source, partition, credit.checkpointed_seq)
            self.news.set()
            self.room.set()

    def due(self, now_s: float, *, idle_s: float = math.inf) -> Iterable[tuple[int, bytes]]:
        """(partition, message) to send now. A sender that is silent for `idle_s`, with all of its batches safe, gets no
        heartbeats: it must not hold the windows of others open. Its next batch wakes its lines."""
        for (source, partition), line in self._lines.items():
            is_silent = now_s - self._last_message_s.setdefault(source, now_s) > idle_s and source not in self._ended
            if is_silent and line.is_drained:
                continue
            for message in line.due(now_s):
                yield partition, self._with_end(source, line, bytes(message))

    def last_message_s(self, source: int) -> float:
        """When this sender was heard last; never: before everything."""
        return self._last_message_s.get(source, -math.inf)

    def advance(self, source: int, mark_ns: int) -> None:
        """Nothing older than this comes from a sender any more; announced with its next heartbeat."""
        for (other, _), line in self._lines.items():
            if other == source:
                line.watermark(mark_ns)

    def _read(self, message: Buffer, pieces: list[PartitionPiece], seqs: dict[int, int]) -> bool:
        """Whether it is a batch that was not there before."""
        header = unpack_header(message)
        found = split(message, self._schema, self._partitions, self.permit)
        if isinstance(header, Rejection) or isinstance(found, Rejection):
            refused = found if isinstance(found, Rejection) else header
            reason = refused.rule if isinstance(refused, Rejection) else "bad_header"
            detail = refused.detail if isinstance(refused, Rejection) else ""
            self.quarantine.add(Quarantined(reason, detail))
            self.counters["messages_refused"] += 1
            return False
        if header.is_end:
            self._ended.add(header.source)
        else:
            self._ended.discard(header.source)
        if header.is_watermark_only or header.is_gap:
            self._hear_watermark(header)
            return False
        before = seqs.get(header.source, self._senders.get(header.source, 0))
        if header.seq <= before:
            self.counters["batches_repeated"] += 1
            return False
        if before and header.seq > before + 1:
            self.counters["sender_holes"] += header.seq - before - 1
        seqs[header.source] = header.seq
        pieces += found
        self.counters["batches_accepted"] += 1
        self.counters["events_accepted"] += header.n
        return True

    def _has_room(self, pieces: list[PartitionPiece]) -> bool:
        """Senders that can wait find a limit before anything is shed; nobody may shed what must not be."""
        sizes: Counter[LineKey] = Counter()
        for piece in pieces:
            sizes[(piece.header.source, piece.partition)] += len(piece.payload) + _PIECE_OVERHEAD_BYTES
        for key, size in sizes.items():
            line = self._lines.get(key)
            if line is None and len(self._lines) >= LINES_MAX:
                return False
            full = line is not None and line.buffered_bytes and line.buffered_bytes + size > self._line_bytes_max
            if full and (self._can_wait or any(piece.header.priority == 0 for piece in pieces)):
                self.room.clear()
                return False
        return True

    def _stamped(self, pieces: list[PartitionPiece]) -> list[SpooledBatch]:
        numbers: dict[LineKey, int] = {}
        kept = []
        for piece in pieces:
            key = (piece.header.source, piece.partition)
            line = self._lines.get(key)
            seq = numbers.get(key, line.next_seq if line is not None else 1)
            numbers[key] = seq + 1
            message = pack_batch(replace(piece.header, seq=seq), piece.payload)
            kept.append(SpooledBatch(key[0], key[1], seq, message))
        return kept

    def _line(self, source: int, partition: int, message: bytes) -> Sending:
        key = (source, partition)
        if key not in self._lines:
            self._lines[key] = Sending(_hello(message), buffer_bytes_max=self._line_bytes_max)
        return self._lines[key]

    def _resume(self, key: LineKey, last_seq: int, messages: tuple[bytes, ...]) -> None:
        hello = _hello(messages[-1]) if messages else _blank(self._schema, self.permit, key[0])
        # Nothing that was accepted before is shed for having been accepted before.
        room = self._line_bytes_max + sum(len(message) for message in messages)
        line = Sending(hello, buffer_bytes_max=room, resumes=True)
        line.next_seq = _first_seq(messages[0]) if messages else last_seq + 1
        for message in messages:
            line.offer(message)
        self._lines[key] = line

    def _give_room_back(self, source: int, partition: int, line: Sending) -> None:
        """What was shed takes no room in the file either: the gap is in its place."""
        try:
            for gap, message in line.gaps():
                self._spool.replace(source, partition, gap.first_seq, gap.last_seq, message)
        except HarchError:
            self.counters["spool_failures"] += 1  # it is sent again after a restart, and is no harm then

    def _follow_watermarks(self, pieces: list[PartitionPiece]) -> None:
        """Partitions that got nothing of a message still hear how far its sender is."""
        for source, mark_ns in {piece.header.source: piece.header.watermark_ns for piece in pieces}.items():
            self.advance(source, mark_ns)

    def _hear_watermark(self, header: BatchHeader) -> None:
        self.advance(header.source, header.watermark_ns)
        self.news.set()

    def _with_end(self, source: int, line: Sending, message: bytes) -> bytes:
        if source not in self._ended or not line.is_drained:
            return message
        header = unpack_header(message)
        if isinstance(header, Rejection) or not header.is_watermark_only:
            return message
        return pack_batch(replace(header, flags=header.flags | Flags.END))


class SpoolIntake(Intake):
    """What inputs put their messages into: nothing waits here, it is safe or it is refused."""

    def __init__(self, outflow: Outflow, clock: Clock) -> None:
        super().__init__(bytes_max=1, quarantine=outflow.quarantine)
        self._outflow = outflow
        self._clock = clock

    def try_put(self, messages: Sequence[bytes]) -> bool:
        taken = self._outflow.accept(messages, self._clock.monotonic_s())
        self.refused += 0 if taken else len(messages)
        return taken

    async def put(self, message: bytes) -> None:
        while not self._outflow.accept((message,), self._clock.monotonic_s()):
            self._outflow.room.clear()
            await self._outflow.room.wait()


def _hello(message: bytes) -> BatchHeader:
    header = unpack_header(message)
    if isinstance(header, Rejection):
        raise HarchError("E0752", f"a spooled batch cannot be read: {header.detail}", hint="remove the spool's file")
    return replace(header, watermark_ns=0)


def _first_seq(message: bytes) -> int:
    header = _hello(message)
    gap = read_gap(header, message[HEADER_BYTES:]) if header.is_gap else None
    return gap.first_seq if isinstance(gap, SequenceGap) else header.seq


def _blank(schema: EventSchema, permit: Permit, source: int) -> BatchHeader:
    return BatchHeader(
        schema=schema.id,
        n=0,
        juris_mask=permit.juris_mask,
        policy_version=permit.policy_version,
        source=source,
        seq=0,
        t_first_ns=0,
        watermark_ns=0,
        payload_len=0,
        flags=Flags.WATERMARK_ONLY,
    )
