"""How much may a source send, what does it keep, and what does it give up? The sending half of credit flow control.

A source sends while its credit lasts and keeps every batch until the receiver has it in a checkpoint, within a limit
of bytes. When that is reached it sheds what was not sent yet: lowest priority first, then oldest. In place of what was
shed goes a `gap` that says so, so `sent = received + gaps` always. Priority 0 is never shed: it is refused to whoever
offers it, who has to wait. A new epoch of the receiver means: again, from its checkpoint on.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from harch.base.errors import InvariantBroken
from harch.base.rejection import Rejection
from harch.pipelines.wire.checksum import Buffer
from harch.pipelines.wire.credit import Credit
from harch.pipelines.wire.header import (
    HEADER_BYTES,
    MESSAGE_BYTES_MAX,
    PRIORITY_NEVER_SHED,
    BatchHeader,
    Flags,
    Gap,
    as_replay,
    pack_batch,
    pack_gap,
    read_gap,
    unpack_header,
)

BUFFER_BYTES_MAX = 256 << 20
HEARTBEAT_S = 0.2  # a watermark this often: it says hello, and shows that the last batches were lost


class Offered(Enum):
    KEPT = "kept"
    SHED = "shed"  # given up at once, and told as a gap
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
        gap = read_gap(header, message[HEADER_BYTES:]) if header.is_gap else Gap(header.seq, header.seq, header.n)
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

    def gaps(self) -> list[tuple[Gap, bytes]]:
        """What was shed and is not told yet, with the message that tells it."""
        waiting = self._kept[self._next :]
        return [
            (Gap(kept.first_seq, kept.last_seq, kept.events), kept.message) for kept in waiting if kept.header.is_gap
        ]

    def watermark(self, watermark_ns: int) -> None:
        """Nothing older will be offered; told with the next heartbeat, so that an idle source holds nobody back."""
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
            self._tell_forgotten(credit.checkpointed_seq + 1)
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

    def _tell_forgotten(self, wanted_seq: int) -> None:
        """A receiver that has lost its state wants what we no longer have: a gap, without which it would wait for ever.
        How many events were in it nobody knows any more."""
        first_seq = self._kept[0].first_seq if self._kept else self.next_seq
        if wanted_seq >= first_seq:
            return
        gap = Gap(wanted_seq, first_seq - 1, 0)
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
        gap = Gap(joined[0].first_seq, joined[-1].last_seq, sum(kept.events for kept in joined))
        message = pack_gap(joined[-1].header, gap)
        header = unpack_header(message)
        if isinstance(header, Rejection):
            raise InvariantBroken("a packed gap can be read", header.detail)
        self.buffered_bytes += len(message) - sum(len(kept.message) for kept in joined)
        self._kept[first:last] = [_Kept(gap.first_seq, gap.last_seq, gap.events, shed.priority, message, header)]

    def _is_unsent_gap(self, place: int) -> bool:
        return self._kept[place].header.is_gap and not self._kept[place].was_sent
