"""Nothing leaves a hub that is not on its disk: no order to an agent, no word to a peer, no event, no promise."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from harch.base.errors import HarchError
from harch.execution.protocol import StartTask
from harch.federation.offers import BidRequest, Bids
from harch.hub.audit import table
from harch.hub.jobs import events as ev
from harch.testing.faulty_hub import FaultyHub
from harch.workloads.spec import Resources, WorkloadSpec


class Recorder:
    """Everything that a hub's driver sends, whether or not somebody is connected, and what was on disk by then."""

    def __init__(self, folder: Path) -> None:
        self.hub = FaultyHub(folder, Random(0), faults=0.0)
        self.driver, self.database = self.hub.driver, self.hub.database
        self.sent: list[object] = []
        self.audited: list[int] = []  # the length of the audit chain on disk when it was sent
        self.driver._send = self.driver._send_peer = self._record

    def _record(self, _to: str, message: object) -> None:
        self.sent.append(message)
        self.audited.append(table.head(self.database).seq)

    async def join(self) -> None:
        while (event := self.hub.world.agent_joined(self.driver.machine)) is not None:
            await self.driver.handle(event)
        self.sent.clear()

    async def submit(self) -> None:
        await self.driver.handle(ev.Submitted("wl_1", "t", WorkloadSpec(name="one", resources=Resources(gpus=1))))


@pytest.fixture
async def hub(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Recorder]:
    caplog.set_level(logging.CRITICAL, "harch.hub")
    made = Recorder(tmp_path)
    await made.join()
    yield made
    await made.hub._settle()
    await made.hub.close()


@pytest.mark.parametrize("fails_at", ["begin", "execute", "commit"])
async def test_an_order_to_start_does_not_leave_if_it_could_not_be_written(hub: Recorder, fails_at: str) -> None:
    await hub.submit()
    hub.database.fails_at = fails_at
    with pytest.raises(HarchError):
        await hub.driver.handle(ev.PlacementDue())
    await asyncio.sleep(0)
    assert hub.sent == []
    await hub.hub._settle()
    await hub.join()
    await hub.driver.handle(ev.PlacementDue())
    await asyncio.sleep(0)
    assert [type(message) for message in hub.sent] == [StartTask], "the disk works again: once, and from what it has"


@pytest.mark.parametrize("fails_at", ["begin", "execute", "commit"])
async def test_an_answer_to_a_peer_does_not_leave_if_what_came_before_it_could_not_be_written(
    hub: Recorder, fails_at: str
) -> None:
    hub.database.fails_at = fails_at
    first = hub.driver.handle(ev.Submitted("wl_1", "t", WorkloadSpec(name="one", resources=Resources(gpus=1))))
    second = hub.driver.handle(ev.PeerMessageReceived("elsewhere", BidRequest(1, ())))
    assert [type(one) for one in await asyncio.gather(first, second, return_exceptions=True)] == [HarchError] * 2
    await asyncio.sleep(0)
    assert hub.sent == []


async def test_an_answer_to_a_peer_leaves_once_it_is_on_disk(hub: Recorder) -> None:
    await hub.driver.handle(ev.PeerMessageReceived("elsewhere", BidRequest(1, ())))
    await asyncio.sleep(0)
    assert hub.sent == [Bids(number=1, bids=())]


@pytest.mark.parametrize("fails_at", ["begin", "execute", "commit"])
async def test_a_follower_of_the_events_does_not_see_those_that_were_lost(hub: Recorder, fails_at: str) -> None:
    before = hub.driver.seq_stored
    follower = asyncio.ensure_future(hub.driver.wait_for_event(before, timeout_s=60.0))
    await asyncio.sleep(0)
    hub.database.fails_at = fails_at
    with pytest.raises(HarchError):
        await hub.submit()
    await asyncio.sleep(0)
    assert not follower.done()
    assert hub.driver.seq_stored == before == hub.database.last_event()
    follower.cancel()


async def test_the_audit_chain_on_disk_has_the_start_before_the_agent_has_it(hub: Recorder) -> None:
    await hub.submit()
    before = table.head(hub.database).seq
    await hub.driver.handle(ev.PlacementDue())
    await asyncio.sleep(0)
    assert [type(message) for message in hub.sent] == [StartTask]
    assert hub.audited == [before + 1]


async def test_a_repeated_submission_with_its_key_is_one_workload_after_a_restart_too(hub: Recorder) -> None:
    spec = WorkloadSpec(name="one", resources=Resources(gpus=1))
    await hub.driver.handle(ev.Submitted("wl_1", "t", spec, {}, "key"))
    hub.driver._restore()  # as a new process does
    await hub.driver.handle(ev.Submitted("wl_2", "t", spec, {}, "key"))
    assert list(hub.driver.machine.state.registry.workloads) == ["wl_1"]
    with pytest.raises(HarchError) as refused:
        await hub.driver.handle(ev.Submitted("wl_3", "t", WorkloadSpec(name="other"), {}, "key"))
    assert refused.value.code == "E0206"
