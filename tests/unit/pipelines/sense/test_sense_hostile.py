"""Messages with a right checksum and wrong intentions: the stage never raises, and its books balance."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sense_world import T0, S, batch_of, rows_of, settings_of, stage_of, take

from harch.pipelines.sense.gate import PolicyTable
from harch.pipelines.sense.settings import ForecastSettings, SenseLimits, WindowSettings
from harch.pipelines.wire.columns import COMPACT, Columns, encode_columns
from harch.pipelines.wire.header import MAGIC, TIME_NS_MAX, crc32c

LAYOUT = struct.Struct("<IBBBBIIQIIQqqI")
near = st.integers(T0 - 5 * S, T0 + 40 * S)
times = near | st.integers(0, TIME_NS_MAX) | st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, TIME_NS_MAX])


often = st.sampled_from


@st.composite
def stories(draw: st.DrawFn) -> list[bytes]:
    """Any headers over any payloads, with the checksums that belong to them; many are right, so that some get far."""
    seqs = {1: 0, 2: 0, 3: 0}
    return [draw(message(seqs)) for _ in range(draw(st.integers(0, 25)))]


@st.composite
def message(draw: st.DrawFn, seqs: dict[int, int]) -> bytes:
    n = draw(st.integers(1, 5))
    payload = encode_columns(COMPACT, Columns(*(draw_array(draw, n, kind) for kind in range(4)), np.ones((2, n))))
    if draw(often([False] * 9 + [True])):
        payload = draw(st.binary(max_size=100))
    source = draw(st.integers(1, 3))
    seqs[source] += 1
    head = LAYOUT.pack(
        MAGIC,
        1,
        draw(often([0] * 20 + [1, 2, 4, 5, 8, 9, 12, 255])),
        draw(often([0, 3, 7, 3, 3, 3, 3, 9])),
        draw(often([0, 1, 2, 0, 0, 0, 0, 3])),
        draw(often([COMPACT.id] * 9 + [7])),
        draw(often([n] * 9 + [0, 2**20, 2**32 - 1])),
        draw(often([1, 3, 1, 3, 1, 0, 2, 2**64 - 1])),
        draw(often([1] * 8 + [2, 9])),
        source,
        draw(often([seqs[source]] * 9 + [1, 2, 0, 2**63 - 1, 2**64 - 1])),
        draw(near | near | near | times),
        draw(near | near | near | times),
        len(payload),
    )
    return head + crc32c(payload, crc32c(head)).to_bytes(4, "little") + payload


def draw_array(draw: st.DrawFn, n: int, kind: int) -> Any:
    limit = (2_000_000, 4, 2, 255)[kind]
    return np.array(draw(st.lists(st.integers(0, limit), min_size=n, max_size=n)))


@settings(deadline=None, max_examples=200)
@given(stories(), st.lists(st.floats(0, 3), min_size=25, max_size=25))
def test_no_message_breaks_the_stage_and_every_event_is_accounted_for(story: list[bytes], waits: list[float]) -> None:
    chosen = settings_of(
        windows=WindowSettings(size_s=2.0, slide_s=1.0),
        forecast=ForecastSettings(span_s=20, step_s=2),
        limits=SenseLimits(sources_max=2, hold_bytes_max=500, ahead_bytes_max=500),
    )
    stage = stage_of(chosen)
    now_s = 0.0
    outcomes = []
    for message, wait_s in zip(story, waits, strict=False):
        now_s += wait_s
        outcomes.append(take(stage, message, at_s=now_s))
        outcomes.append(stage.tick(now_ns=T0 + round(now_s * S), now_s=now_s))
    outcomes += stage.learn_policy(PolicyTable(2, {"dakhla": 1}), now_ns=T0 + round(now_s * S), now_s=now_s)
    for _ in range(30):
        now_s += 0.5
        outcomes.append(stage.tick(now_ns=T0 + round(now_s * S), now_s=now_s))
    outcomes.append(stage.flush())
    counters = stage.counters
    told = counters.events_accepted + counters.events_aside + counters.events_dropped + counters.events_refused
    assert counters.events_in == told
    keys = [batch.window_end_ns for outcome in outcomes for batch in outcome.features]
    assert keys == sorted(set(keys))
    counted = sum(row["flow.count"] + row["pressure.count"] for row in rows_of(outcomes).values())
    assert counted == 2 * counters.events_accepted  # two windows each
    assert stage._ahead.bytes == 0
    assert len(stage._holding) == 0
    assert all(np.isfinite(batch.matrix[:, 0]).all() for outcome in outcomes for batch in outcome.features)


def test_a_stage_goes_on_after_all_of_that() -> None:
    stage = stage_of()
    for junk in (b"", b"\x00" * 64, b"HRCH" + b"\xff" * 200, batch_of(1, [(0.0, 0, 0, 1.0)])[:-1]):
        take(stage, junk)
    take(stage, batch_of(1, [(0.0, 0, 0, 1.0)]))
    assert (stage.counters.events_accepted, stage.counters.batches_damaged) == (1, 4)
