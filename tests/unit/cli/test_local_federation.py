"""Is a hub on its way or stuck? Told by what it does, with a clock and processor times that the test makes up."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from harch.base.config import Home, Ports
from harch.cli import local_federation
from harch.cli.local_federation import (
    CPU_S_MAX,
    ENDS_MAX,
    PAUSE_S_MAX,
    QUIET_S_MAX,
    STEADY_S,
    Backoff,
    HubSite,
    LocalFederation,
    StartStep,
    StartWatch,
    starts_at_once,
)
from harch.fleet.file import shipped_fleet


def test_a_hub_that_loads_slowly_is_waited_for_however_long_it_takes() -> None:
    watch = StartWatch(0.0)
    for minute in range(100):  # a twentieth of a processor for more than an hour
        now_s = 60.0 * minute
        assert watch.stuck(now_s, StartStep.STARTED, cpu_s=now_s * 0.05, ends=0) == ""


def test_a_hub_that_does_nothing_is_stuck() -> None:
    watch = StartWatch(0.0)
    assert watch.stuck(QUIET_S_MAX, StartStep.STARTED, cpu_s=0.5, ends=0) == ""
    assert "does not answer" in watch.stuck(QUIET_S_MAX + 1, StartStep.STARTED, cpu_s=0.9, ends=0)


def test_each_step_is_progress() -> None:
    watch = StartWatch(0.0)
    assert watch.stuck(59.0, StartStep.ANSWERS, cpu_s=0.0, ends=0) == ""
    assert watch.stuck(118.0, StartStep.ANSWERS, cpu_s=0.0, ends=0) == ""
    assert "no agent" in watch.stuck(120.0, StartStep.ANSWERS, cpu_s=0.0, ends=0)


def test_a_hub_that_turns_in_circles_is_stuck() -> None:
    watch = StartWatch(0.0)
    assert "CPU time" in watch.stuck(1.0, StartStep.STARTED, cpu_s=CPU_S_MAX + 1, ends=0)


def test_a_hub_that_keeps_ending_is_not_waited_for() -> None:
    watch = StartWatch(0.0)
    assert watch.stuck(1.0, StartStep.STARTED, cpu_s=3.0, ends=ENDS_MAX - 1) == ""
    assert f"{ENDS_MAX} times" in watch.stuck(2.0, StartStep.STARTED, cpu_s=0.1, ends=ENDS_MAX)


def test_a_new_process_counts_its_processor_time_anew() -> None:
    watch = StartWatch(0.0)
    assert watch.stuck(10.0, StartStep.STARTED, cpu_s=200.0, ends=0) == ""
    assert watch.stuck(20.0, StartStep.STARTED, cpu_s=0.0, ends=1) == ""
    assert watch.stuck(30.0, StartStep.STARTED, cpu_s=200.0, ends=1) == ""


def test_pauses_grow_to_a_limit_and_start_anew_after_a_steady_life() -> None:
    backoff = Backoff()
    pauses = [backoff.ended(1.0) for _ in range(10)]
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert pauses[-1] == PAUSE_S_MAX
    assert backoff.ends == 10
    assert backoff.ended(STEADY_S) == 0.5
    assert backoff.ends == 1


def test_as_many_hubs_start_together_as_there_are_cores() -> None:
    assert [starts_at_once(cores) for cores in (1, 2, 16)] == [2, 2, 16]


async def test_ctrl_c_stops_it_also_while_telemetry_still_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class WithoutProcesses(LocalFederation):
        stopped = False

        def _prepare(self) -> None: ...

        def _preload(self) -> None: ...  # type: ignore[override]

        async def _keep_reaping(self, _: object) -> None: ...

        def _report_all(self) -> None: ...

        async def _start(self, site: HubSite, *_: object) -> None:
            self._ready.add(site.hub.id)

        async def _report_sentinels(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()

        async def _stop_all(self, _: object) -> None:
            self.stopped = True

    monkeypatch.setattr(local_federation, "Descendants", object)
    monkeypatch.setattr(local_federation, "is_kept", lambda: True)
    federation = WithoutProcesses(
        fleet=shipped_fleet("five-hubs"),
        fleet_argument="five-hubs",
        home=Home(tmp_path),
        ports=Ports(7701),
        share=(),
        as_json=False,
    )
    async with asyncio.timeout(30):
        await federation.run()
    assert federation.stopped
