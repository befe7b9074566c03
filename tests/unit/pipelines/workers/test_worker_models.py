"""What a THINK worker tells of its models: from any thread, and with the rules that hold now."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs

from harch.pipelines.sense.gate import PolicyTable
from harch.pipelines.sense.settings import SenseSettings
from harch.pipelines.think.rollout import RolloutChange, VersionState, WantedModels
from harch.pipelines.think.settings import ModelSettings, RollbackRules, RuntimeKind, ThinkSettings, VersionSettings
from harch.pipelines.workers.shell import Shell
from harch.pipelines.workers.think_worker import WorkerModels
from harch.testing.clock import SimClock
from unit.pipelines.think.think_models import DAKHLA, MOROCCO

VERSION = VersionSettings(version="1", runtime=RuntimeKind.PYTHON, callable="same_rows:same")
MODEL = ModelSettings(name="m", inputs=("count",), outputs=("y",), versions=(VERSION,))


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "same_rows.py").write_text("def same(rows):\n    return rows\n")
    monkeypatch.syspath_prepend(tmp_path)


class FakeBucket:
    async def get(self, key: str) -> None:
        return None

    async def put(self, key: str, value: bytes, revision: int | None = None) -> int:
        return 1


def shell_of(alerts: list[tuple[int, str]]) -> Shell:
    config = SimpleNamespace(
        think=ThinkSettings(models=(MODEL,)),
        sense=SenseSettings(),
        site=DAKHLA,
        policy=PolicyTable(1, {"dakhla": 0}),
        pipeline="fields",
        model_folder=".",
        model_tags={"m": MOROCCO},
    )

    def alert(rule: str, detail: str, count: int = 1) -> None:
        alerts.append((threading.get_ident(), detail))

    return cast(Shell, SimpleNamespace(config=config, clock=SimClock(), state=FakeBucket(), alert=alert))


async def test_a_rollback_in_a_scoring_thread_is_told_by_the_loop_that_owns_the_connection() -> None:
    alerts: list[tuple[int, str]] = []
    models = WorkerModels(shell_of(alerts))
    await models.load()
    change = RolloutChange(
        version="1", before=VersionState.ACTIVE, after=VersionState.RETIRED, reason="errors", by_itself=True
    )
    teller: Any = models.stage.model("m")._on_change
    await asyncio.to_thread(teller, "m", change)
    await asyncio.sleep(0)
    assert alerts == [(threading.get_ident(), "m@1 is retired: errors")]


async def test_another_share_of_the_canary_and_other_rules_hold_without_a_restart() -> None:
    models = WorkerModels(shell_of([]))
    await models.load()
    changed = structs.replace(MODEL, canary_percent=40.0, rollback=RollbackRules(rows=7))
    await models._carry_out(WantedModels(3, {"m": (VERSION,)}, (changed,)))
    model = models.stage.model("m")
    assert (model.settings.canary_percent, model.settings.rollback.rows) == (40.0, 7)
    assert [record.watch.rules.rows for _, record in model.records()] == [7]
    assert models.revision == 3
