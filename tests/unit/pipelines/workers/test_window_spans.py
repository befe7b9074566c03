"""Windows that are followed: the same ones in every stage, in one trace, told in bounds."""

from __future__ import annotations

import msgspec
from batches import batch

from harch.base.clock import SystemClock
from harch.base.metrics import ExemplarHistogram
from harch.base.tracing.spans import FinishedSpan, read_header, span_id_of
from harch.base.tracing.tracer import Tracing
from harch.hub.pipelines.window_traces import WindowTraces
from harch.pipelines.sense.gate import PolicyTable
from harch.pipelines.sense.settings import SenseSettings
from harch.pipelines.wire.header import BatchHeader, first_time_ns, pack_batch
from harch.pipelines.workers.config import EngineAccess, WorkerConfig
from harch.pipelines.workers.names import StageRoute
from harch.pipelines.workers.telemetry import SPANS_MAX, SPANS_PER_MESSAGE, Made, WindowSpans, WorkerStatus
from harch.sovereignty.geography import LegalSite
from harch.testing.clock import SimClock
from unit.pipelines.workers.test_hot_partition import Lane, SlowBucket, hot_partition

SECOND_NS = 1_000_000_000
END_NS = 1_790_000_000 * SECOND_NS


def config(stage: str = "sense", share: float = 1.0, pipeline: str = "fields") -> WorkerConfig:
    access = EngineAccess(servers=("nats://127.0.0.1:1",), user="u", seed="s")
    return WorkerConfig(
        worker=f"{stage}-0",
        stage=stage,  # type: ignore[arg-type]
        pipeline=pipeline,
        country="MA",
        site=LegalSite(hub="dakhla", country="MA"),
        policy=PolicyTable(1, {"dakhla": 0}),
        juris_mask=1,
        sense=SenseSettings(devices=("a",), devices_max=1),
        engine=access,
        act_engine=access,
        state_folder="/nowhere",
        route=StageRoute(thinks=True, acts=True),
        trace_share=share,
    )


def spans_of(stage: str = "sense", share: float = 1.0) -> tuple[WindowSpans, list[bytes]]:
    told: list[bytes] = []
    return WindowSpans(config(stage, share), SimClock(), told.append), told


def read(told: list[bytes]) -> list[FinishedSpan]:
    return [span for message in told for span in msgspec.msgpack.decode(message, type=list[FinishedSpan])]


def outputs(window_end_ns: int) -> bytes:
    header = BatchHeader(
        schema=1,
        n=0,
        juris_mask=1,
        policy_version=1,
        source=9,
        seq=4,
        t_first_ns=window_end_ns,
        watermark_ns=window_end_ns,
        payload_len=0,
    )
    return pack_batch(header)


def test_every_stage_follows_the_same_windows_and_about_the_share_that_was_asked_for() -> None:
    stages = [spans_of(stage, 0.05)[0] for stage in ("sense", "think", "act")]
    ends = [END_NS + number * SECOND_NS for number in range(4_000)]
    chosen = [{end for end in ends if spans.trace_of(end)} for spans in stages]
    assert chosen[0] == chosen[1] == chosen[2]
    assert 130 < len(chosen[0]) < 280
    assert stages[1].trace_in(outputs(ends[7])) == stages[0].trace_of(ends[7])
    assert first_time_ns(b"short") == 0


def test_spans_of_a_window_hang_on_each_other_over_three_processes() -> None:
    (sense, said), (think, thought), (act, acted) = (spans_of(stage) for stage in ("sense", "think", "act"))
    trace_id = sense.trace_of(END_NS)
    assert trace_id is not None
    message = outputs(END_NS)
    sense.sensed(3, Made(trace_id, END_NS, 12))
    think.thought(3, trace_id, END_NS, message, [])
    context = act.act_context(trace_id, 3, message)
    act.acted(3, trace_id, message, END_NS, commands=2)
    act.action_ended(context, END_NS, {"action.id": "cmd_1", "action.state": "done"}, "")
    for spans in (sense, think, act):
        spans.flush()
    (sensed,), (thinking,), (acting, action) = read(said), read(thought), read(acted)
    assert {one.trace_id for one in (sensed, thinking, acting, action)} == {trace_id}
    assert (sensed.parent_id, thinking.parent_id) == (b"", sensed.span_id)
    assert (acting.parent_id, action.parent_id) == (thinking.span_id, acting.span_id)
    assert read_header(context.header) == context
    assert (sensed.service, thinking.service, acting.service) == ("harchos-sense", "harchos-think", "harchos-act")
    assert (sensed.attributes["batch.rows"], acting.attributes["act.commands"]) == (12, 2)


