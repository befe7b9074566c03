from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sense_world import batch_of, settings_of, stage_of, take

from harch.base.errors import HarchError
from harch.pipelines.sense.checkpoint import SenseCheckpoint, decode_checkpoint, encode_checkpoint
from harch.pipelines.sense.settings import ForecastSettings, SenseSettings, WindowSettings
from harch.pipelines.sense.stage import SenseStage

SETTINGS = settings_of(forecast=ForecastSettings(span_s=30, step_s=3))


def saved_stage() -> SenseStage:
    stage = stage_of(SETTINGS)
    for seq in range(1, 12):
        take(stage, batch_of(seq, [(float(seq), seq % 3, 0, seq * 0.1), (float(seq), 0, 1, 2.0)]))
    return stage


SNAPSHOT = saved_stage().snapshot()
VALUE = encode_checkpoint(SNAPSHOT)


def test_a_checkpoint_is_read_back_as_it_was() -> None:
    assert decode_checkpoint(VALUE) == SNAPSHOT
    assert decode_checkpoint(encode_checkpoint(SNAPSHOT, compress=True)) == SNAPSHOT
    assert (SNAPSHOT.seq_of(1), SNAPSHOT.seq_of(2)) == (11, 0)


def test_counters_and_reasons_survive() -> None:
    stage = saved_stage()
    take(stage, batch_of(12, [(12.0, 200, 0, 1.0)]))
    other = stage_of(SETTINGS)
    other.restore(decode_checkpoint(encode_checkpoint(stage.snapshot())), 0.0)
    assert other.counters == stage.counters
    assert other.quarantine.counts == {"unknown_device": 1}
    assert other.watermark_ns == stage.watermark_ns


def test_a_snapshot_does_not_change_while_the_stage_goes_on() -> None:
    stage = saved_stage()
    snapshot = stage.snapshot()
    take(stage, batch_of(12, [(12.0, 0, 0, 1.0)]))
    assert encode_checkpoint(snapshot) == VALUE


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 8 * len(VALUE) - 1))
def test_a_flipped_bit_makes_it_unusable(bit: int) -> None:
    damaged = bytearray(VALUE)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(HarchError) as refused:
        decode_checkpoint(damaged)
    assert refused.value.code in ("E0741",)


@settings(deadline=None)
@given(st.binary(max_size=100))
def test_other_bytes_are_no_checkpoint(junk: bytes) -> None:
    for value in (junk, b"HRCK\x01\x00" + junk, b"HRCK\x01\x01" + junk):
        with pytest.raises(HarchError, match="E0741"):
            decode_checkpoint(value)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"pipeline": "other"}, "belongs to"),
        ({"partition": 4}, "belongs to"),
        ({"fingerprint": "0", "meaning": None}, "have changed"),
        ({"devices_hash": "0"}, "devices"),
        ({"cells": b"1234567"}, "truncated"),
        ({"cells": bytes(64)}, "entries"),
        ({"cell_places": bytes(7) + b"\x7f" + SNAPSHOT.cell_places[8:]}, "do not fit"),
        ({"cell_places": b"\xff" * 8 + SNAPSHOT.cell_places[8:]}, "do not fit"),
        ({"pane_masks": [1]}, "do not fit"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(changed: dict[str, object], words: str) -> None:
    forged: SenseCheckpoint = replace(SNAPSHOT, **changed)
    with pytest.raises(HarchError, match=words):
        stage_of(SETTINGS).restore(forged, 0.0)


def test_a_forged_history_is_refused() -> None:
    assert SNAPSHOT.forecast is not None
    for changed in ({"history_keys": b"\x7f" * 8 + SNAPSHOT.forecast.history_keys[8:]}, {"filled": 99}, {"sum": b""}):
        forged = replace(SNAPSHOT, forecast=replace(SNAPSHOT.forecast, **changed))
        with pytest.raises(HarchError, match="E0741"):
            stage_of(SETTINGS).restore(forged, 0.0)


@pytest.mark.parametrize(
    "other",
    [
        replace(SETTINGS, metrics=("pressure", "flow")),
        replace(SETTINGS, windows=WindowSettings(size_s=1.0, lateness_s=0.0, skew_s=0.1, future_s=0.1)),
        replace(SETTINGS, windows=WindowSettings(size_s=2.0, lateness_s=0.5)),
        replace(SETTINGS, devices=("pump-1", "pump-0", "pump-2")),
        replace(SETTINGS, aggregate=("v1",)),
    ],
)
def test_state_of_other_settings_is_not_mistaken_for_ours(other: SenseSettings) -> None:
    with pytest.raises(HarchError, match="E0741"):
        stage_of(other).restore(SNAPSHOT, 0.0)


def test_more_devices_and_other_features_may_go_on_from_it() -> None:
    grown = replace(SETTINGS, devices=(*SETTINGS.devices, "pump-3"), statistics=("last",))
    stage = stage_of(grown)
    stage.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(SNAPSHOT), type=SenseCheckpoint), 0.0)
    assert stage.flush().features
