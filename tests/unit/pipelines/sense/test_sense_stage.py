from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sense_world import HERE, T0, S, batch_of, columns_of, empty_of, pass_time, rows_of, settings_of, stage_of, take

from harch.pipelines.sense.accounting import Disposition
from harch.pipelines.sense.checkpoint import decode_checkpoint, encode_checkpoint
from harch.pipelines.sense.devices import DeviceTable, EnrichmentTable
from harch.pipelines.sense.features import encode_features, feature_schema
from harch.pipelines.sense.kernels import accumulate, holt, merge_panes
from harch.pipelines.sense.settings import (
    EnrichmentSettings,
    ForecastSettings,
    SenseLimits,
    SenseSettings,
    WindowSettings,
)
from harch.pipelines.wire.columns import Columns, decode_columns, encode_columns, schema_problems
from harch.pipelines.wire.header import BatchHeader, Flags, SequenceGap, check_payload, pack_gap, unpack_header


def test_a_window_is_told_when_the_watermark_has_passed_its_end_by_the_lateness() -> None:
    stage = stage_of()
    assert not take(stage, batch_of(1, [(0.1, 0, 0, 4.0), (0.9, 0, 0, 8.0), (0.5, 2, 1, -1.0)])).features
    assert not take(stage, empty_of(1, 1.4)).features
    (batch,) = take(stage, empty_of(1, 1.5)).features
    assert batch.key == ("farm", 3, T0 + S)
    assert (batch.window_start_ns, batch.seq, batch.juris_mask) == (T0, 1, HERE)
    rows = {int(device): row for device, row in zip(batch.device, batch.matrix, strict=True)}
    first = dict(zip(batch.names, rows[0], strict=True))
    assert first["flow.count"] == 2
    assert (first["flow.mean"], first["flow.min"], first["flow.max"], first["flow.last"]) == (6.0, 4.0, 8.0, 8.0)
    assert first["flow.std"] == 2.0
    assert first["pressure.count"] == 0
    assert math.isnan(first["pressure.mean"])
    assert list(rows) == [0, 2]


def test_sliding_windows_overlap() -> None:
    sliding = settings_of(windows=WindowSettings(size_s=3.0, slide_s=1.0, lateness_s=0.0), statistics=("sum",))
    stage = stage_of(sliding)
    outcomes = [take(stage, batch_of(seq, [(seq - 0.5, 1, 0, float(seq))])) for seq in range(1, 5)]
    outcomes.append(take(stage, empty_of(4, 6.0)))
    assert {end: row["flow.sum"] for (end, _), row in rows_of(outcomes).items()} == {
        1.0: 1.0, 2.0: 3.0, 3.0: 6.0, 4.0: 9.0, 5.0: 7.0, 6.0: 4.0,
    }  # fmt: skip


def test_rows_per_metric_have_the_same_features_for_each() -> None:
    stage = stage_of(settings_of(rows_per="metric", statistics=("last",)))
    take(stage, batch_of(1, [(0.1, 2, 1, 7.0), (0.2, 2, 0, 8.0)]))
    (batch,) = stage.flush().features
    assert batch.names == ("last",)
    assert (batch.device.tolist(), batch.metric.tolist()) == ([2, 2], [0, 1])
    assert batch.matrix.tolist() == [[8.0], [7.0]]


def test_several_values_are_added_up_side_by_side() -> None:
    stage = stage_of(settings_of(aggregate=("v0", "v1"), metrics=("flow",), statistics=("max",)))
    take(stage, batch_of(1, [(0.1, 0, 0, 7.0)]))
    (batch,) = stage.flush().features
    assert batch.names == ("v0.max", "v1.max")
    assert batch.matrix.tolist() == [[7.0, 0.0]]


def test_events_that_come_too_late_or_too_early_go_to_the_side_lane_and_are_told() -> None:
    stage = stage_of()
    take(stage, batch_of(1, [(10.0, 0, 0, 1.0)], mark_s=12.0))
    outcome = take(stage, batch_of(2, [(9.0, 1, 0, 5.0), (12.2, 1, 0, 6.0), (99.0, 2, 0, 7.0)], mark_s=12.0))
    (side,) = outcome.aside
    assert side.reasons == ("late", "future")
    assert side.columns.values[0].tolist() == [5.0, 7.0]
    assert stage.quarantine.counts == {"late": 1, "future": 1}
    assert "device 1" in stage.quarantine.examples("late")[0].excerpt
    assert stage.counters.events_accepted == 2


