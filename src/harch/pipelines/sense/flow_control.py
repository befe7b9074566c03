"""How much may a source have on its way?

Credit flow control: what the receiver grants, what the sender keeps and gives up, and the message between them.
"""

# harch: pure

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import Enum

from msgspec import Struct

from harch.base.errors import InvariantBroken
from harch.base.rejection import Rejection
from harch.pipelines.wire.header import (
    HEADER_BYTES,
    MESSAGE_BYTES_MAX,
    PRIORITY_NEVER_SHED,
    SEQ_MAX,
    BatchHeader,
    Buffer,
    Flags,
    SequenceGap,
    as_replay,
    crc32c,
    pack_batch,
    pack_gap,
    read_gap,
    unpack_header,
)

MAGIC = int.from_bytes(b"HRCG", "little")
_LAYOUT = struct.Struct("<IIQQQ")
CREDIT_BYTES = _LAYOUT.size + 4


class Credit(Struct, frozen=True):
    """What one receiver grants to one source. Within an epoch `allowed_bytes` counts from zero and only grows.

    A higher epoch means: the receiver started anew or missed something; send again all after `checkpointed_seq`.
    """

    source: int
    epoch: int
    allowed_bytes: int
    checkpointed_seq: int


def pack_credit(credit: Credit) -> bytes:
    body = _LAYOUT.pack(MAGIC, credit.source, credit.epoch, credit.allowed_bytes, credit.checkpointed_seq)
    return body + crc32c(body).to_bytes(4, "little")


def unpack_credit(message: Buffer) -> Credit | Rejection:
    if len(message) != CREDIT_BYTES:
        return Rejection("credit", "length", f"{len(message)} bytes; a grant of credit has {CREDIT_BYTES}")
    magic, source, epoch, allowed, checkpointed = _LAYOUT.unpack_from(message)
    if magic != MAGIC:
        return Rejection("credit", "magic", f"starts with {magic:#010x}, not {MAGIC:#010x}")
    if crc32c(bytes(message[:-4])) != int.from_bytes(message[-4:], "little"):
        return Rejection("credit", "checksum", f"the checksum of the grant for source {source} does not match")
    if checkpointed > SEQ_MAX:
        return Rejection("credit", "seq", f"sequence number {checkpointed}")
    return Credit(source, epoch, allowed, checkpointed)


# How much may each source have on its way to us? The receiving half of credit flow control.
#
# Grants are absolute and repeated, so a lost one costs nothing but time. An epoch is made of the
# incarnation
# of the receiver, which must grow with every start (the revision of its lease serves), and of the holes found since.


WINDOW_BYTES = 2 * MESSAGE_BYTES_MAX
RESEND_S = 0.05
HOLE_RETRY_S = 0.25  # what is being sent again is not asked for again within this
SILENT_S = 10.0  # a source that is silent for this long gets no grants until it speaks
_HOLES_BITS = 20


class _Line(Struct):
    """One source."""

    seen_s: float
    checkpointed_seq: int = 0
    holes: int = 0
    hole_s: float = -HOLE_RETRY_S
    taken_bytes: int = 0  # in this epoch
    granted_bytes: int = 0
    granted_s: float = -RESEND_S


