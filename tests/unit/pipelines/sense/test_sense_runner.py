from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from sense_world import T0, batch_of, settings_of, stage_of

from harch.base.clock import SystemClock
from harch.pipelines.sense.accounting import SideBatch, StageAlert
from harch.pipelines.sense.checkpoint import decode_checkpoint
from harch.pipelines.sense.edge import EdgeBatcher, Permit
from harch.pipelines.sense.features import FeatureBatch
from harch.pipelines.sense.flow_control import Credit, Receiving
from harch.pipelines.sense.gate import PolicyTable
from harch.pipelines.sense.inputs.file import FileInput
from harch.pipelines.sense.intake import Intake
from harch.pipelines.sense.runner import SenseRunner
from harch.pipelines.sense.settings import CheckpointSettings, FileSource
from harch.pipelines.sense.stage import SenseStage
from harch.pipelines.wire.rows import RowFormat, RowReader

SETTINGS = settings_of(checkpoint=CheckpointSettings(every_s=0.05))
FORMAT = RowFormat(values={"v0": "value"})
PATIENCE_S = 30.0


class Recorder:
    """Outputs that remember; `crash_after` windows the next stage is gone."""

    def __init__(self, crash_after: int | None = None) -> None:
        self.batches: dict[tuple[str, int, int], FeatureBatch] = {}
        self.sides: list[SideBatch] = []
        self.alerted: list[StageAlert] = []
        self.granted: list[Credit] = []
        self.asked: list[int] = []
        self.stored: list[bytes] = []
        self.known_at_store: list[int] = []
        self._crash_after = crash_after

    async def features(self, batches: Sequence[FeatureBatch]) -> None:
        for batch in batches:
            if self._crash_after is not None and len(self.batches) >= self._crash_after:
                raise ConnectionError("the next stage is gone")
            self.batches[batch.key] = batch

    async def aside(self, batches: Sequence[SideBatch]) -> None:
        self.sides += batches

    async def alerts(self, alerts: Sequence[StageAlert]) -> None:
        self.alerted += alerts

    async def credits(self, credits: Sequence[Credit]) -> None:
        self.granted += credits

    async def policy(self, version: int) -> PolicyTable | None:
        self.asked.append(version)
        return PolicyTable(version, {"dakhla": 0}) if len(self.asked) > 2 else None

    async def store(self, checkpoint: bytes) -> None:
        self.known_at_store.append(len(self.batches))
        self.stored.append(checkpoint)


def make_file(path: Path, seconds: int) -> Path:
    rows = [
        {"ts": T0 // 1_000_000 + 250 * number, "device": f"pump-{number % 3}", "metric": "flow", "value": float(number)}
        for number in range(4 * seconds)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def file_input(path: Path, stage: SenseStage, intake: Intake, after: dict[int, int]) -> FileInput:
    source = FileSource(name="f", path=str(path), format="ndjson", rows=FORMAT)
    edge = EdgeBatcher("f", SETTINGS, Permit(1, 1), disorder_s=0.0, priority=3)
    reader = RowReader(SETTINGS.event_schema, stage.state.devices, FORMAT)
    return FileInput(source, SETTINGS.event_schema, edge, reader, intake, SystemClock(), after=after)


async def run(path: Path, recorder: Recorder, saved: bytes | None = None) -> SenseStage:
    stage = stage_of(SETTINGS)
    intake = Intake(bytes_max=3000, quarantine=stage.quarantine)
    after: dict[int, int] = {}
    clock = SystemClock()
    if saved is not None:
        stage.restore(decode_checkpoint(saved), clock.monotonic_s())
        after = {one.source: one.seq for one in stage.state.sources.saved()}
    async with asyncio.timeout(PATIENCE_S):
        await SenseRunner(stage, intake, recorder, clock).run([file_input(path, stage, intake, after)])
    return stage


async def test_a_file_goes_through_the_stage_and_its_end_is_saved(tmp_path: Path) -> None:
    recorder = Recorder()
    stage = await run(make_file(tmp_path / "a.ndjson", 50), recorder)
    assert stage.counters.events_accepted == 200
    assert len(recorder.batches) == 50
    final = decode_checkpoint(recorder.stored[-1])
    assert (final.next_seq, final.counters["windows_closed"]) == (51, 50)


async def test_features_are_handed_over_before_a_checkpoint_forgets_their_events(tmp_path: Path) -> None:
    recorder = Recorder()
    await run(make_file(tmp_path / "a.ndjson", 300), recorder)
    for value, handed_over in zip(recorder.stored, recorder.known_at_store, strict=True):
        assert handed_over >= decode_checkpoint(value).counters["windows_closed"]


async def test_a_runner_that_dies_goes_on_from_its_checkpoint_and_tells_the_same(tmp_path: Path) -> None:
    path = make_file(tmp_path / "a.ndjson", 60)
    whole = Recorder()
    await run(path, whole)
    dying = Recorder(crash_after=25)
    with pytest.raises(ExceptionGroup):
        await run(path, dying)
    resumed = Recorder()
    stage = await run(path, resumed, dying.stored[-1] if dying.stored else None)
    together = {**dying.batches, **resumed.batches}
    assert together.keys() == whole.batches.keys()
    for key, batch in whole.batches.items():
        np.testing.assert_array_equal(together[key].matrix, batch.matrix)
        assert together[key].seq == batch.seq
    assert stage.counters.events_accepted == 240


async def test_unknown_policies_are_fetched_and_sources_get_credit() -> None:
    recorder, stage, clock = Recorder(), stage_of(SETTINGS), SystemClock()
    intake = Intake(bytes_max=1 << 20, quarantine=stage.quarantine)
    receiving = Receiving(3)
    task = asyncio.create_task(SenseRunner(stage, intake, recorder, clock, receiving=receiving).run([]))
    intake.try_put([batch_of(1, [(0.1, 0, 0, 1.0)], policy_version=2), batch_of(3, [(0.1, 0, 0, 1.0)], source=8)])
    await until(lambda: stage.counters.events_accepted == 1)
    assert recorder.asked[:3] == [2, 2, 2]
    await until(lambda: {credit.source for credit in recorder.granted} == {1, 8})
    await until(lambda: any(credit.checkpointed_seq == 1 for credit in recorder.granted if credit.source == 1))
    assert any(credit.epoch & 1 for credit in recorder.granted if credit.source == 8)  # it is asked to send again
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)
