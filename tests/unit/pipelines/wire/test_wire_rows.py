from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.base.rejection import Rejection
from harch.pipelines.sense.inputs.http import read_arrow
from harch.pipelines.wire.columns import COMPACT
from harch.pipelines.wire.rows import ROW_BYTES_MAX, ParsedRows, RowFormat, RowReader


class Farm:
    def device(self, name: str) -> int | None:
        return {"pump-1": 0, "pump-2": 1}.get(name)

    def metric(self, name: str) -> int | None:
        return {"flow": 0, "pressure": 1}.get(name)


FORMAT = RowFormat(event_id="", values={"v0": "value"})
READER = RowReader(COMPACT, Farm(), FORMAT)
GOOD = {"ts": 1_700_000_000_123, "device": "pump-2", "metric": "pressure", "value": 3.5, "v1": 2}


def test_a_row_becomes_numbers() -> None:
    rows = READER.json(json.dumps(GOOD).encode())
    assert rows.n == 1
    assert rows.times_ns.tolist() == [1_700_000_000_123_000_000]
    assert (rows.device[0], rows.metric[0]) == (1, 1)
    assert rows.values.tolist() == [[3.5], [2.0]]
    assert not rows.rejected


def test_times_may_be_text_with_a_zone() -> None:
    rows = READER.json(json.dumps({**GOOD, "ts": "2026-05-01T14:00:00.25+02:00"}).encode())
    assert rows.times_ns.tolist() == [1_777_636_800_250_000_000]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ts": "2026-05-01T14:00:00"}, "bad_time"),
        ({"ts": -1}, "bad_time"),
        ({"ts": 10**30}, "bad_time"),
        ({"ts": True}, "bad_time"),
        ({"ts": None}, "bad_time"),
        ({"device": "pump-3"}, "unknown_device"),
        ({"device": 1}, "unknown_device"),
        ({"metric": "colour"}, "unknown_metric"),
        ({"flag": 256}, "bad_flag"),
        ({"flag": True}, "bad_flag"),
        ({"value": "3"}, "bad_value"),
        ({"value": None}, "bad_value"),
        ({"value": 10**400}, "bad_value"),
        ({"value": {"a": 1}}, "unreadable"),
    ],
)
def test_a_bad_row_is_set_aside_with_its_reason_and_the_others_go_on(change: dict[str, object], reason: str) -> None:
    lines = [GOOD, {**GOOD, **change}, GOOD]
    rows = READER.ndjson("\n".join(json.dumps(line) for line in lines).encode())
    assert rows.indexes.tolist() == [0, 2]
    assert dict(rows.rejected_by_reason) == {reason: 1}
    assert rows.rejected[0].index == 1
    assert rows.rejected[0].detail


def test_infinities_and_nan_are_no_values() -> None:
    rows = READER.mappings([{**GOOD, "value": float("nan")}, {**GOOD, "v1": float("-inf")}])
    assert dict(rows.rejected_by_reason) == {"bad_value": 2}


def test_a_row_without_any_value_is_none() -> None:
    rows = READER.mappings([{"ts": 1, "device": "pump-1"}])
    assert dict(rows.rejected_by_reason) == {"bad_value": 1}


def test_a_huge_event_is_set_aside_unparsed_and_the_lane_goes_on() -> None:
    huge = b'{"ts": 1, "device": "' + b"x" * 10_000_000 + b'"}'
    rows = READER.ndjson(huge + b"\n" + json.dumps(GOOD).encode())
    assert rows.n == 1
    assert dict(rows.rejected_by_reason) == {"too_large": 1}
    assert len(rows.rejected[0].excerpt) < ROW_BYTES_MAX


def test_deep_nesting_does_not_break_the_reader() -> None:
    for body in (b"[" * 100_000, b'[{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}]"):
        assert READER.json(body).n == 0


def test_event_ids_are_kept_and_missing_ones_refused() -> None:
    reader = RowReader(COMPACT, Farm(), RowFormat(event_id="id", values={"v0": "value"}))
    rows = reader.mappings([{**GOOD, "id": "a"}, {**GOOD, "id": 7}, GOOD])
    assert rows.event_ids == ("a", "7")
    assert dict(rows.rejected_by_reason) == {"bad_event_id": 1}


@settings(deadline=None)
@given(st.sampled_from([READER.json, READER.ndjson]), st.binary(max_size=200))
def test_no_body_raises(read: Callable[[bytes], ParsedRows], body: bytes) -> None:
    rows = read(body)
    assert rows.n + sum(rows.rejected_by_reason.values()) >= 0


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(list(GOOD)), st.none() | st.booleans() | st.integers() | st.text())))
def test_every_row_is_kept_or_counted(rows_in: list[dict[str, object]]) -> None:
    rows = READER.json(json.dumps(rows_in).encode())
    assert rows.n + sum(rows.rejected_by_reason.values()) == len(rows_in)


def arrow_body(**columns: object) -> bytes:
    table = pyarrow.table(columns)
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def test_arrow_rows_are_judged_like_all_others() -> None:
    body = arrow_body(ts=[1000, 2000, 3000], device=["pump-1", "?", "pump-2"], value=[1.0, 2.0, float("nan")])
    rows = read_arrow(body, READER, FORMAT)
    assert isinstance(rows, ParsedRows)
    assert rows.indexes.tolist() == [0]
    assert dict(rows.rejected_by_reason) == {"unknown_device": 1, "bad_value": 1}


def test_arrow_timestamps_keep_their_precision() -> None:
    times = pyarrow.array([1_700_000_000_123_456_789], pyarrow.timestamp("ns", "UTC"))
    form = RowFormat(time_unit="ns")
    rows = read_arrow(arrow_body(ts=times, device=["pump-1"], v0=[1.0]), RowReader(COMPACT, Farm(), form), form)
    assert isinstance(rows, ParsedRows)
    assert rows.times_ns.tolist() == [1_700_000_000_123_456_789]


@settings(deadline=None)
@given(st.binary(max_size=300), st.integers(0, 10_000), st.integers(0, 255))
def test_broken_arrow_streams_are_refused_with_a_sentence(junk: bytes, place: int, value: int) -> None:
    found = read_arrow(junk, READER, FORMAT)
    assert isinstance(found, Rejection) or found.n == 0
    body = bytearray(arrow_body(ts=[1000], device=["pump-1"], value=[1.0]))
    body[place % len(body)] = value
    read_arrow(bytes(body), READER, FORMAT)
