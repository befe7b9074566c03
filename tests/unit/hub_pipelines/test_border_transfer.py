"""What leaves a country of a message of features, and what becomes of it where it arrives."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from msgspec import structs

from harch.base.rejection import Rejection
from harch.hub.pipelines.context import HubContext
from harch.hub.pipelines.cross_border.links import HubBorders
from harch.hub.pipelines.cross_border.transfer import BODY_BYTES_MAX, ExportBatch, FeatureReader, Leaving, RowTaker
from harch.hub.pipelines.pipeline import RunningPipeline
from harch.hub.pipelines.planning import plan
from harch.pipelines.engine.borders import BorderLane
from harch.pipelines.engine.keys import KeyFolder
from harch.pipelines.engine.settings import BorderSettings
from harch.pipelines.sense.edge import Permit, source_number
from harch.pipelines.sense.features import FeatureBatch, encode_features, feature_schema
from harch.pipelines.sense.gate import PolicyTable
from harch.pipelines.sense.settings import HttpSource, SenseSettings
from harch.pipelines.wire.columns import Columns, decode_columns
from harch.pipelines.wire.header import BatchHeader, unpack_header
from harch.pipelines.wire.rows import RowFormat
from harch.sovereignty.tags import Classification
from harch.testing.clock import SimClock
from unit.hub_pipelines.pipeline_samples import ground, spec

END_NS = 1_800_000_000_000_000_000
SENSE = SenseSettings(devices=("a", "b"), devices_max=4, metrics=("wet",), statistics=("count", "mean"))
TABLE = PolicyTable(3, {"dakhla": 0, "dakar": 1})
BOTH = 0b11


def features(mask: int = BOTH, *, version: int = 3, seq: int = 7) -> bytes:
    batch = FeatureBatch(
        pipeline="fields",
        partition=2,
        window_start_ns=END_NS - 1,
        window_end_ns=END_NS,
        seq=seq,
        juris_mask=mask,
        policy_version=version,
        device=np.array([0, 3], np.uint32),
        metric=np.zeros(2, np.uint16),
        names=("count", "mean"),
        matrix=np.array([[4.0, 0.5], [2.0, np.nan]]),
    )
    return encode_features(batch, feature_schema(SENSE), source=1)


def leaving(message: bytes, columns: tuple[str, ...] = (), **fields: Any) -> Leaving | Rejection:
    asked: dict[str, Any] = {"state": 5, "partition": 2, "columns": columns, "hub": "dakar", "tables": [TABLE]}
    return FeatureReader(SENSE).leaving(message, **(asked | fields))


def test_only_the_named_columns_leave_with_names_of_devices_and_nothing_that_is_no_number() -> None:
    found = leaving(features(), ("mean",))
    assert isinstance(found, Leaving)
    batch = msgspec.json.decode(found.body, type=ExportBatch)
    assert (batch.columns, batch.state, batch.partition, batch.seq) == (("mean",), 5, 2, 7)
    assert [(row.device, row.values) for row in batch.rows] == [("a", (0.5,)), ("3", (None,))]
    assert b"count" not in found.body


@pytest.mark.parametrize(
    ("message", "fields", "rule"),
    [
        (features(0b01), {}, "juris_mask"),  # some event of the window may not leave, whatever the pipeline permits
        (features(version=9), {}, "juris_mask"),  # nobody knows what its mask means
        (features(), {"hub": "abidjan"}, "juris_mask"),
        (features(), {"tables": [structs.replace(TABLE, ceiling=0b01)]}, "juris_mask"),
        (features()[:-1], {}, "length"),
        (b"x", {}, "truncated"),
    ],
)
def test_a_window_that_may_not_be_there_or_is_damaged_stays(message: bytes, fields: dict[str, Any], rule: str) -> None:
    found = leaving(message, **fields)
    assert isinstance(found, Rejection)
    assert found.rule == rule


def test_what_was_released_for_an_export_covers_no_window_that_is_stricter_than_its_pipeline() -> None:
    at_home = structs.replace(TABLE, ceiling=0b01)  # the data itself may be in Morocco only
    message = features(0b01)
    assert isinstance(leaving(message, tables=[at_home]), Rejection)
    assert isinstance(leaving(message, tables=[at_home], released=True), Leaving)
    wider = structs.replace(TABLE, ceiling=BOTH)
    assert isinstance(leaving(message, tables=[wider], released=True), Rejection)
    assert isinstance(leaving(message, tables=[], released=True), Rejection)


def arrived(body: bytes) -> tuple[BatchHeader, Columns, dict[str, int]]:
    source = HttpSource(name="web", rows=RowFormat(values={"v0": "mean", "v1": "count"}))
    takes = SenseSettings(sources=(source,), devices=("b", "a"), devices_max=2, metrics=("wet",))
    found = RowTaker(takes, source, Permit(1, 8), "web/lane").arrived(body, END_NS)
    assert not isinstance(found, Rejection)
    header = unpack_header(found.message)
    assert isinstance(header, BatchHeader)
    columns = decode_columns(takes.event_schema, header.n, found.message[64:])
    assert isinstance(columns, Columns)
    return header, columns, found.left_out


def test_what_arrives_is_a_batch_that_its_source_knows_by_window_and_partition() -> None:
    sent = leaving(features())
    assert isinstance(sent, Leaving)
    header, columns, left_out = arrived(sent.body)
    assert (header.source, header.seq) == (source_number("web/lane/5/2"), 7)
    assert (header.juris_mask, header.policy_version, header.t_first_ns) == (1, 8, END_NS)
    assert (columns.device.tolist(), columns.values[:, 0].tolist()) == ([1], [0.5, 4.0])
    assert sum(left_out.values()) == 1
    assert arrived(sent.body)[0] == header  # twice the same: the source takes it for a repetition


def test_bodies_of_others_do_no_harm() -> None:
    source = HttpSource(name="web")
    taker = RowTaker(SenseSettings(sources=(source,)), source, Permit(1, 8), "web/lane")
    for body in (b"", b"{}", b"[" * 5000, b'{"state":1}'):
        assert isinstance(taker.arrived(body, END_NS), Rejection)
    batch = ExportBatch(state=0, partition=0, seq=0, window_end_ns=-1, columns=("x",), rows=())
    empty = taker.arrived(msgspec.json.encode(batch), END_NS)
    assert not isinstance(empty, Rejection)
    assert empty.message == b""
    assert BODY_BYTES_MAX < 8 << 20  # below what the server at the border takes


def test_a_pipeline_that_permits_more_than_what_it_would_take_in_does_not_get_it(tmp_path: Any) -> None:
    senegal = ("process_in: [MA], rest_in: [MA]", "process_in: [SN], rest_in: [SN]")
    takes = spec(senegal, ("scaling:", "imports:\n  - {hub: dakhla, pipeline: x, export: y, source: web}\nscaling:"))
    planned = plan(takes, ground("dakar"))
    tag = structs.replace(
        planned.proof.tag,
        process_in=("MA", "SN"),
        rest_in=("MA", "SN"),
        transit_in=("MA", "MR", "SN"),
        may_cross_borders=True,
    )
    notes: list[str] = []
    borders = HubBorders(
        ground("dakar"),
        "SN",
        tmp_path,
        around=HubContext(),
        settings=BorderSettings(),
        keys=KeyFolder(tmp_path),
        engine=cast(Any, None),
        clock=SimClock(),
        write=cast(Any, None),
        note=lambda kind, subject, message: notes.append(message),
        on_event=lambda event: None,
    )
    record = SimpleNamespace(name="fields", tenant="default")
    borders._pipelines = {"fields": cast(RunningPipeline, SimpleNamespace(record=record, planned=planned))}
    lane = BorderLane("MA", "dakhla", "SN", "dakar", "x", "y")
    assert borders._may_receive(lane, tag)
    strict = structs.replace(tag, classification=Classification.CONFIDENTIAL)
    assert not borders._may_receive(lane, strict)
    assert not borders._may_receive(lane, strict)
    assert len(notes) == 1  # told once
    assert "permits more" in notes[0]
    assert not borders._may_receive(lane, structs.replace(tag, may_cross_borders=False))
    assert "crosses a border" in notes[1]
    assert [draft.verdict for draft in borders._drafts] == ["refused", "refused"]