def test_events_ahead_of_the_clock_are_not_believed_and_close_nothing() -> None:
    stage = stage_of()
    take(stage, batch_of(1, [(0.0, 0, 0, 1.0)]), at_s=0.5)
    outcome = take(stage, batch_of(2, [(50.0, 0, 0, 1.0)], mark_s=50.0), at_s=0.6)
    assert [side.reasons for side in outcome.aside] == [("future",)]
    assert stage.quarantine.counts["watermark_in_future"] == 1
    assert stage.watermark_ns <= T0 + round(2.6 * S)
    take(stage, batch_of(3, [(2.7, 0, 0, 1.0)]), at_s=2.7)
    assert stage.counters.events_accepted == 2


def test_bad_events_are_counted_exactly_and_the_rest_is_used() -> None:
    stage = stage_of()
    events = [(0.1, 0, 0, 1.0), (0.1, 3, 0, 1.0), (0.1, 60_000, 0, 1.0), (0.1, 0, 2, 1.0), (0.1, 0, 255, 1.0)]
    events += [(0.1, 0, 0, math.nan), (0.1, 1, 1, math.inf), (0.1, 1, 1, -math.inf), (0.2, 0, 0, 3.0)]
    take(stage, batch_of(1, events))
    assert stage.quarantine.counts == {"unknown_device": 2, "unknown_metric": 2, "bad_value": 3}
    assert rows_of([stage.flush()])[1.0, 0]["flow.mean"] == 2.0
    assert [count for _, count, _ in stage.quarantine.explain()] == [3, 2, 2]
    assert all(sentence for _, _, sentence in stage.quarantine.explain())


def test_a_device_that_an_operator_adds_is_known_from_the_next_batch_on() -> None:
    stage = stage_of()
    take(stage, batch_of(1, [(0.1, 3, 0, 1.0)]))
    assert stage.state.devices.add("pump-3") == 3
    take(stage, batch_of(2, [(0.2, 3, 0, 1.0)]))
    assert (stage.counters.events_accepted, stage.quarantine.counts) == (1, {"unknown_device": 1})


def test_repeats_are_counted_once_and_holes_are_asked_for() -> None:
    stage = stage_of()
    first, second, third = (batch_of(seq, [(0.1 * seq, 0, 0, 1.0)]) for seq in (1, 2, 3))
    take(stage, first)
    assert take(stage, first).disposition is Disposition.DUPLICATE
    hole = take(stage, third)
    assert (hole.disposition, hole.missing) == (Disposition.HOLE, (1, 2))
    assert [take(stage, message).disposition for message in (second, third)] == [Disposition.TAKEN] * 2
    assert rows_of([stage.flush()])[1.0, 0]["flow.count"] == 3


def test_a_watermark_tells_of_batches_that_were_lost_at_the_end() -> None:
    stage = stage_of()
    take(stage, batch_of(1, [(0.1, 0, 0, 1.0)]))
    outcome = take(stage, empty_of(3, 9.0))
    assert (outcome.disposition, outcome.missing) == (Disposition.HOLE, (1, 2))
    assert not outcome.features


def test_a_gap_is_accounted_for_and_not_lost() -> None:
    stage = stage_of()
    take(stage, batch_of(1, [(0.1, 0, 0, 1.0)]))
    header = unpack_header(batch_of(2, [(0.2, 0, 0, 1.0)]))
    assert isinstance(header, BatchHeader)
    assert take(stage, pack_gap(header, SequenceGap(2, 4, 30))).disposition is Disposition.GAP
    assert take(stage, batch_of(5, [(0.3, 0, 0, 1.0)])).disposition is Disposition.TAKEN
    assert (stage.counters.batches_shed, stage.counters.events_shed, stage.counters.holes) == (3, 30, 0)


def test_the_slowest_live_source_holds_windows_open_until_it_is_silent_for_too_long() -> None:
    stage = stage_of()
    take(stage, batch_of(1, [(0.2, 0, 0, 1.0)], source=1), at_s=0.2)
    take(stage, batch_of(1, [(0.2, 1, 0, 1.0)], source=2), at_s=0.2)
    pass_time(stage, 0.2, 1.8)
    assert not take(stage, batch_of(2, [(1.9, 0, 0, 1.0)], source=1, mark_s=1.9), at_s=1.9).features
    assert not any(outcome.features for outcome in pass_time(stage, 1.9, 5.1))
    assert rows_of(pass_time(stage, 5.1, 5.3))


