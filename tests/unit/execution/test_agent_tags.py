"""Does the agent ask again, of itself, before anything is loaded? And does what must go away really go?"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from harch.execution.admission import Premises, refusal
from harch.execution.preparation import StateFolder
from harch.execution.protocol import (
    HubMessage,
    StartTask,
    StopTask,
    TaskEnded,
    TaskKey,
    TaskSpec,
    decode_hub_frame,
    encode_frame,
)
from harch.execution.task_leftovers import Scrubber
from harch.sovereignty.geography import SiteSafeguards
from harch.sovereignty.jurisdiction_file import shipped_jurisdictions
from harch.sovereignty.tags import DataKind, DataObject, parse_tag
from harch.workloads.lifecycle import ExitReason

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY = TaskKey("wl_1", 1, 0)
TAG = parse_tag({"process_in": ["MA"], "rest_in": ["MA"], "frameworks": ["gdpr"]}, shipped_jurisdictions())
CENSUS = DataObject(id="data_1", kind=DataKind.DATASET, name="census", tenant="t", tag=TAG)
TASK = TaskSpec(
    key=KEY,
    name="n",
    tenant="t",
    node_id="dakhla-r01-n01",
    gpu_ids=(),
    gpu_indexes=(),
    gpus_modelled=True,
    command=("true",),
    country="MA",
    data=(CENSUS,),
)
SAFE = SiteSafeguards(encrypts_at_rest=True, keys_in=("MA",), frameworks=("gdpr",))
HERE = Premises("MA", frozenset(), (), (), SAFE)


def test_data_is_loaded_where_the_agent_itself_can_answer_for_every_rule() -> None:
    assert refusal(TASK, HERE) == ""


@pytest.mark.parametrize(
    ("rule", "premises"),
    [
        ("encrypt_at_rest", replace(HERE, safeguards=msgspec.structs.replace(SAFE, encrypts_at_rest=False))),
        ("key_in", replace(HERE, safeguards=msgspec.structs.replace(SAFE, keys_in=("SN",)))),
        ("frameworks", replace(HERE, safeguards=msgspec.structs.replace(SAFE, frameworks=()))),
    ],
)
def test_what_the_agent_does_not_declare_is_not_there(rule: str, premises: Premises) -> None:
    reason = refusal(TASK, premises)
    assert reason.startswith("E0907 census at dakhla-r01-n01")
    assert f": {rule}: " in reason


def test_another_country_and_a_missing_tag_mean_no() -> None:
    elsewhere = msgspec.structs.replace(TASK, country="SN")
    assert ": process_in: " in refusal(elsewhere, replace(HERE, country="SN"))
    untagged = msgspec.structs.replace(TASK, data=(msgspec.structs.replace(CENSUS, tag=None),))
    assert ": tag: " in refusal(untagged, HERE)


def test_tags_survive_the_wire() -> None:
    messages: list[HubMessage] = [StartTask(TASK), StopTask(KEY, 0.0, scrub=True)]
    assert decode_hub_frame(encode_frame(messages)) == messages


class Events:
    def __init__(self) -> None:
        self.ends: list[TaskEnded] = []
        self.told = asyncio.Event()

    def task_started(self, key: TaskKey, at: datetime) -> None: ...

    def task_ended(self, end: TaskEnded) -> None:
        self.ends.append(end)
        self.told.set()


END = TaskEnded(key=KEY, reason=ExitReason.STOPPED, at=NOW)


async def scrubbed(tmp_path: Path, *, running: tuple[TaskKey, ...] = ()) -> tuple[StateFolder, list[TaskEnded]]:
    state, events = StateFolder(tmp_path), Events()
    task_dir = state.task(KEY)
    for folder in (task_dir.path / "work" / "deep", task_dir.path / "log", state.checkpoint(KEY)):
        folder.mkdir(parents=True)
        (folder / "secret").write_text("x")
    scrubber = Scrubber(state, events)
    scrubber.order(KEY, task_dir)
    scrubber.report_end(task_dir, END, running=running)
    assert scrubber.at_work == {KEY}
    assert events.ends == []  # the end is told when it is true that nothing is left
    async with asyncio.timeout(5):
        await events.told.wait()
    assert scrubber.at_work == set()
    return state, events.ends


def test_a_scrub_deletes_what_the_task_wrote_before_its_end_is_told_and_keeps_the_log(tmp_path: Path) -> None:
    state, ends = asyncio.run(scrubbed(tmp_path))
    assert ends == [msgspec.structs.replace(END, scrubbed=True)]
    assert not (state.task(KEY).path / "work").exists()
    assert not state.checkpoint(KEY).exists()
    assert (state.task(KEY).path / "log" / "secret").exists()


def test_checkpoints_stay_while_another_task_of_the_workload_still_uses_them(tmp_path: Path) -> None:
    state, _ = asyncio.run(scrubbed(tmp_path, running=(TaskKey("wl_1", 1, 1),)))
    assert state.checkpoint(KEY).exists()


def test_without_an_order_nothing_is_deleted_and_with_a_file_of_a_former_agent_it_is(tmp_path: Path) -> None:
    async def report_end(mark: bool) -> bool:
        state, events = StateFolder(tmp_path), Events()
        task_dir = state.task(KEY)
        (task_dir.path / "work").mkdir(parents=True, exist_ok=True)
        if mark:
            task_dir.write_scrub()
        Scrubber(state, events).report_end(task_dir, END, running=())
        async with asyncio.timeout(5):
            await events.told.wait()
        return events.ends[0].scrubbed

    assert asyncio.run(report_end(mark=False)) is False
    assert asyncio.run(report_end(mark=True)) is True
