from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from harch.pipelines.sense.sources import BatchAdmission, SourceBook
from harch.pipelines.wire.header import BatchHeader, Flags

IDLE_S, SKEW_NS = 5.0, 300


def header(source: int, seq: int, flags: int = 0) -> BatchHeader:
    return BatchHeader(
        schema=1, n=1, juris_mask=1, policy_version=1, source=source, seq=seq, t_first_ns=0, watermark_ns=0,
        payload_len=0, flags=flags,
    )  # fmt: skip


steps = st.tuples(st.integers(1, 4), st.integers(0, 1000), st.floats(0, 3), st.sampled_from([0, 0, 0, int(Flags.END)]))


@settings(deadline=None)
@given(st.lists(steps, max_size=40))
def test_the_watermark_is_the_least_of_those_that_count_and_never_goes_back(
    told: list[tuple[int, int, float, int]],
) -> None:
    book = SourceBook(sources_max=10, idle_s=IDLE_S, skew_ns=SKEW_NS)
    marks: dict[int, Told] = {}
    seqs = dict.fromkeys(range(1, 5), 0)
    now_s, expected = 0.0, 0
    for source, mark_ns, wait_s, flags in told:
        now_s += wait_s
        expected = max(expected, plain_watermark(marks, now_s))
        assert book.watermark_ns(now_s) == expected  # time passes: who is silent no longer counts
        mine = marks.setdefault(source, Told(seen_s=now_s))
        is_behind = max(mine.mark_ns, mark_ns) < expected - SKEW_NS
        comes_in = mine.is_new or mine.ended or now_s - mine.seen_s > IDLE_S
        is_left_behind = is_behind and (mine.is_left_behind or comes_in)
        marks[source] = Told(max(mine.mark_ns, mark_ns), now_s, is_left_behind=is_left_behind, is_new=False)
        expected = max(expected, plain_watermark(marks, now_s))
        assert book.advance(source, mark_ns, now_s) == expected
        seqs[source] += 1
        book.done(header(source, seqs[source], flags), now_s)
        marks[source].ended = bool(flags)


class Told(Struct):
    """What a source has told, as the reference sees it."""

    mark_ns: int = 0
    seen_s: float = 0.0
    ended: bool = False
    is_left_behind: bool = False
    is_new: bool = True


def plain_watermark(marks: dict[int, Told], now_s: float) -> int:
    """Counted anew each time, without any shortcut."""
    counted = [
        one.mark_ns
        for one in marks.values()
        if not one.ended and not one.is_left_behind and now_s - one.seen_s <= IDLE_S
    ]
    return min(counted) if counted else max((one.mark_ns for one in marks.values()), default=0)


def test_nothing_moves_while_it_is_not_known_yet_who_will_come() -> None:
    book = SourceBook(sources_max=10, idle_s=IDLE_S, skew_ns=SKEW_NS, start_wait_s=2.0)
    assert book.advance(1, 1000, 10.0) == 0
    assert book.advance(2, 400, 11.0) == 0
    assert book.watermark_ns(12.0) == 400
    again = SourceBook(sources_max=10, idle_s=IDLE_S, skew_ns=SKEW_NS, start_wait_s=2.0)
    again.restore(book.saved(), 400, 20.0)
    again.advance(2, 500, 20.0)
    assert again.watermark_ns(20.0) == 500


def test_who_holds_others_back_without_moving_is_left_behind_until_it_is_near_again() -> None:
    book = SourceBook(sources_max=10, idle_s=IDLE_S, skew_ns=SKEW_NS)
    book.advance(1, 0, 0.0)
    assert book.advance(2, 1000, 0.0) == 0
    book.leave_behind(900, 0.5, stall_limit_s=1.0)
    assert book.watermark_ns(0.5) == 0
    book.leave_behind(900, 1.0, stall_limit_s=1.0)
    assert book.watermark_ns(1.0) == 1000
    assert book.advance(1, 600, 1.1) == 1000
    assert book.advance(2, 2000, 1.2) == 2000  # still left behind
    book.advance(1, 1800, 1.3)
    assert book.advance(2, 3000, 1.4) == 2000  # near again: it counts


@settings(deadline=None)
@given(st.lists(st.integers(1, 8), max_size=60))
def test_of_any_order_of_batches_each_is_taken_once_and_in_order(arrivals: list[int]) -> None:
    book = SourceBook(sources_max=1, idle_s=IDLE_S, skew_ns=SKEW_NS)
    taken = []
    for seq in arrivals:
        admission = book.admit(header(7, seq), seq)
        expected = len(taken) + 1
        wanted = {True: BatchAdmission.DUPLICATE, False: BatchAdmission.HOLE}[seq < expected]
        assert admission is (BatchAdmission.NEXT if seq == expected else wanted)
        if admission is BatchAdmission.NEXT:
            taken.append(seq)
            book.done(header(7, seq), 0.0)
    assert taken == list(range(1, len(taken) + 1))
