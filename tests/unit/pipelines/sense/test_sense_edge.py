from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sense_world import HERE, T0, S, rows_of, settings_of, stage_of, take

from harch.pipelines.sense.edge import EdgeBatcher, Permit, RecentIds
from harch.pipelines.sense.quarantine import Quarantine
from harch.pipelines.sense.settings import SenseLimits, SenseSettings, WindowSettings
from harch.pipelines.wire.header import BatchHeader, unpack_header
from harch.pipelines.wire.rows import ParsedRows

PERMIT = Permit(HERE, 1)
NOW = T0 + 10_000 * S


def rows(times_s: list[float], ids: tuple[str, ...] = ()) -> ParsedRows:
    n = len(times_s)
    return ParsedRows(
        times_ns=np.array([T0 + round(time * S) for time in times_s], np.int64),
        device=np.zeros(n, np.uint32),
        metric=np.zeros(n, np.uint16),
        flag=np.zeros(n, np.uint16),
        values=np.ones((2, n)),
        indexes=np.arange(n),
        event_ids=ids,
    )


def edge(chosen: SenseSettings | None = None, disorder_s: float = 0.0) -> EdgeBatcher:
    return EdgeBatcher("gateway", chosen or settings_of(), PERMIT, disorder_s=disorder_s, priority=2)


def header(message: bytes) -> BatchHeader:
    found = unpack_header(message)
    assert isinstance(found, BatchHeader)
    return found


def test_rows_become_one_batch_in_the_order_of_time_with_the_mask_of_the_source() -> None:
    source = edge(disorder_s=0.3)
    prepared = source.prepare(rows([1.5, 1.0, 2.0]), NOW)
    (message,) = prepared.messages
    head = header(message)
    assert (head.seq, head.n, head.juris_mask, head.priority) == (1, 3, HERE, 2)
    assert (head.t_first_ns, head.watermark_ns) == (T0 + S, T0 + round(1.7 * S))


def test_nothing_moves_on_before_it_is_committed() -> None:
    source, quarantine = edge(), Quarantine(5)
    first = source.prepare(rows([1.0, 99_999.0]), NOW)
    again = source.prepare(rows([1.0, 99_999.0]), NOW)
    assert first.messages == again.messages
    assert quarantine.counts == {}
    source.commit(again, quarantine)
    assert header(source.prepare(rows([1.0]), NOW).messages[0]).seq == 2
    assert quarantine.counts == {"future": 1}


def test_a_row_far_ahead_of_the_clock_does_not_make_the_others_late() -> None:
    source, quarantine = edge(), Quarantine(5)
    source.commit(source.prepare(rows([1.0, 20_000.0]), NOW), quarantine)
    (message,) = source.prepare(rows([1.5]), NOW).messages
    assert header(message).watermark_ns == T0 + round(1.5 * S)


def test_an_event_with_a_known_id_is_left_out() -> None:
    source, quarantine = edge(settings_of(limits=SenseLimits(event_ids_kept=10))), Quarantine(5)
    source.commit(source.prepare(rows([1.0, 1.1, 1.2], ("a", "b", "a")), NOW), quarantine)
    second = source.prepare(rows([1.3, 1.4], ("b", "c")), NOW)
    assert second.events == 1
    source.commit(second, quarantine)
    assert quarantine.counts == {"duplicate_event": 2}


def test_ids_are_forgotten_oldest_first() -> None:
    recent = RecentIds(2)
    recent.remember(["a", "b", "c"])
    assert recent.fresh(["a", "b", "c"]).tolist() == [True, False, False]


def test_the_end_of_a_source_closes_its_windows() -> None:
    stage, source, quarantine = stage_of(), edge(), Quarantine(5)
    prepared = source.prepare(rows([1.0]), NOW)
    source.commit(prepared, quarantine)
    take(stage, prepared.messages[0])
    assert list(rows_of([take(stage, source.watermark_only(is_end=True))])) == [(2.0, 0)]


@settings(deadline=None)
@given(st.lists(st.floats(0, 5000), min_size=1, max_size=60), st.sampled_from([0.5, 1.0, 60.0]))
def test_rows_of_any_times_all_reach_their_windows_when_they_are_sent_at_once(
    times: list[float], size_s: float
) -> None:
    chosen = settings_of(windows=WindowSettings(size_s=size_s, lateness_s=0, skew_s=2.0))
    stage, source = stage_of(chosen), edge(chosen)
    outcomes = [take(stage, message, at_s=9000.0) for message in source.prepare(rows(times), NOW).messages]
    outcomes.append(stage.flush())
    assert stage.counters.events_accepted == len(times)
    assert sum(row["flow.count"] for row in rows_of(outcomes).values()) == len(times)