def test_a_pause_of_the_stage_itself_makes_no_source_silent() -> None:
    stage = stage_of()
    take(stage, batch_of(1, [(0.2, 0, 0, 1.0)], source=1), at_s=0.2)
    take(stage, batch_of(1, [(0.2, 1, 0, 1.0)], source=2), at_s=0.2)
    for seq in range(2, 12):  # after a minute: all of the first source, then all of the second one
        take(stage, batch_of(seq, [(float(seq), 0, 0, 1.0)], source=1), at_s=60.0)
    for seq in range(2, 12):
        take(stage, batch_of(seq, [(float(seq), 1, 0, 1.0)], source=2), at_s=60.0)
    assert stage.quarantine.counts == {}
    assert stage.counters.events_accepted == 22


def test_a_source_that_comes_back_far_behind_does_not_hold_the_others_back() -> None:
    stage = stage_of()
    take(stage, batch_of(1, [(0.2, 0, 0, 1.0)], source=1), at_s=100.0)
    take(stage, batch_of(1, [(0.2, 1, 0, 1.0)], source=2), at_s=100.0)
    for seq in range(2, 22):
        take(stage, batch_of(seq, [(float(seq), 0, 0, 1.0)], source=1), at_s=99.5 + seq / 2)
        pass_time(stage, 99.5 + seq / 2, 99.9 + seq / 2)
    closed = stage.counters.windows_closed
    assert closed > 10
    take(stage, empty_of(1, 0.2, source=2), at_s=110.6)
    take(stage, batch_of(22, [(30.0, 0, 0, 1.0)], source=1), at_s=110.7)
    assert stage.counters.windows_closed > closed


def test_a_source_that_is_too_far_behind_comes_late_and_does_not_stop_the_others() -> None:
    stage = stage_of()
    take(stage, batch_of(1, [(100.0, 0, 0, 1.0)], source=1))
    take(stage, batch_of(1, [(1.0, 1, 0, 1.0)], source=2))
    outcomes = [take(stage, batch_of(seq, [(99.0 + seq, 0, 0, 1.0)], source=1)) for seq in range(2, 8)]
    assert sum(len(outcome.features) for outcome in outcomes) >= 2
    assert stage.quarantine.counts == {"late": 1}


def test_a_source_that_is_far_ahead_waits_for_the_others_and_nobody_is_late() -> None:
    stage = stage_of()
    take(stage, empty_of(0, 0.0, source=1))
    take(stage, empty_of(0, 0.0, source=2))
    fast = [take(stage, batch_of(seq, [(float(seq), 0, 0, 1.0)], source=1)) for seq in range(1, 11)]
    assert [outcome.disposition for outcome in fast[-2:]] == [Disposition.AHEAD] * 2
    assert take(stage, batch_of(10, [(10.0, 0, 0, 1.0)], source=1)).disposition is Disposition.DUPLICATE
    assert take(stage, batch_of(12, [(12.0, 0, 0, 1.0)], source=1)).disposition is Disposition.HOLE
    slow = [take(stage, batch_of(seq, [(float(seq), 1, 0, 1.0)], source=2)) for seq in range(1, 11)]
    ticked = stage.tick(now_ns=T0 + 1000 * S, now_s=1000.0)
    waited = sum(outcome.disposition is Disposition.AHEAD for outcome in fast)
    assert [source for source, _ in ticked.released] == [1] * waited
    rows = rows_of([*fast, *slow, ticked, stage.flush()])
    assert {(end, device): row["flow.count"] for (end, device), row in rows.items()} == {
        (seq + 1.0, device): 1.0 for seq in range(1, 11) for device in (0, 1)
    }
    assert stage.quarantine.counts == {}
    assert stage.counters.events_in == 20


def test_who_stalls_or_fills_the_memory_of_those_that_wait_is_left_behind() -> None:
    for limits, now_s in ((SenseLimits(), 1002.0), (SenseLimits(ahead_bytes_max=100), 1000.0)):
        stage = stage_of(settings_of(limits=limits))
        take(stage, empty_of(0, 0.0, source=2))
        for seq in range(1, 11):
            take(stage, batch_of(seq, [(float(seq), 0, 0, 1.0)], source=1))
        assert stage.counters.events_accepted < 10
        pass_time(stage, 1000.0, now_s)
        assert stage.counters.events_accepted == 10


