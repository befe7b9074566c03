from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from harch.pipelines.sense.sources import Admission, SourceBook
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
    marks: dict[int, tuple[int, float, bool]] = {}
    seqs = dict.fromkeys(range(1, 5), 0)
    now_s, expected = 0.0, 0
    for source, mark_ns, wait_s, flags in told:
        now_s += wait_s
        book.watermark_ns(now_s)  # time passes: who is silent no longer counts
        live = [mark for mark, seen_s, ended in marks.values() if not ended and now_s - seen_s <= IDLE_S]
        if live:
            expected = max(expected, min(live), max(live) - SKEW_NS)
        elif marks:
            expected = max(expected, max(mark for mark, _, _ in marks.values()))
        before = marks.get(source, (0, 0.0, False))[0]
        marks[source] = (max(before, mark_ns), now_s, False)
        live = [mark for mark, seen_s, ended in marks.values() if not ended and now_s - seen_s <= IDLE_S]
        expected = max(expected, min(live), max(live) - SKEW_NS)
        assert book.advance(source, mark_ns, now_s) == expected
        seqs[source] += 1
        book.done(header(source, seqs[source], flags), now_s)
        if flags:
            marks[source] = (*marks[source][:2], True)


@settings(deadline=None)
@given(st.lists(st.integers(1, 8), max_size=60))
def test_of_any_order_of_batches_each_is_taken_once_and_in_order(arrivals: list[int]) -> None:
    book = SourceBook(sources_max=1, idle_s=IDLE_S, skew_ns=SKEW_NS)
    taken = []
    for seq in arrivals:
        admission = book.admit(header(7, seq), seq)
        expected = len(taken) + 1
        wanted = {True: Admission.DUPLICATE, False: Admission.HOLE}[seq < expected]
        assert admission is (Admission.NEXT if seq == expected else wanted)
        if admission is Admission.NEXT:
            taken.append(seq)
            book.done(header(7, seq), 0.0)
    assert taken == list(range(1, len(taken) + 1))
