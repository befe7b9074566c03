"""What a source has accepted survives it, reaches SENSE once and in order, and waits before anything is shed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.pipelines.sense.edge import Permit
from harch.pipelines.sense.flow_control import Credit
from harch.pipelines.wire.columns import COMPACT
from harch.pipelines.wire.header import BatchHeader, Buffer, Flags, SequenceGap, check_payload, read_gap, unpack_header
from harch.pipelines.workers.outflow import LINE_BYTES_MIN, Outflow, SpoolIntake
from harch.pipelines.workers.source_storage import SourceSpool, SpooledBatch
from harch.testing.clock import SimClock
from unit.pipelines.workers.batches import batch

_EVENTS = 10_000  # 160 kB a batch: six of them fill a line of the least size


class _Outflow(Outflow):
    """At a time that does not matter."""

    def accept(self, messages: Sequence[Buffer], now_s: float = 0.0) -> bool:
        return super().accept(messages, now_s)


def _outflow(folder: Path, *, partitions: int = 1, can_wait: bool = True) -> _Outflow:
    spool = SourceSpool(folder / "s.db", synced=False)
    return _Outflow(spool, COMPACT, Permit(1, 1), partitions=partitions, bytes_max=1, can_wait=can_wait)


def _sent(outflow: Outflow, now_s: float = 100.0) -> list[tuple[int, BatchHeader]]:
    found = []
    for partition, message in outflow.due(now_s):
        header = unpack_header(message)
        assert isinstance(header, BatchHeader)
        if not header.is_watermark_only:
            found.append((partition, header))
    return found


def _grant(outflow: Outflow, checkpointed: int = 0, *, epoch: int = 1, partition: int = 0) -> None:
    outflow.credit(partition, Credit(7, epoch, 1 << 40, checkpointed))


def test_batches_go_out_by_partition_with_gapless_numbers_of_their_own(tmp_path: Path) -> None:
    outflow = _outflow(tmp_path, partitions=2)
    assert outflow.accept([batch(1, [0, 1, 2]), batch(2, [2]), batch(3, [1, 1])])
    _grant(outflow, partition=0)
    _grant(outflow, partition=1)
    numbers = [(partition, header.seq, header.n) for partition, header in _sent(outflow)]
    assert numbers == [(0, 1, 2), (0, 2, 1), (1, 1, 1), (1, 2, 2)]


def test_nothing_is_sent_without_credit_and_nothing_forgotten_without_a_checkpoint(tmp_path: Path) -> None:
    outflow = _outflow(tmp_path)
    outflow.accept([batch(1, [0]), batch(2, [0])])
    assert _sent(outflow) == []
    _grant(outflow)
    assert len(_sent(outflow)) == 2
    assert not outflow.is_drained
    _grant(outflow, checkpointed=2)
    assert outflow.is_drained


def test_a_killed_source_sends_what_it_accepted_and_goes_on_with_the_next_number(tmp_path: Path) -> None:
    first = _outflow(tmp_path)
    first.accept([batch(1, [0]), batch(2, [0]), batch(3, [0])])
    _grant(first, checkpointed=0)
    _sent(first)
    _grant(first, checkpointed=1)
    first.accept([batch(4, [0])])  # writes, and with it forgets what is in the checkpoint
    second = _outflow(tmp_path)  # the file is all that is left
    assert second.last_seq(7) == 4
    assert second.accept([batch(4, [0]), batch(5, [0])]), "its sender repeats itself"
    _grant(second, epoch=1, checkpointed=1)
    assert [header.seq for _, header in _sent(second)] == [2, 3, 4, 5]
    assert second.totals()["batches_repeated"] == 1


def test_a_source_that_resumes_takes_no_more_credit_than_the_least_window(tmp_path: Path) -> None:
    first = _outflow(tmp_path)
    first.accept([batch(1, [0])])
    second = _outflow(tmp_path, can_wait=False)
    many = [batch(seq, [0] * _EVENTS) for seq in range(2, 80)]  # more than eight MiB together
    for message in many:
        second.accept([message])
    second.credit(0, Credit(7, 5, 100 << 20, 0))  # the receiver has counted much of our former life
    sent = sum(header.payload_len + 64 for _, header in _sent(second))
    assert 0 < sent <= 8 << 20


def test_a_sender_that_can_wait_is_told_to_and_one_that_cannot_loses_the_oldest_first_and_it_is_told(
    tmp_path: Path,
) -> None:
    waits = _outflow(tmp_path / "waits")
    taken = [waits.accept([batch(seq, [0] * _EVENTS)]) for seq in range(1, 20)]
    assert taken[0]
    assert not taken[-1]
    assert waits.buffered_bytes <= LINE_BYTES_MIN
    assert waits.totals()["events_shed"] == 0

    sheds = _outflow(tmp_path / "sheds", can_wait=False)
    assert all(sheds.accept([batch(seq, [0] * _EVENTS)]) for seq in range(1, 20))
    assert sheds.buffered_bytes <= LINE_BYTES_MIN
    _grant(sheds)
    events, last = 0, 0
    for _, message in sheds.due(1.0):
        header = unpack_header(message)
        assert isinstance(header, BatchHeader)
        payload = check_payload(header, message)
        assert isinstance(payload, memoryview)
        gap = read_gap(header, payload) if header.is_gap else None
        first = gap.first_seq if gap is not None and not hasattr(gap, "rule") else header.seq
        assert first == last + 1, "sent and shed together are gapless"
        last, events = header.seq, events + header.n
    assert last == 19
    assert events + sheds.totals()["events_shed"] == 19 * _EVENTS


def test_what_was_shed_takes_no_room_in_the_file_and_is_told_after_a_restart(tmp_path: Path) -> None:
    first = _outflow(tmp_path, can_wait=False)
    for seq in range(1, 60):
        first.accept([batch(seq, [0] * _EVENTS)])
    kept = SourceSpool(tmp_path / "s.db", synced=False).lines()[(7, 0)].messages
    assert sum(len(message) for message in kept) <= LINE_BYTES_MIN
    second = _outflow(tmp_path, can_wait=False)
    second.accept([batch(60, [0])])
    _grant(second)
    told, last = 0, 0
    for _, message in second.due(1.0):
        header = unpack_header(message)
        assert isinstance(header, BatchHeader)
        gap = read_gap(header, message[64:]) if header.is_gap else SequenceGap(header.seq, header.seq, header.n)
        assert isinstance(gap, SequenceGap)
        assert gap.first_seq == last + 1
        told, last = told + gap.events, gap.last_seq
    assert (told, last) == (59 * _EVENTS + 1, 60)


def test_a_receiver_that_lost_its_state_hears_of_a_gap_and_goes_on(tmp_path: Path) -> None:
    first = _outflow(tmp_path)
    first.accept([batch(seq, [0]) for seq in range(1, 6)])
    _grant(first)
    _sent(first)
    _grant(first, checkpointed=3)
    first.accept([batch(6, [0])])
    for outflow in (first, _outflow(tmp_path)):  # the same after a restart of the source
        _grant(outflow, epoch=9, checkpointed=0)
        told = _sent(outflow)
        assert [header.is_gap for _, header in told] == [True, False, False, False]
        assert [header.seq for _, header in told] == [3, 4, 5, 6]
        assert outflow.totals()["batches_forgotten"] == 3


def test_what_must_not_be_shed_is_refused_instead(tmp_path: Path) -> None:
    outflow = _outflow(tmp_path, can_wait=False)
    taken = [outflow.accept([batch(seq, [0] * _EVENTS, priority=0)]) for seq in range(1, 20)]
    assert not taken[-1]
    assert outflow.totals()["events_shed"] == 0


def test_rubbish_is_counted_and_passed_over(tmp_path: Path) -> None:
    outflow = _outflow(tmp_path)
    assert outflow.accept([b"rubbish", batch(1, [0])])
    assert outflow.totals()["messages_refused"] == 1
    assert outflow.totals()["events_accepted"] == 1
    assert sum(outflow.quarantine.counts.values()) == 1


def test_the_end_of_a_sender_is_told_once_all_it_sent_is_safe(tmp_path: Path) -> None:
    outflow = _outflow(tmp_path)
    outflow.accept([batch(1, [0]), batch(1, [], flags=Flags.WATERMARK_ONLY | Flags.END)])
    _grant(outflow)
    assert not any(header.is_end for header in _headers(outflow, 1.0))
    _grant(outflow, checkpointed=1)
    assert any(header.is_end for header in _headers(outflow, 2.0))


def test_a_silent_sender_whose_batches_are_safe_holds_nobody_back(tmp_path: Path) -> None:
    outflow = _outflow(tmp_path)
    outflow.accept([batch(1, [0])], 10.0)
    _grant(outflow)
    assert list(outflow.due(20.0, idle_s=5.0)), "its batch is not safe yet"
    _grant(outflow, checkpointed=1)
    assert list(outflow.due(20.0, idle_s=5.0)) == []
    outflow.accept([batch(2, [0])], 21.0)
    assert [header.seq for header in _headers(outflow, 21.0)] == [2]


def test_a_sender_that_speaks_of_now_moves_its_watermark_with_the_clock(tmp_path: Path) -> None:
    outflow = _outflow(tmp_path, partitions=2)
    outflow.accept([batch(1, [0, 1])])
    for partition in (0, 1):
        _grant(outflow, partition=partition)
    _sent(outflow)
    outflow.advance(7, 2 * 10**18)
    assert [header.watermark_ns for header in _headers(outflow, 200.0)] == [2 * 10**18] * 2


async def test_an_input_that_can_wait_goes_on_when_there_is_room_again(tmp_path: Path) -> None:
    outflow = _outflow(tmp_path)
    intake = SpoolIntake(outflow, SimClock())
    seq = 1
    while intake.try_put((batch(seq, [0] * _EVENTS),)):
        seq += 1
    assert intake.refused == 1
    _grant(outflow)
    _sent(outflow)
    _grant(outflow, checkpointed=seq - 1)
    await intake.put(batch(seq, [0] * _EVENTS))
    assert outflow.totals()["batches_accepted"] >= seq


def test_a_spool_that_cannot_write_accepts_nothing(tmp_path: Path) -> None:
    spool = SourceSpool(tmp_path / "s.db", synced=True)
    spool.add([SpooledBatch(1, 0, 1, b"x")], {1: 1})
    with pytest.raises(HarchError) as refused:
        spool.add([SpooledBatch(1, 0, 2, b"y"), SpooledBatch(1, 0, 1, b"again")], {1: 2})
    assert refused.value.code == "E0752"
    assert spool.senders() == {1: 1}
    assert spool.lines()[(1, 0)].messages == (b"x",)


def _headers(outflow: Outflow, now_s: float) -> list[BatchHeader]:
    found = [unpack_header(message) for _, message in outflow.due(now_s)]
    return [header for header in found if isinstance(header, BatchHeader)]


def test_a_flipped_bit_in_the_spool_changes_no_batch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spool = SourceSpool(tmp_path / "s.db", synced=True)
    spool.add([SpooledBatch(7, 0, number, bytes([number]) * 900) for number in range(1, 40)], {7: 39})
    before = spool.lines()
    spool.close()
    data = bytearray((tmp_path / "s.db").read_bytes())
    data[data.index(bytes([20]) * 900) + 450] ^= 4
    (tmp_path / "s.db").write_bytes(data)
    again = SourceSpool(tmp_path / "s.db", synced=True)
    assert again.lines() == before
    again.close()
    assert "a flipped bit" in caplog.text