def test_gaps_and_the_end_of_a_source_keep_their_place_behind_what_waits() -> None:
    stage = stage_of()
    take(stage, empty_of(0, 0.0, source=2))
    take(stage, batch_of(1, [(0.1, 0, 0, 1.0)]))
    take(stage, batch_of(2, [(50.0, 0, 0, 1.0)]))
    header = unpack_header(batch_of(3, [(50.1, 0, 0, 1.0)]))
    assert isinstance(header, BatchHeader)
    waits = [pack_gap(header, SequenceGap(3, 5, 7)), batch_of(6, [(50.2, 0, 0, 1.0)]), empty_of(6, 60.0, flags=5)]
    assert [take(stage, message).disposition for message in waits] == [Disposition.AHEAD] * 3
    assert take(stage, empty_of(6, 60.0)).disposition is Disposition.WATERMARK
    assert stage.counters.batches_shed == 0
    outcome = take(stage, empty_of(0, 0.0, source=2, flags=5))
    assert list(rows_of([outcome])) == [(1.0, 0), (51.0, 0)]
    assert (stage.counters.batches_shed, stage.counters.events_accepted) == (3, 3)


@settings(deadline=None)
@given(st.data())
def test_however_sources_that_are_known_interleave_nothing_of_them_is_late(data: st.DataObject) -> None:
    stage = stage_of(settings_of(windows=WindowSettings(size_s=1.0, lateness_s=0.0, skew_s=2.0)))
    queues = {}
    for source in (1, 2, 3):
        take(stage, empty_of(0, 0.0, source=source))
        times = sorted(data.draw(st.lists(st.floats(0, 40), max_size=12), label=f"source {source}"))
        queues[source] = [batch_of(seq, [(time, 0, 0, 1.0)], source=source) for seq, time in enumerate(times, 1)]
        queues[source].append(empty_of(len(times), 40.0, source=source, flags=5))
    sent = sum(len(queue) - 1 for queue in queues.values())
    outcomes = []
    while queues:
        source = data.draw(st.sampled_from(sorted(queues)))
        outcomes.append(take(stage, queues[source].pop(0)))
        if not queues[source]:
            del queues[source]
    assert stage.quarantine.counts == {}
    assert stage.counters.events_accepted == sent
    assert sum(row["flow.count"] for row in rows_of(outcomes).values()) == sent


def test_when_all_sources_have_ended_nothing_is_left_open() -> None:
    stage = stage_of()
    take(stage, batch_of(1, [(0.2, 0, 0, 1.0)], source=1))
    take(stage, batch_of(1, [(0.3, 1, 0, 1.0)], source=2))
    assert not take(stage, empty_of(2, 0.2, source=1, flags=Flags.END)).features
    assert list(rows_of([take(stage, empty_of(2, 0.3, source=2, flags=Flags.END))])) == [(1.0, 0), (1.0, 1)]
    take(stage, batch_of(3, [(1.2, 0, 0, 1.0)], source=1))
    assert stage.counters.events_accepted == 3  # who comes back is not late


def test_a_jump_of_hours_closes_what_there_was_and_goes_on_at_once() -> None:
    stage = stage_of()
    take(stage, batch_of(1, [(0.2, 0, 0, 1.0)]))
    outcome = take(stage, batch_of(2, [(36_000.0, 0, 0, 2.0)]), at_s=36_001.0)
    assert list(rows_of([outcome])) == [(1.0, 0)]
    assert not outcome.aside
    assert rows_of([stage.flush()])[36_001.0, 0]["flow.last"] == 2.0


def test_batches_of_another_form_are_refused_and_accounted_for() -> None:
    stage = stage_of()
    assert take(stage, batch_of(1, [(0.1, 0, 0, 1.0)], schema=5)).disposition is Disposition.REFUSED
    assert take(stage, batch_of(2, [(0.1, 0, 0, 1.0)], n=2)).disposition is Disposition.REFUSED
    assert take(stage, batch_of(3, [(0.1, 0, 0, 1.0)])).disposition is Disposition.TAKEN
    assert stage.quarantine.counts == {"unknown_schema": 1, "bad_columns": 2}
    assert (stage.counters.events_in, stage.counters.events_refused) == (4, 3)


