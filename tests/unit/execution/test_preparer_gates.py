"""Nothing is fetched that the agent itself would not allow, whoever has allowed it before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from harch.base.errors import HarchError
from harch.execution.admission import Premises
from harch.execution.content.cancellation import Cancellation, Cancelled
from harch.execution.content.preparing import Preparer
from harch.execution.protocol import ContentUse, TaskContent, TaskKey, TaskSpec
from harch.execution.taskdir import TaskDir
from harch.sovereignty.geography import SiteSafeguards
from harch.sovereignty.jurisdiction_file import shipped_jurisdictions
from harch.sovereignty.tags import DataKind, DataObject, parse_tag
from harch.workloads.spec import Environment

TAG = parse_tag({"process_in": ["MA"], "rest_in": ["MA"], "frameworks": ["gdpr"]}, shipped_jurisdictions())
DATA = DataObject(id="data_1", kind=DataKind.DATASET, name="census", tenant="t", tag=TAG)
SAFE = SiteSafeguards(encrypts_at_rest=True, keys_in=("MA",), frameworks=("gdpr",))
HERE = Premises("MA", frozenset(), (), (), SAFE)
TASK = TaskSpec(
    key=TaskKey("wl_1", 1, 0),
    name="n",
    tenant="t",
    node_id="n1",
    gpu_ids=(),
    gpu_indexes=(),
    gpus_modelled=True,
    command=("true",),
    country="MA",
    data=(DATA,),
)


class Nothing:
    """Whoever is asked for anything has failed the test."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked for")


class Report:
    def __init__(self) -> None:
        self.steps: list[str] = []

    def step(self, name: str) -> None:
        self.steps.append(name)

    def detail(self, text: str) -> None: ...

    def write(self, data: bytes) -> None: ...


def prepare(task: TaskSpec, premises: Premises, cancellation: Cancellation | None = None) -> Report:
    nothing, report = cast(Any, Nothing()), Report()
    preparer = Preparer(premises, nothing, nothing, nothing, lambda *_: nothing, nothing)
    preparer.prepare(task, TaskDir(Path("/nonexistent")), [], report, cancellation or Cancellation(), [])
    return report


@pytest.mark.parametrize(
    "changes",
    [
        {"contents": (TaskContent("data_1", "census", "0" * 64, ContentUse.CODE),)},
        {"contents": (TaskContent("data_1", "census", "0" * 64, ContentUse.DATA),)},
        {"contents": (TaskContent("data_1", "census", "0" * 64, ContentUse.IMAGE),)},
        {"environment": Environment()},
        {"image": "host.example/train:1"},
    ],
)
def test_before_each_piece_the_tags_are_looked_at_again(changes):
    task = msgspec.structs.replace(TASK, **changes)
    for premises in (replace(HERE, country="SN"), replace(HERE, safeguards=SiteSafeguards(encrypts_at_rest=True))):
        with pytest.raises(HarchError) as caught:
            prepare(task, premises)
        assert caught.value.code == "E0907"
        assert caught.value.message.startswith("census at n1: ")


def test_what_was_called_off_asks_for_nothing():
    cancellation = Cancellation()
    cancellation.cancel()
    with pytest.raises(Cancelled):
        prepare(msgspec.structs.replace(TASK, environment=Environment()), HERE, cancellation)


def test_an_image_that_the_hub_did_not_send_is_not_looked_for_elsewhere():
    with pytest.raises(HarchError) as caught:
        prepare(msgspec.structs.replace(TASK, image="data:train"), HERE)
    assert caught.value.code == "E1102"
