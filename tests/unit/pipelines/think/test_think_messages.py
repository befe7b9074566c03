"""Do features of SENSE become rows of THINK, and do outputs survive the way to ACT?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from think_models import add, settings_of, stage_of, times

from harch.base.rejection import Rejection
from harch.pipelines.sense.features import FeatureBatch, encode_features, feature_schema
from harch.pipelines.sense.settings import SenseSettings
from harch.pipelines.think.messages import (
    Origin,
    Scored,
    decode_outputs,
    encode_outputs,
    features_of,
    features_of_message,
)
from harch.pipelines.think.models import VersionRef
from harch.pipelines.think.rollout import VersionState
from harch.pipelines.wire.columns import decode_columns
from harch.pipelines.wire.header import check_payload, unpack_header

ORIGIN = Origin(pipeline="p", partition=3, window_end_ns=5_000_000_000, juris_mask=0b101, policy_version=7)
REF = VersionRef(model="m", version="1", sha256="a" * 64)


def scored_of(values: list[float]) -> Scored:
    devices = np.arange(100, 100 + len(values), dtype=np.uint32)
    return Scored(
        ref=REF,
        source=ORIGIN,
        rows=np.arange(len(values)),
        devices=devices,
        outputs={"y": np.array(values), "z": -np.array(values, dtype=np.float32)},
    )


@settings(deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False), max_size=20))
def test_outputs_come_out_as_they_went_in(values: list[float]) -> None:
    found = decode_outputs(encode_outputs(scored_of(values), at_ms=123, source=9, seq=1))
    assert not isinstance(found, Rejection)
    header, decided = found
    assert (header.juris_mask, header.policy_version, header.seq, header.source) == (0b101, 7, 1, 9)
    assert (decided.origin, decided.ref, decided.at_ms) == (ORIGIN, REF, 123)
    assert decided.devices.tolist() == list(range(100, 100 + len(values)))
    assert decided.outputs["y"].tolist() == values
    assert decided.outputs["z"].tolist() == [-value for value in values]


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 7))
def test_a_bit_that_flips_is_found(place: int, bit: int) -> None:
    message = bytearray(encode_outputs(scored_of([1.0, 2.0]), at_ms=123, source=9, seq=1))
    message[place % len(message)] ^= 1 << bit
    assert isinstance(decode_outputs(bytes(message)), Rejection)


@pytest.mark.parametrize("cut", [0, 10, 64, 70, 200])
def test_half_a_message_is_refused(cut: int) -> None:
    message = encode_outputs(scored_of([1.0, 2.0]), at_ms=123, source=9, seq=1)
    assert isinstance(decode_outputs(message[:cut]), Rejection)


def test_features_of_sense_are_scored_in_the_same_process_and_from_a_message() -> None:
    sense = SenseSettings(metrics=("x", "other"), statistics=("mean", "max"))
    batch = FeatureBatch(
        pipeline="p",
        partition=3,
        window_start_ns=0,
        window_end_ns=ORIGIN.window_end_ns,
        seq=1,
        juris_mask=ORIGIN.juris_mask,
        policy_version=ORIGIN.policy_version,
        device=np.array([4, 8], dtype=np.uint32),
        metric=np.zeros(2, dtype=np.uint16),
        names=("x.mean", "x.max", "other.mean", "other.max"),
        matrix=np.array([[1.0, 2.0, np.nan, np.nan], [3.0, 4.0, 5.0, 6.0]]),
    )
    schema = feature_schema(sense)
    message = encode_features(batch, schema, source=1)
    header = unpack_header(message)
    assert not isinstance(header, Rejection)
    payload = check_payload(header, message)
    assert not isinstance(payload, Rejection)
    columns = decode_columns(schema, header.n, payload)
    assert not isinstance(columns, Rejection)
    received = features_of_message(header, columns, batch.names, pipeline="p", partition=3)

    stage = stage_of(replace(settings_of(), inputs=("x.max",)))
    add(stage.models["m"], "1", times(10), VersionState.ACTIVE)
    for features in (features_of(batch), received):
        (scored,) = stage.think(features).scored
        assert scored.source == ORIGIN
        assert dict(zip(scored.devices.tolist(), scored.outputs["y"].tolist(), strict=True)) == {4: 20.0, 8: 40.0}