def test_a_damaged_message_leaves_nothing_behind_and_is_asked_for_again() -> None:
    stage = stage_of()
    message = bytearray(batch_of(1, [(0.1, 0, 0, 1.0)]))
    message[70] ^= 1
    assert take(stage, bytes(message)).disposition is Disposition.DAMAGED
    assert take(stage, b"x" * 10_000_000).disposition is Disposition.DAMAGED
    assert [example.excerpt for example in stage.quarantine.examples()] == ["", ""]
    assert stage.state.sources.seq_of(1) == 0


def test_more_sources_than_allowed_are_refused_unless_one_has_ended() -> None:
    limits = settings_of().limits
    stage = stage_of(settings_of(limits=type(limits)(sources_max=1)))
    take(stage, batch_of(1, [(0.1, 0, 0, 1.0)], source=1))
    refused = take(stage, batch_of(1, [(0.1, 0, 0, 1.0)], source=2))
    assert refused.disposition is Disposition.REFUSED
    assert [alert.rule for alert in refused.alerts] == ["too_many_sources"]
    take(stage, empty_of(2, 0.1, source=1, flags=Flags.END))
    assert take(stage, batch_of(1, [(5.1, 0, 0, 1.0)], source=2)).disposition is Disposition.TAKEN


def test_features_travel_as_batches() -> None:
    chosen = settings_of(statistics=("mean", "max"))
    stage = stage_of(chosen)
    take(stage, batch_of(1, [(0.1, 2, 1, 7.0)]))
    (batch,) = stage.flush().features
    schema = feature_schema(chosen)
    assert not schema_problems(schema)
    message = encode_features(batch, schema, source=stage.name.source)
    header = unpack_header(message)
    assert isinstance(header, BatchHeader)
    payload = check_payload(header, message)
    assert isinstance(payload, memoryview)
    columns = decode_columns(schema, header.n, payload)
    assert isinstance(columns, Columns)
    assert [column.name for column in schema.values] == list(batch.names)
    np.testing.assert_array_equal(columns.values.T, batch.matrix)
    assert (header.seq, header.watermark_ns, columns.device.tolist()) == (1, T0 + S, [2])


def test_features_are_joined_with_what_is_known_of_the_device() -> None:
    chosen = settings_of(statistics=("last",), enrichment=EnrichmentSettings(table="fields", columns=("area_ha",)))
    stage = stage_of(chosen)
    devices = DeviceTable(chosen.devices, chosen.devices_max, chosen.metrics)
    rows = {"pump-1": {"area_ha": 12.5}, "unheard-of": {"area_ha": 1.0}}
    stage.learn_enrichment(EnrichmentTable.of(7, ("area_ha",), rows, devices))
    stage.learn_enrichment(EnrichmentTable.of(6, ("area_ha",), {}, devices))
    take(stage, batch_of(1, [(0.1, 0, 0, 1.0), (0.1, 1, 0, 2.0)]))
    (batch,) = stage.flush().features
    assert batch.names[-1] == "area_ha"
    assert batch.enrichment_version == 7
    assert batch.matrix[1, -1] == 12.5
    assert math.isnan(batch.matrix[0, -1])


def test_a_forecast_continues_the_trend_of_the_history() -> None:
    chosen = settings_of(
        statistics=("mean",),
        metrics=("flow",),
        forecast=ForecastSettings(span_s=14_400, step_s=60, horizon_s=600),
        windows=WindowSettings(size_s=60, lateness_s=0, skew_s=60),
    )
    stage = stage_of(chosen)
    outcomes = [
        take(stage, batch_of(minute + 1, [(60.0 * minute, 0, 0, 100.0 + 2.0 * minute)]), at_s=1e5)
        for minute in range(20)
    ]
    told = list(rows_of(outcomes).values())
    last = told[-1]
    assert last["trend_per_s"] == pytest.approx(2.0 / 60)
    assert last["forecast"] == pytest.approx(last["level"] + 20.0, rel=1e-6)
    assert math.isnan(told[0]["forecast"])


