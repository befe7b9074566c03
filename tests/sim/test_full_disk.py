"""On a full disk nothing new is taken, work can be stopped, and everybody is told the same."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from harch.base.errors import HarchError
from harch.federation.offers import BidRequest, ReportsBooked
from harch.hub.jobs import events as ev
from harch.hub.jobs.runtime import JobRuntime
from harch.hub.store.database import Database, Reserve
from harch.testing.faulty_hub import FaultyHub
from harch.workloads.lifecycle import State
from harch.workloads.spec import Resources, WorkloadSpec


class Disk:
    """As full as a test says, for whoever wants room on it."""

    full = False

    def renew(self, _database: Database) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
async def hub(tmp_path: Path, disk: Disk) -> AsyncIterator[FaultyHub]:
    made = FaultyHub(tmp_path, Random(0), faults=0.0)
    while (event := made.world.agent_joined(made.driver.machine)) is not None:
        await made.driver.handle(event)
    yield made
    await made._settle()
    assert made.wrong() == []
    await made.close()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr(Database, "renew_reserve", lambda database: made.renew(database))
    return made


async def running(driver: JobRuntime, key: str) -> None:
    await driver.handle(ev.Submitted(key, "t", WorkloadSpec(name=key, resources=Resources(gpus=1))))
    await driver.handle(ev.PlacementDue())


async def test_nothing_new_is_taken_and_work_can_be_stopped_until_there_is_space_again(
    hub: FaultyHub, disk: Disk
) -> None:
    driver = hub.driver
    await running(driver, "wl_1")
    disk.full = True
    await driver.look_at_space()
    assert not driver.not_ready
    more = ev.Submitted("wl_2", "t", WorkloadSpec(name="more"))
    for asked in (more, ev.ResumeRequested("wl_1"), ev.CarbonDue(), ev.PlacementDue()):
        with pytest.raises(HarchError) as refused:
            driver.handle(asked)
        assert refused.value.code == "E1002"
        assert not driver.post(asked)
    with pytest.raises(HarchError) as not_written:
        await driver.write([], [])
    assert (not_written.value.code, not_written.value.hint) == (refused.value.code, refused.value.hint)
    await driver.handle(ev.StopRequested("wl_1", "asked"))
    while (report := hub.world.reported(driver.machine)) is not None:
        await driver.handle(report)
    assert driver.machine.state.registry.workloads["wl_1"].state is State.CANCELLED
    disk.full = False
    await driver.look_at_space()
    await driver.handle(more)


async def test_other_hubs_get_no_bids_and_are_heard_all_the_same(hub: FaultyHub, disk: Disk) -> None:
    disk.full = True
    await hub.driver.look_at_space()
    assert not hub.driver.post(ev.PeerMessageReceived("dakar", BidRequest(1, ())))
    assert hub.driver.post(ev.PeerMessageReceived("dakar", ReportsBooked(())))
    disk.full = False


async def test_a_write_that_finds_the_disk_full_first_is_refused_and_the_next_stop_is_taken(
    hub: FaultyHub, disk: Disk
) -> None:
    driver = hub.driver
    await running(driver, "wl_1")
    disk.full, hub.database.fails_at = True, "begin"
    with pytest.raises(HarchError) as first:
        await driver.handle(ev.Submitted("wl_2", "t", WorkloadSpec(name="more")))
    with pytest.raises(HarchError) as second:
        driver.handle(ev.Submitted("wl_3", "t", WorkloadSpec(name="more")))
    assert {(one.value.code, one.value.hint) for one in (first, second)} == {("E1002", first.value.hint)}
    waiting = asyncio.create_task(driver.until_ready(5.0))
    await hub.clock.advance(5.0)
    await waiting
    await driver.handle(ev.StopRequested("wl_1", "asked"))
    disk.full = False


def test_the_reserve_belongs_to_the_files_and_does_not_change_their_size(tmp_path: Path) -> None:
    database = Database(tmp_path / "hub.db")
    before = {path.name: path.stat() for path in tmp_path.iterdir() if path.suffix != ".db-shm"}
    database.renew_reserve()
    after = {name: (tmp_path / name).stat() for name in before}
    can_reserve = any(after[name].st_blocks != before[name].st_blocks for name in before)  # not on every file system
    each = Reserve(tmp_path / "hub.db").bytes_each
    for name in ("hub.db", "hub.db-wal"):
        assert after[name].st_size == before[name].st_size
        assert not can_reserve or after[name].st_blocks * 512 >= after[name].st_size + each
    database.renew_reserve()
    assert os.stat(tmp_path / "hub.db").st_blocks <= after["hub.db"].st_blocks, "it is renewed, not added to"
    database.close()