def test_what_waits_to_be_told_has_a_limit_and_so_has_each_message() -> None:
    spans, told = spans_of()
    for number in range(SPANS_MAX + 10):
        spans.sensed(number, Made(b"t" * 16, END_NS, 1))
    assert spans.dropped == 10
    spans.flush()
    assert len(read(told)) == SPANS_PER_MESSAGE


async def test_a_partition_tells_its_followed_windows_once_they_are_delivered() -> None:
    spans, told = spans_of()
    bucket, lane, clock = SlowBucket(), Lane(), SystemClock()
    bucket.gate.set()
    partition = hot_partition(bucket, lane, clock)
    partition._spans = spans
    await partition.open()
    now_ns = round(clock.now().timestamp()) * SECOND_NS - 10 * SECOND_NS
    for seq in (1, 2, 3):
        partition.take(batch(seq, [0, 1, 2], first_ns=now_ns + seq * SECOND_NS))
    spans.flush()
    assert told == []
    await partition.deliver()
    spans.flush()
    first, second = read(told)
    assert first.trace_id != second.trace_id
    assert first.attributes["partition"] == 0
    assert first.span_id == span_id_of(first.trace_id, "sense", 0)
    assert not partition._followed


# At the hub


def status(stage: str, counts: tuple[int, ...]) -> WorkerStatus:
    return WorkerStatus(
        worker="w",
        stage=stage,
        pipeline="fields",
        at_ms=0,
        incarnation="i",
        pid=1,
        health="ok",
        latency_counts=counts,
    )


def test_a_hub_passes_on_what_is_sound_and_shows_it_behind_latencies() -> None:
    from harch.pipelines.think.counters import LATENCY_BOUNDS_MS

    kept: list[FinishedSpan] = []
    counts = (1,) * (len(LATENCY_BOUNDS_MS) + 1)
    traces = WindowTraces(Tracing(kept.append, SimClock()), lambda: {"fields": (status("sense", counts),) * 2})
    spans, told = spans_of()
    spans.sensed(0, Made(b"t" * 16, END_NS, 1))
    spans.flush()
    traces.hear(told[0])
    assert [span.service for span in kept] == ["harchos-sense"]
    (family,) = traces.collect()
    found = {sample.labels["le"]: sample for sample in family.samples}
    assert found["+Inf"].value == 2 * len(counts)
    assert [one.exemplar.labels for one in found.values() if one.exemplar] == [{"trace_id": (b"t" * 16).hex()}]


def test_a_hub_drops_what_a_worker_has_no_business_to_tell() -> None:
    kept: list[FinishedSpan] = []
    traces = WindowTraces(Tracing(kept.append, SimClock()), dict)
    sound = FinishedSpan(trace_id=b"t" * 16, span_id=b"s" * 8, name="n", start_ns=1, end_ns=2, service="harchos-sense")
    for forged in (
        msgspec.structs.replace(sound, service="harchos-hub"),
        msgspec.structs.replace(sound, trace_id=b"short"),
        msgspec.structs.replace(sound, end_ns=0),
        msgspec.structs.replace(sound, attributes={"x": "y" * 10_000}),
    ):
        traces.hear(msgspec.msgpack.encode([forged]))
    traces.hear(b"rubbish")
    traces.hear(b"x" * (1 << 20))
    assert kept == []
    assert traces.refused == 6
    traces.hear(msgspec.msgpack.encode([sound] * 5_000))
    assert len(kept) <= 1_000


def test_histograms_of_base_and_of_pipelines_write_bounds_alike() -> None:
    waits = ExemplarHistogram("h", "d", (0.5,))
    waits.observe(0.1)
    (family,) = waits.collect()
    assert {sample.labels.get("le") for sample in family.samples if sample.name == "h_bucket"} == {"0.5", "+Inf"}
