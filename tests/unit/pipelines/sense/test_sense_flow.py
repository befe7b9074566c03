"""Sources, a lossy network and a receiver that is killed: what was offered arrives once, or is told as a gap."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.base.errors import InvariantBroken
from harch.pipelines.sense.flow_control import Credit, Offered, Pressure, Receiving, Sending, pack_credit, unpack_credit
from harch.pipelines.sense.sources import BatchAdmission, SavedSource, SourceBook
from harch.pipelines.wire.header import (
    MESSAGE_BYTES_MAX,
    BatchHeader,
    SequenceGap,
    check_payload,
    pack_batch,
    read_gap,
    unpack_header,
)
from harch.testing.network import SimLink, SimNetwork


def header_of(seq: int, *, source: int = 1, priority: int = 3, size: int = 0, n: int = 10) -> BatchHeader:
    return BatchHeader(
        schema=1, n=n, juris_mask=1, policy_version=1, source=source, seq=seq, t_first_ns=seq, watermark_ns=seq,
        payload_len=size, priority=priority,
    )  # fmt: skip


def message_of(seq: int, *, source: int = 1, priority: int = 3, size: int = 1000) -> bytes:
    return pack_batch(header_of(seq, source=source, priority=priority, size=size), bytes(size))


def sending(**limits: float) -> Sending:
    return Sending(header_of(1), **limits)  # type: ignore[arg-type]


def seqs_of(messages: list[object]) -> list[int]:
    headers = [unpack_header(message) for message in messages]  # type: ignore[arg-type]
    return [header.seq for header in headers if isinstance(header, BatchHeader)]


def test_nothing_but_a_greeting_is_sent_without_credit() -> None:
    source = sending()
    source.offer(message_of(1))
    (hello,) = source.due(0.0)
    header = unpack_header(hello)
    assert isinstance(header, BatchHeader)
    assert (header.is_watermark_only, header.seq) == (True, 0)
    assert source.due(0.1) == []
    assert source.pressure is Pressure.BIGGER_BATCHES


def test_credit_is_a_limit_of_bytes_that_old_grants_do_not_lower() -> None:
    source = sending()
    for seq in range(1, 6):
        source.offer(message_of(seq))
    source.credit(Credit(1, 0, 2 * 1064, 0))
    source.credit(Credit(1, 0, 1064, 0))
    source.credit(Credit(9, 0, 10**9, 0))  # somebody else's
    assert seqs_of(source.due(0.0)) == [1, 2]
    source.credit(Credit(1, 0, 3 * 1064 + 1063, 0))
    assert seqs_of(source.due(0.0)) == [3]


def test_batches_are_kept_until_they_are_in_a_checkpoint_and_sent_again_in_a_new_epoch() -> None:
    source = sending()
    for seq in range(1, 5):
        source.offer(message_of(seq))
    source.credit(Credit(1, 7, 10**6, 0))
    source.due(0.0)
    source.credit(Credit(1, 7, 10**6, 2))
    assert source.buffered_bytes == 2 * 1064
    source.credit(Credit(1, 8, 10**6, 2))
    again = source.due(0.0)
    assert seqs_of(again) == [3, 4]
    assert all(unpack_header(message).flags for message in again)  # type: ignore[union-attr]
    source.credit(Credit(1, 8, 10**6, 4))
    assert source.is_drained


def test_a_receiver_cannot_claim_what_was_never_sent() -> None:
    source = sending()
    source.offer(message_of(1))
    source.credit(Credit(1, 0, 0, 99))
    assert not source.is_drained


def test_the_lowest_priority_is_shed_first_and_each_range_is_told_once() -> None:
    source = sending(buffer_bytes_max=4 * 1064 + 300)
    for seq, priority in enumerate((5, 1, 5, 5), start=1):
        assert source.offer(message_of(seq, priority=priority)) is Offered.KEPT
    assert source.offer(message_of(5, priority=0)) is Offered.KEPT
    assert source.offer(message_of(6, priority=2)) is Offered.KEPT
    assert source.offer(message_of(7, priority=7)) is Offered.SHED
    assert source.pressure is Pressure.SHEDDING
    source.credit(Credit(1, 0, 10**6, 0))
    told = []
    for message in source.due(0.0):
        header = unpack_header(message)
        assert isinstance(header, BatchHeader)
        payload = check_payload(header, message)
        assert isinstance(payload, memoryview)
        told.append(read_gap(header, payload) if header.is_gap else header.seq)
    assert told == [SequenceGap(1, 1, 10), 2, SequenceGap(3, 3, 10), 4, 5, 6, SequenceGap(7, 7, 10)]
    assert (source.counters.batches_shed, source.counters.events_shed) == (3, 30)


def test_neighbouring_gaps_become_one() -> None:
    source = sending(buffer_bytes_max=1500)
    for seq in range(1, 50):
        source.offer(message_of(seq, priority=4))
    source.credit(Credit(1, 0, 10**6, 0))
    assert seqs_of(source.due(0.0)) == [48, 49]
    assert source.counters.batches_shed == 48


def test_priority_zero_is_refused_and_never_shed() -> None:
    source = sending(buffer_bytes_max=2200)
    assert [source.offer(message_of(seq, priority=0)) for seq in (1, 2)] == [Offered.KEPT] * 2
    assert source.offer(message_of(3, priority=0)) is Offered.REFUSED
    assert source.offer(message_of(3, priority=0)) is Offered.REFUSED
    source.credit(Credit(1, 0, 10**6, 0))
    source.due(0.0)
    source.credit(Credit(1, 0, 10**6, 1))
    assert source.offer(message_of(3, priority=0)) is Offered.KEPT
    assert source.counters.batches_shed == 0


def test_batches_out_of_order_are_a_fault_of_the_source() -> None:
    with pytest.raises(InvariantBroken):
        sending().offer(message_of(2))


def test_a_heartbeat_is_not_ahead_of_what_still_waits() -> None:
    source = sending()
    source.offer(message_of(1))
    source.offer(message_of(2))
    source.credit(Credit(1, 0, 1100, 0))
    source.watermark(500)
    assert seqs_of(source.due(0.0)) == [1]
    (beat,) = source.due(1.0)
    header = unpack_header(beat)
    assert isinstance(header, BatchHeader)
    assert (header.seq, header.watermark_ns) == (1, 2)


def test_grants_come_at_half_a_window_and_every_50_ms() -> None:
    receiver = Receiving(1, window_bytes=MESSAGE_BYTES_MAX)
    receiver.taken(1, 64, 0.0)
    assert len(receiver.due(0.0)) == 1
    assert receiver.due(0.01) == []
    receiver.taken(1, MESSAGE_BYTES_MAX // 2, 0.02)
    assert [credit.allowed_bytes for credit in receiver.due(0.02)] == [64 + MESSAGE_BYTES_MAX // 2 + MESSAGE_BYTES_MAX]
    assert receiver.due(0.03) == []
    assert len(receiver.due(0.08)) == 1
    assert receiver.due(60.0) == []  # silent for long


def test_windows_of_many_sources_share_a_total() -> None:
    receiver = Receiving(1, window_bytes=4 * MESSAGE_BYTES_MAX, total_bytes=8 * MESSAGE_BYTES_MAX)
    for source in range(4):
        receiver.taken(source, 0, 0.0)
    assert sum(credit.allowed_bytes for credit in receiver.due(0.0)) == 8 * MESSAGE_BYTES_MAX


class Receiver:
    """What a stage does, in little: takes what is next, keeps a checkpoint, forgets the rest when it is killed."""

    def __init__(self, network: SimNetwork) -> None:
        self.network = network
        self.incarnation = 0
        self.holes = 0
        self.saved: tuple[list[SavedSource], list[tuple[int, int]], int] = ([], [], 0)
        self.start()

    def start(self) -> None:
        self.incarnation += 1
        sources, taken, shed = self.saved
        self.book = SourceBook(sources_max=10, idle_s=5.0, skew_ns=0)
        self.book.restore(sources, 0, self.network.now_s)
        self.taken, self.shed = list(taken), shed
        self.flow = Receiving(self.incarnation, window_bytes=6000, total_bytes=9000, message_bytes_max=2100)
        self.flow.resume({one.source: one.seq for one in sources}, self.network.now_s)
        self.network.attach("receiver", self.receive)

    def receive(self, name: str, message: object) -> None:
        assert isinstance(message, bytes)
        now_s = self.network.now_s
        header = unpack_header(message)
        assert isinstance(header, BatchHeader)
        payload = check_payload(header, message)
        assert isinstance(payload, memoryview)
        gap = read_gap(header, payload) if header.is_gap else SequenceGap(header.seq, header.seq, 0)
        assert isinstance(gap, SequenceGap)
        self.flow.taken(header.source, len(message), now_s)
        admission = self.book.admit(header, gap.first_seq)
        if admission is BatchAdmission.HOLE:
            self.holes += 1
            self.flow.hole(header.source, now_s)
        elif admission is BatchAdmission.NEXT and not header.is_watermark_only:
            self.book.done(header, now_s)
            if header.is_gap:
                self.shed += gap.last_seq - gap.first_seq + 1
            else:
                self.taken.append((header.source, header.seq))

    def checkpoint(self) -> None:
        self.saved = (self.book.saved(), list(self.taken), self.shed)
        self.flow.checkpointed({one.source: one.seq for one in self.saved[0]})


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6))
def test_whatever_the_network_loses_and_however_often_the_receiver_dies_sent_is_received_plus_gaps(seed: int) -> None:
    dice = random.Random(seed)
    network = SimNetwork(
        seed,
        SimLink(0.005, 0.002, loss=dice.choice([0, 0.05, 0.2]), duplication=0.05, reordering=dice.choice([0, 0.1])),
        describe=lambda message: str(message)[:40],
    )
    cap = 12_000
    sources = {number: Sending(header_of(1, source=number), buffer_bytes_max=cap) for number in (1, 2)}
    important = {1: 0, 2: 0}
    receiver = Receiver(network)
    for number, source in sources.items():
        network.attach(f"source-{number}", lambda _, message, source=source: source.credit(unpack_credit(message)))

    def offer() -> None:
        number = dice.choice([1, 2])
        source = sources[number]
        priority = dice.choice([0, 1, 3, 7])
        outcome = source.offer(
            message_of(source.next_seq, source=number, priority=priority, size=dice.randint(0, 2000))
        )
        important[number] += priority == 0 and outcome is not Offered.REFUSED

    def pump() -> None:
        for number, source in sources.items():
            for message in source.due(network.now_s):
                network.send(f"source-{number}", "receiver", bytes(message))
            assert source.buffered_bytes <= cap + 80 * len(source._kept)
        for credit in receiver.flow.due(network.now_s):
            network.send("receiver", f"source-{credit.source}", pack_credit(credit))
        network.after(0.02, pump)

    def save() -> None:
        receiver.checkpoint()
        network.after(0.3, save)

    def crash() -> None:
        network.detach("receiver")
        network.after(dice.uniform(0.01, 0.4), receiver.start)

    for _ in range(150):
        network.at(dice.uniform(0, 4), offer)
    for _ in range(dice.randint(0, 3)):
        network.at(dice.uniform(0, 4), crash)
    network.after(0, pump)
    network.after(0.3, save)
    with network.trace_on_failure():
        network.run_until(4.5)
        for _ in range(60):
            network.run_for(1.0)
            if all(source.is_drained for source in sources.values()):
                break
        assert all(source.is_drained for source in sources.values())
        assert len(set(receiver.taken)) == len(receiver.taken)
        offered = sum(source.counters.batches_offered for source in sources.values())
        assert offered == len(receiver.taken) + receiver.shed
        assert receiver.shed == sum(source.counters.batches_shed for source in sources.values())
        for number, source in sources.items():
            in_order = [seq for name, seq in receiver.taken if name == number]
            assert in_order == sorted(in_order)
            assert len(in_order) >= important[number]
            assert source.counters.batches_offered == source.next_seq - 1