@pytest.mark.parametrize("schema", ["compact", "wide"])
def test_after_the_warm_up_nothing_is_compiled_any_more(schema: str) -> None:
    chosen = settings_of(
        schema=schema,
        windows=WindowSettings(size_s=2.0, slide_s=1.0),
        forecast=ForecastSettings(span_s=20, step_s=4),
    )
    stage = stage_of(chosen)
    stage.warm_up()
    compiled = [len(kernel.signatures) for kernel in (accumulate, merge_panes, holt)]  # type: ignore[attr-defined]
    rng = np.random.default_rng(1)
    _, columns = columns_of([(at, 0, 0, 1.0) for at in rng.uniform(0, 1, 50)], chosen.event_schema)
    payload = b"?" + encode_columns(chosen.event_schema, columns)  # at an odd address, as a client may deliver it
    decoded = decode_columns(chosen.event_schema, 50, memoryview(payload)[1:])
    assert isinstance(decoded, Columns)
    stage.state.windows.begin(T0)
    stage.state.windows.add(decoded, devices=3, t_first_ns=T0, time_ns_max=T0 + 9 * S)
    assert stage.flush().features
    assert compiled == [len(kernel.signatures) for kernel in (accumulate, merge_panes, holt)]  # type: ignore[attr-defined]


@st.composite
def stories(draw: st.DrawFn) -> tuple[SenseSettings, list[tuple[int, bytes]]]:
    """Settings, and batches of two sources in their order; each with a watermark that it keeps."""
    slide = draw(st.sampled_from([None, 1.0, 0.5]))
    chosen = settings_of(
        windows=WindowSettings(size_s=2.0, slide_s=slide, lateness_s=draw(st.sampled_from([0.0, 0.7])), skew_s=3.0),
        statistics=("count", "sum", "min", "max"),
        forecast=draw(st.sampled_from([None, ForecastSettings(span_s=20, step_s=4, horizon_s=8)])),
    )
    messages = []
    seqs, marks = {1: 0, 2: 0}, {1: 0.0, 2: 0.0}
    for _ in range(draw(st.integers(1, 12))):
        source = draw(st.sampled_from([1, 2]))
        start = marks[source]
        times = draw(st.lists(st.integers(0, 3000), min_size=1, max_size=6))
        events = [
            (start + time / 1000, draw(st.integers(0, 4)), draw(st.integers(0, 2)), float(draw(st.integers(-9, 9))))
            for time in times
        ]
        marks[source] = start + draw(st.integers(0, 2500)) / 1000
        seqs[source] += 1
        messages.append((source, batch_of(seqs[source], events, source=source, mark_s=marks[source])))
    return chosen, messages


@settings(deadline=None)
@given(stories())
def test_every_event_is_in_its_windows_or_told(story: tuple[SenseSettings, list[tuple[int, bytes]]]) -> None:
    chosen, messages = story
    stage = stage_of(chosen)
    outcomes = [take(stage, message) for _, message in messages]
    outcomes.append(stage.flush())
    counters = stage.counters
    assert counters.events_in == counters.events_accepted + counters.events_aside
    assert counters.events_aside == sum(stage.quarantine.counts.values())
    per_window = chosen.windows.panes_per_window
    counted = sum(row[f"{metric}.count"] for row in rows_of(outcomes).values() for metric in ("flow", "pressure"))
    assert counted == per_window * counters.events_accepted
    keys = [batch.key for outcome in outcomes for batch in outcome.features]
    assert keys == sorted(set(keys))
    assert [batch.seq for outcome in outcomes for batch in outcome.features] == list(range(1, len(keys) + 1))


@settings(deadline=None)
@given(stories(), st.data())
def test_a_stage_that_starts_again_from_a_checkpoint_tells_the_same_to_the_last_bit(
    story: tuple[SenseSettings, list[tuple[int, bytes]]], data: st.DataObject
) -> None:
    chosen, messages = story
    crash = data.draw(st.integers(0, len(messages)), label="crash after")
    resend = data.draw(st.integers(0, crash), label="sources send again from")
    one = stage_of(chosen)
    for _, message in messages[:crash]:
        take(one, message)
    value = encode_checkpoint(one.snapshot(), compress=data.draw(st.booleans(), label="compress"))
    after = [take(one, message) for _, message in messages[crash:]] + [one.flush()]

    other = stage_of(chosen)
    other.restore(decode_checkpoint(value), 1000.0)
    again = [take(other, message) for _, message in messages[resend:]] + [other.flush()]
    told, expected = ([b for outcome in some for b in outcome.features] for some in (again, after))
    assert [b.key for b in told] == [b.key for b in expected]
    for got, wanted in zip(told, expected, strict=True):
        np.testing.assert_array_equal(got.matrix, wanted.matrix)
        assert (got.seq, got.juris_mask, got.device.tolist()) == (wanted.seq, wanted.juris_mask, wanted.device.tolist())
    final, finally_expected = other.snapshot(), one.snapshot()
    assert final.cells == finally_expected.cells
    assert final.sources == finally_expected.sources
