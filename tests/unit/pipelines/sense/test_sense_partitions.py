from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from sense_world import T0, S, rows_of, settings_of, stage_of, take

from harch.base.clock import SystemClock
from harch.pipelines.sense.devices import DeviceTable
from harch.pipelines.sense.edge import Permit
from harch.pipelines.sense.inputs.file import FileInput
from harch.pipelines.sense.intake import Intake
from harch.pipelines.sense.partitions import Edges, partition_of_device, partition_of_source
from harch.pipelines.sense.quarantine import Quarantine
from harch.pipelines.sense.settings import SenseLimits
from harch.pipelines.sense.source_settings import FileSource
from harch.pipelines.wire.header import BatchHeader, unpack_header
from harch.pipelines.wire.rows import RowFormat, RowReader

SETTINGS = settings_of(partitions=2, limits=SenseLimits(event_ids_kept=100))
FORMAT = RowFormat(event_id="id")
DEVICES = DeviceTable(SETTINGS.devices, SETTINGS.devices_max, SETTINGS.metrics)
READER = RowReader(SETTINGS.event_schema, DEVICES, FORMAT)
NOW = T0 + 10_000 * S


def make_edges() -> Edges:
    return Edges("gateway", SETTINGS, Permit(1, 1), disorder_s=0.0, priority=3)


def header(message: bytes) -> BatchHeader:
    found = unpack_header(message)
    assert isinstance(found, BatchHeader)
    return found


def row(number: int, device: str = "pump-0") -> dict[str, object]:
    return {"ts": T0 // 1_000_000 + number, "device": device, "metric": "flow", "v0": 1.0, "id": f"{device}-{number}"}


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 900)), max_size=30))
def test_each_device_is_whole_in_one_partition_and_nothing_is_counted_twice(events: list[tuple[int, int]]) -> None:
    edges, quarantine = make_edges(), Quarantine(5)
    stages = [stage_of(SETTINGS), stage_of(SETTINGS)]
    rows = READER.mappings([{**row(at, f"pump-{device}"), "id": number} for number, (device, at) in enumerate(events)])
    prepared = edges.prepare(rows, NOW)
    edges.commit(prepared, quarantine)
    for message in prepared.messages:
        take(stages[edges.partitions[header(message).source]], message)
    found = [rows_of([stage.flush()]) for stage in stages]
    for partition, told in enumerate(found):
        assert all(partition_of_device(device, 2) == partition for _, device in told)
    known = [device for device, _ in events if device < 3]
    assert sum(cells["flow.count"] for told in found for cells in told.values()) == len(known) == prepared.events
    assert quarantine.counts.get("unknown_device", 0) == len(events) - len(known)


def test_numbers_and_ids_move_on_in_every_partition() -> None:
    edges, quarantine = make_edges(), Quarantine(5)
    rows = READER.mappings([row(1), row(2, "pump-1"), row(1)])
    first = edges.prepare(rows, NOW)
    edges.commit(first, quarantine)
    again = edges.prepare(rows, NOW)
    edges.commit(again, quarantine)
    assert (first.events, again.events) == (2, 0)
    assert quarantine.counts == {"duplicate_event": 1 + 3}
    later = edges.prepare(READER.mappings([row(9), row(9, "pump-1")]), NOW)
    assert sorted(header(message).seq for message in later.messages) == [2, 2]
    assert len({header(message).source for message in later.messages}) == 2


def test_a_new_permit_holds_for_all_partitions() -> None:
    edges = make_edges()
    edges.permit(Permit(5, 2))
    prepared = edges.prepare(READER.mappings([row(1), row(2, "pump-1")]), NOW)
    assert {(header(m).juris_mask, header(m).policy_version) for m in prepared.messages} == {(5, 2)}


async def test_a_file_feeds_partitions_and_goes_on_where_each_of_them_was(tmp_path: Path) -> None:
    path = tmp_path / "rows.ndjson"
    path.write_text("\n".join(json.dumps(row(700 * number, f"pump-{number % 3}")) for number in range(60)))
    source = FileSource(name="f", path=str(path), format="ndjson", rows=FORMAT)

    async def play(after: dict[int, int]) -> list[bytes]:
        intake = Intake(bytes_max=1 << 20, quarantine=Quarantine(5))
        file = FileInput(source, SETTINGS.event_schema, make_edges(), READER, intake, SystemClock(), after=after)
        await file.run()
        return intake.get_nowait()

    whole = await play({})
    numbers = list(make_edges().partitions)
    after = {numbers[0]: 3, numbers[1]: 5}
    rest = await play(after)
    assert rest == [m for m in whole if header(m).is_end or header(m).seq > after[header(m).source]]
    assert sum(header(message).is_end for message in rest) == 2


def test_ready_made_batches_of_a_source_stay_together() -> None:
    assert {partition_of_source(1234, partitions) for partitions in (1, 2, 64)} == {0, 1234 % 64}