class Receiving:
    """All sources of one receiver. The windows of all of them together are at most `total_bytes`."""

    def __init__(
        self,
        incarnation: int,
        *,
        window_bytes: int = WINDOW_BYTES,
        total_bytes: int = 8 * WINDOW_BYTES,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        """A window never falls below one message of the largest size, however many sources there are."""
        if window_bytes < message_bytes_max or incarnation < 0:
            raise InvariantBroken("a window has room for the largest message", window_bytes, incarnation)
        self._incarnation = incarnation
        self._window_bytes = window_bytes
        self._total_bytes = total_bytes
        self._message_bytes_max = message_bytes_max
        self._lines: dict[int, _Line] = {}

    def resume(self, checkpointed: Mapping[int, int], now_s: float) -> None:
        """After a start: sources of the checkpoint hear at once where to go on."""
        for source, seq in checkpointed.items():
            self._lines[source] = _Line(now_s, checkpointed_seq=seq)

    def taken(self, source: int, message_bytes: int, now_s: float) -> None:
        """A message of this source was dealt with, whatever became of it."""
        line = self._lines.get(source)
        if line is None:
            line = self._lines[source] = _Line(now_s)
        line.seen_s = now_s
        line.taken_bytes += message_bytes

    def hole(self, source: int, now_s: float) -> None:
        """Something of this source is missing: it shall send again from the checkpoint on."""
        line = self._lines.setdefault(source, _Line(now_s))
        if now_s - line.hole_s < HOLE_RETRY_S:
            return
        line.holes += 1
        line.hole_s = now_s
        line.taken_bytes = 0
        line.granted_s = now_s - RESEND_S

    def checkpointed(self, seqs: Mapping[int, int]) -> None:
        """A checkpoint is stored: sources may forget what is in it."""
        for source, seq in seqs.items():
            if source in self._lines:
                self._lines[source].checkpointed_seq = max(self._lines[source].checkpointed_seq, seq)

    def due(self, now_s: float) -> list[Credit]:
        """Grants to send now: after half a window, and every 50 ms."""
        live = {source: line for source, line in self._lines.items() if now_s - line.seen_s <= SILENT_S}
        window = max(self._message_bytes_max, min(self._window_bytes, self._total_bytes // max(1, len(live))))
        grants = []
        for source, line in live.items():
            is_half_used = line.taken_bytes - line.granted_bytes >= window // 2
            if not is_half_used and now_s - line.granted_s < RESEND_S:
                continue
            line.granted_bytes, line.granted_s = line.taken_bytes, now_s
            epoch = self._incarnation << _HOLES_BITS | line.holes
            grants.append(Credit(source, epoch, line.taken_bytes + window, line.checkpointed_seq))
        return grants

    def forget(self, source: int) -> None:
        """A source has ended."""
        self._lines.pop(source, None)


# How much may a source send, what does it keep, and what does it give up? The sending half of credit flow control.
#
# A source sends while its credit lasts and keeps every batch until the receiver has it in a checkpoint, within a limit
# of bytes. When that is reached it sheds what was not sent yet: lowest priority first, then oldest. In place of what
# was
# shed goes a `gap` that says so, so `sent = received + gaps` always. Priority 0 is never shed: it is refused to whoever
# offers it, who has to wait. A new epoch of the receiver means: again, from its checkpoint on.


BUFFER_BYTES_MAX = 256 << 20
HEARTBEAT_S = 0.2  # a watermark this often: it says hello, and shows that the last batches were lost


class Offered(Enum):
    KEPT = "kept"
    SHED = "shed"  # given up at once, and reported as a gap
    REFUSED = "refused"  # priority 0, and no room: offer it again after a while


class Pressure(Enum):
    """What a source should do by itself, before anything is shed."""

    NONE = "none"
    BIGGER_BATCHES = "bigger_batches"  # credit is used up
    AGGREGATE = "aggregate"  # more than half of the buffer is full: send sums in place of events
    SHEDDING = "shedding"


class SendingCounters(Struct):
    """`batches_offered` = what the receiver will have taken, plus `batches_shed`."""

    batches_offered: int = 0
    events_offered: int = 0
    batches_shed: int = 0
    events_shed: int = 0
    batches_refused: int = 0
    batches_replayed: int = 0
    batches_forgotten: int = 0  # the receiver lost its state after it had confirmed them


class _Kept(Struct):
    """One batch, or a gap in place of some."""

    first_seq: int
    last_seq: int
    events: int
    priority: int
    message: bytes
    header: BatchHeader
    was_sent: bool = False


class Sending:
    """One source towards one receiver. Batches are offered in the order of `next_seq`; `due` says what goes out."""

    def __init__(
        self,
        hello: BatchHeader,
        *,
        buffer_bytes_max: int = BUFFER_BYTES_MAX,
        heartbeat_s: float = HEARTBEAT_S,
        resumes: bool = False,
    ) -> None:
        """`hello` is a header of this source, of which heartbeats are made. `resumes`: it has sent before in another
        life, so the receiver's count of bytes in this epoch is not ours."""
        self.counters = SendingCounters()
        self.next_seq = 1
        self._template = hello
        self._buffer_bytes_max = buffer_bytes_max
        self._heartbeat_s = heartbeat_s
        self._kept: list[_Kept] = []
        self._next = 0  # place in `_kept` of the next to send
        self.buffered_bytes = 0
        self._epoch = -1
        self._sent_bytes = 0  # in this epoch
        self._allowed_bytes = 0
        self._checkpointed_seq = 0
        self._sent_s = -heartbeat_s
        self._watermark_ns = hello.watermark_ns
        self._resumes = resumes

    @property
    def is_drained(self) -> bool:
        """Everything that was offered is in a checkpoint of the receiver."""
        return not self._kept

    @property
    def pressure(self) -> Pressure:
        if any(kept.header.is_gap for kept in self._kept[self._next :]):
            return Pressure.SHEDDING
        if 2 * self.buffered_bytes > self._buffer_bytes_max:
            return Pressure.AGGREGATE
        return Pressure.BIGGER_BATCHES if self._next < len(self._kept) else Pressure.NONE

    def offer(self, message: bytes) -> Offered:
        """A packed batch with the number `next_seq`, or a gap of a former life that begins with it."""
        header = unpack_header(message)
        if isinstance(header, Rejection):
            raise InvariantBroken("a source offers its own batches", header.rule, header.detail)
        gap = (
            read_gap(header, message[HEADER_BYTES:]) if header.is_gap else SequenceGap(header.seq, header.seq, header.n)
        )
        if isinstance(gap, Rejection) or gap.first_seq != self.next_seq:
            raise InvariantBroken("a source offers its batches in order", self.next_seq, header)
        new = _Kept(gap.first_seq, gap.last_seq, gap.events, header.priority, message, header)
        fits = self._make_room(new)
        if not fits and header.priority == PRIORITY_NEVER_SHED:
            self.counters.batches_refused += 1
            return Offered.REFUSED
        self.next_seq = gap.last_seq + 1
        self.counters.batches_offered += gap.last_seq - gap.first_seq + 1
        self.counters.events_offered += gap.events
        self._template = header
        self._watermark_ns = max(self._watermark_ns, header.watermark_ns)
        self._kept.append(new)
        self.buffered_bytes += len(message)
        if not fits:
            self._shed(len(self._kept) - 1)
        return Offered.KEPT if fits else Offered.SHED

    def gaps(self) -> list[tuple[SequenceGap, bytes]]:
        """What was shed and is not reported yet, with the message that reports it."""
        waiting = self._kept[self._next :]
        return [
            (SequenceGap(kept.first_seq, kept.last_seq, kept.events), kept.message)
            for kept in waiting
            if kept.header.is_gap
        ]

    def watermark(self, watermark_ns: int) -> None:
        """Nothing older will be offered; announced with the next heartbeat, so that an idle source holds nobody
        back."""
        self._watermark_ns = max(self._watermark_ns, watermark_ns)

    def credit(self, credit: Credit) -> None:
        """What the receiver grants. Old, repeated and reordered grants change nothing."""
        if credit.source != self._template.source or credit.epoch < self._epoch:
            return
        if credit.epoch > self._epoch:
            # In the middle of an epoch we take the least window that there is, and count on from there.
            before = max(0, credit.allowed_bytes - MESSAGE_BYTES_MAX) if self._resumes else 0
            self._epoch, self._sent_bytes, self._allowed_bytes, self._next = credit.epoch, before, 0, 0
            self._resumes = False
            self._report_forgotten(credit.checkpointed_seq + 1)
        self._allowed_bytes = max(self._allowed_bytes, credit.allowed_bytes)
        while self._kept and self._kept[0].was_sent and self._kept[0].last_seq <= credit.checkpointed_seq:
            done = self._kept.pop(0)
            self.buffered_bytes -= len(done.message)
            self._checkpointed_seq = done.last_seq
            self._next = max(0, self._next - 1)

    def due(self, now_s: float) -> list[Buffer]:
        """Messages to send now, in order."""
        out: list[Buffer] = []
        while self._next < len(self._kept):
            kept = self._kept[self._next]
            if self._sent_bytes + len(kept.message) > self._allowed_bytes:
                break
            out.append(as_replay(kept.message) if kept.was_sent else kept.message)
            self.counters.batches_replayed += kept.was_sent
            kept.was_sent = True
            self._sent_bytes += len(kept.message)
            self._next += 1
        if not out and now_s - self._sent_s >= self._heartbeat_s:
            out.append(self._heartbeat())
        if out:
            self._sent_s = now_s
        return out

    def _report_forgotten(self, wanted_seq: int) -> None:
        """A receiver that has lost its state wants what we no longer have: a gap, without which it would wait forever.
        How many events were in it nobody knows any more."""
        first_seq = self._kept[0].first_seq if self._kept else self.next_seq
        if wanted_seq >= first_seq:
            return
        gap = SequenceGap(wanted_seq, first_seq - 1, 0)
        message = pack_gap(self._template, gap)
        header = unpack_header(message)
        if isinstance(header, Rejection):
            raise InvariantBroken("a packed gap can be read", header.detail)
        self.counters.batches_forgotten += first_seq - wanted_seq
        self._kept.insert(0, _Kept(gap.first_seq, gap.last_seq, 0, PRIORITY_NEVER_SHED, message, header))
        self.buffered_bytes += len(message)

    def _heartbeat(self) -> bytes:
        """A watermark with the last number that was sent. While batches wait it is not ahead of the first of them."""
        waiting = self._kept[self._next :]
        mark_ns = (
            min(self._watermark_ns, *(kept.header.t_first_ns for kept in waiting)) if waiting else self._watermark_ns
        )
        fields = {name: getattr(self._template, name) for name in self._template.__struct_fields__}
        fields.update(
            n=0,
            payload_len=0,
            flags=Flags.WATERMARK_ONLY,
            seq=self._kept[self._next - 1].last_seq if self._next else self._checkpointed_seq,
            watermark_ns=mark_ns,
        )
        return pack_batch(BatchHeader(**fields))

    def _make_room(self, new: _Kept) -> bool:
        """Sheds what matters less than the new batch, or as much and is older. False if that is not enough."""
        while self.buffered_bytes + len(new.message) > self._buffer_bytes_max:
            places = [place for place in range(self._next, len(self._kept)) if self._may_shed(self._kept[place], new)]
            if not places:
                return False
            self._shed(max(places, key=lambda place: (self._kept[place].priority, -place)))
        return True

    def _may_shed(self, kept: _Kept, new: _Kept) -> bool:
        is_batch = not kept.header.is_gap and not kept.was_sent
        return is_batch and kept.priority >= new.priority and kept.priority != PRIORITY_NEVER_SHED

    def _shed(self, place: int) -> None:
        """Puts a gap in place of a batch, one gap together with those beside it."""
        shed = self._kept[place]
        self.counters.batches_shed += 1
        self.counters.events_shed += shed.events
        first, last = place, place + 1
        if first > self._next and self._is_unsent_gap(first - 1):
            first -= 1
        if last < len(self._kept) and self._is_unsent_gap(last):
            last += 1
        joined = self._kept[first:last]
        gap = SequenceGap(joined[0].first_seq, joined[-1].last_seq, sum(kept.events for kept in joined))
        message = pack_gap(joined[-1].header, gap)
        header = unpack_header(message)
        if isinstance(header, Rejection):
            raise InvariantBroken("a packed gap can be read", header.detail)
        self.buffered_bytes += len(message) - sum(len(kept.message) for kept in joined)
        self._kept[first:last] = [_Kept(gap.first_seq, gap.last_seq, gap.events, shed.priority, message, header)]

    def _is_unsent_gap(self, place: int) -> bool:
        return self._kept[place].header.is_gap and not self._kept[place].was_sent
