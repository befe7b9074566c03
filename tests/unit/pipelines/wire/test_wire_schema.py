from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.base.errors import HarchError, InvariantBroken
from harch.base.rejection import Rejection
from harch.pipelines.wire.columns import (
    COMPACT,
    WIDE,
    Columns,
    EventSchema,
    SchemaColumn,
    checked_schema,
    decode_columns,
    encode_columns,
    schema_problems,
    select,
)

TIME = SchemaColumn(name="ts", type="u32", role="time")
DEVICE = SchemaColumn(name="device", type="u32", role="device")
VALUE = SchemaColumn(name="v", type="f32", role="value")


def schema(*columns: SchemaColumn, tick_ns: int = 1000) -> EventSchema:
    return EventSchema(name="mine", columns=columns, tick_ns=tick_ns)


def random_columns(events: EventSchema, n: int, seed: int) -> Columns:
    rng = np.random.default_rng(seed)
    vectors = {
        role: rng.integers(0, 200, n).astype(events.by_role[role].dtype)
        for role in ("time", "device", "metric", "flag")
    }
    values = rng.normal(size=(len(events.values), n)).astype(events.values[0].dtype)
    return Columns(vectors["time"], vectors["device"], vectors["metric"], vectors["flag"], values)


def test_the_shipped_events_have_16_and_64_bytes_and_no_mistakes() -> None:
    assert (COMPACT.event_bytes, WIDE.event_bytes) == (16, 64)
    assert not schema_problems(COMPACT)
    assert not schema_problems(WIDE)
    assert COMPACT.id != WIDE.id


def test_the_id_follows_the_columns_and_not_the_name() -> None:
    assert msgspec.structs.replace(COMPACT, name="other").id == COMPACT.id
    bounded = msgspec.structs.replace(COMPACT.columns[-1], high=5.0)
    assert msgspec.structs.replace(COMPACT, columns=(*COMPACT.columns[:-1], bounded)).id != COMPACT.id


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (schema(TIME, TIME, DEVICE, VALUE), "two columns are named `ts`"),
        (schema(DEVICE, VALUE, TIME), "come last"),
        (schema(TIME, SchemaColumn(name="d", type="f32", role="device"), VALUE), "u8 to u64"),
        (schema(TIME, SchemaColumn(name="d", type="u8", role="device"), VALUE), "not aligned"),
        (schema(TIME, DEVICE, VALUE, tick_ns=3), "tick_ns"),
        (schema(TIME, DEVICE, SchemaColumn(name="v", type="f32", role="value", low=2, high=1)), "not below"),
        (schema(TIME, DEVICE, VALUE, SchemaColumn(name="w", type="f64", role="value")), "same type"),
        (schema(TIME, DEVICE, SchemaColumn(name="m", type="u32", role="metric"), VALUE), "at most 16 bits"),
    ],
)
def test_a_schema_with_a_mistake_is_refused_with_its_place(wrong: EventSchema, words: str) -> None:
    with pytest.raises(HarchError, match=words):
        checked_schema(wrong)


@settings(deadline=None)
@given(st.sampled_from([COMPACT, WIDE]), st.integers(0, 50), st.integers(0, 99), st.integers(0, 9))
def test_columns_survive_encoding_wherever_the_payload_starts(
    events: EventSchema, n: int, seed: int, offset: int
) -> None:
    columns = random_columns(events, n, seed)
    payload = encode_columns(events, columns)
    memory = bytearray(offset + len(payload))
    memory[offset:] = payload
    again = decode_columns(events, n, memoryview(memory)[offset:])
    assert isinstance(again, Columns)
    for name in columns.__struct_fields__:
        np.testing.assert_array_equal(getattr(again, name), getattr(columns, name))
        assert not getattr(again, name).flags.writeable
        assert getattr(again, name).flags.aligned


def test_decoding_an_aligned_payload_copies_nothing() -> None:
    payload = encode_columns(COMPACT, random_columns(COMPACT, 8, 1))
    memory = np.frombuffer(payload, np.uint8).copy()
    again = decode_columns(COMPACT, 8, memoryview(memory))
    assert isinstance(again, Columns)
    assert np.shares_memory(again.values, memory)


def test_a_payload_of_another_length_is_refused() -> None:
    refused = decode_columns(COMPACT, 3, bytes(47))
    assert isinstance(refused, Rejection)
    assert "3 events of 16 bytes" in refused.detail


def test_a_schema_without_metric_and_flag_reads_zeros() -> None:
    events = schema(TIME, DEVICE, VALUE)
    columns = decode_columns(events, 2, bytes(24))
    assert isinstance(columns, Columns)
    assert columns.metric.tolist() == columns.flag.tolist() == [0, 0]


def test_selected_events_are_copies() -> None:
    columns = random_columns(COMPACT, 5, 3)
    some = select(columns, np.array([4, 1]))
    assert some.device.tolist() == [columns.device[4], columns.device[1]]
    assert not np.shares_memory(some.values, columns.values)


def test_columns_of_different_length_are_not_sent() -> None:
    columns = random_columns(COMPACT, 5, 3)
    with pytest.raises(InvariantBroken):
        encode_columns(
            COMPACT, Columns(columns.ticks[:4], columns.device, columns.metric, columns.flag, columns.values)
        )


def test_a_batch_that_spans_more_time_than_its_column_can_say_is_not_written_with_another_time() -> None:
    columns = random_columns(COMPACT, 3, 1)
    late = columns.ticks.astype(np.int64)
    late[2] = COMPACT.ticks_max + 1
    with pytest.raises(InvariantBroken, match="spans no more time"):
        encode_columns(COMPACT, Columns(late, columns.device, columns.metric, columns.flag, columns.values))
