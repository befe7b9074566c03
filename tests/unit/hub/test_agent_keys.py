"""Can one node pass for another? Keys belong to agents and agents to keys, across restarts and upgrades."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from harch.base.clock import SystemClock
from harch.execution.protocol import (
    AgentMessage,
    AgentRefused,
    HubMessage,
    TaskEnded,
    TaskKey,
    TaskStarted,
    decode_hub_frame,
    encode_frame,
)
from harch.hub.jobs import events as ev
from harch.hub.jobs.agents import AgentKeys
from harch.hub.service import HubService, build_hub
from harch.hub.store.database import Database
from harch.hub.store.migrations import MIGRATIONS
from harch.hub.store.records import AgentKey
from harch.hub.views import Role
from harch.testing.agents import SimAgent
from harch.testing.samples import tiny_fleet
from harch.workloads.lifecycle import ExitReason, State
from unit.hub.conftest import Bench

CLOCK = SystemClock()
FLEET = tiny_fleet()
HUB = FLEET.hubs[0]
NODES = tuple(node.id for node in HUB.nodes)
ABOUT_A: dict[str, Any] = {"after": 0, "limit": 100, "tenant": None, "subject": "a", "kind": None}


# Decided without a hub


def keys(*bound: AgentKey, revoked: tuple[str, ...] = ()) -> AgentKeys:
    return AgentKeys(bound, lambda key_id: key_id not in revoked)


def test_a_key_that_nobody_has_used_is_anybodys() -> None:
    assert keys().refusal("k1", "a", ()) is None


def test_a_key_of_one_agent_is_not_anothers() -> None:
    known = keys(AgentKey(key_id="k1", agent_id="a"))
    assert known.refusal("k1", "a", ("n1",)) is None
    error = known.refusal("k1", "b", ())
    assert error is not None
    assert (error.code, "`a`" in error.message) == ("E0115", True)


def test_an_agent_of_one_key_is_not_anothers_until_that_is_revoked() -> None:
    bound = AgentKey(key_id="k1", agent_id="a")
    assert keys(bound).refusal("k2", "a", ()) is not None
    assert keys(bound, revoked=("k1",)).refusal("k2", "a", ()) is None


@pytest.mark.parametrize(
    ("asked", "allowed"), [(("n1",), True), (("n1", "n2"), True), (("n1", "n3"), False), ((), False)]
)
def test_a_key_for_some_nodes_is_for_no_others(asked: tuple[str, ...], allowed: bool) -> None:
    known = keys(AgentKey(key_id="k1", agent_id="a", node_ids=("n1", "n2")))
    assert (known.refusal("k1", "a", asked) is None) is allowed


def test_agents_that_shared_a_key_before_keep_it_and_others_do_not_get_it() -> None:
    known = keys(AgentKey(key_id="k1", agent_id="a"), AgentKey(key_id="k1", agent_id="b"))
    assert known.refusal("k1", "a", ()) is None
    assert known.refusal("k1", "b", ()) is None
    assert known.refusal("k1", "c", ()) is not None


def test_a_released_key_is_anybodys_again() -> None:
    known = keys(AgentKey(key_id="k1", agent_id="a"))
    known.release("k1")
    assert known.refusal("k1", "b", ()) is None


# In a hub


class Link:
    """An agent at the other end of a queue."""

    peer = "test"

    def __init__(self, agent: SimAgent) -> None:
        self._frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.heard: asyncio.Queue[HubMessage] = asyncio.Queue()
        self.say(agent.hello(now=CLOCK.now()))

    def say(self, *messages: AgentMessage) -> None:
        self._frames.put_nowait(encode_frame(list(messages)))

    async def receive(self) -> bytes:
        return await self._frames.get()

    async def send(self, frame: bytes) -> None:
        for message in decode_hub_frame(frame):
            self.heard.put_nowait(message)

    async def refused(self) -> AgentRefused:
        async with asyncio.timeout(20):
            while not isinstance(message := await self.heard.get(), AgentRefused):
                pass
        return message


@asynccontextmanager
async def hub(folder: Path) -> AsyncIterator[HubService]:
    service = build_hub(
        fleet=FLEET,
        hub=HUB,
        state_dir=folder,
        clock=CLOCK,
        version="test",
        url="http://test",
        peer_urls={},
        on_broken=lambda error: None,
    )
    try:
        yield service
    finally:
        await service.close()


@asynccontextmanager
async def attached(service: HubService, agent: SimAgent, key_id: str) -> AsyncIterator[Link]:
    link = Link(agent)
    task = asyncio.create_task(service.attach_agent(link, key_id=key_id))
    try:
        yield link
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def sessions(service: HubService) -> dict[str, Any]:
    return service._agents._sessions._by_agent


async def until_joined(service: HubService, agent_id: str) -> None:
    async with asyncio.timeout(20):
        while agent_id not in service._jobs.machine.state.agents.agents:
            await asyncio.sleep(0.01)


async def test_the_first_agent_has_the_key_and_has_it_after_a_restart(tmp_path: Path) -> None:
    async with hub(tmp_path) as service:
        info, _ = await service.credentials.create_key(name="k", tenant="t", role=Role.AGENT)
        async with attached(service, SimAgent("a", HUB.country, NODES[:1]), info.id):
            await until_joined(service, "a")
        assert [(one.agent_id, one.node_ids) for one in service.credentials.agents_of(info.id)] == [("a", NODES[:1])]
    async with hub(tmp_path) as service:
        async with attached(service, SimAgent("b", HUB.country), info.id) as link:
            assert (await link.refused()).code == "E0115"
            assert sessions(service) == {}
        async with attached(service, SimAgent("a", HUB.country, NODES[:1]), info.id):
            await until_joined(service, "a")


async def test_who_pretends_to_be_an_agent_does_not_take_its_place(tmp_path: Path) -> None:
    async with hub(tmp_path) as service:
        own, _ = await service.credentials.create_key(name="own", tenant="t", role=Role.AGENT)
        other, _ = await service.credentials.create_key(name="other", tenant="t", role=Role.AGENT)
        async with attached(service, SimAgent("a", HUB.country), own.id):
            await until_joined(service, "a")
            session = sessions(service)["a"]
            async with attached(service, SimAgent("a", HUB.country), other.id) as thief:
                refused = await thief.refused()
            assert refused.code == "E0115"
            assert sessions(service)["a"] is session
        async with asyncio.timeout(20):
            while "agent.refused" not in [event.kind for event in await service.events(**ABOUT_A)]:
                await asyncio.sleep(0.01)


async def test_reports_of_one_that_was_refused_are_not_heard(tmp_path: Path) -> None:
    """They may come in the same breath as its Hello."""
    async with hub(tmp_path) as service:
        own, _ = await service.credentials.create_key(name="own", tenant="t", role=Role.AGENT, agent_id="a")
        heard: list[ev.Event] = []
        handle = service._jobs.handle
        service._jobs.handle = lambda *events: (heard.extend(events), handle(*events))[1]  # type: ignore[method-assign]
        link = Link(SimAgent("b", HUB.country))
        link.say(TaskStarted(key=TaskKey("wl_1", 1, 0), at=CLOCK.now()))
        async with asyncio.timeout(20):
            await service.attach_agent(link, key_id=own.id)
        assert [type(event) for event in heard] == [ev.AgentBarred]


async def test_an_agent_that_the_hub_refuses_does_not_get_the_key(tmp_path: Path) -> None:
    async with hub(tmp_path) as service:
        info, _ = await service.credentials.create_key(name="k", tenant="t", role=Role.AGENT)
        async with attached(service, SimAgent("a", "SN" if HUB.country != "SN" else "MA"), info.id) as link:
            assert (await link.refused()).code == "E0902"
        assert service.credentials.agents_of(info.id) == ()


async def test_a_key_can_be_made_for_one_agent_and_freed_again(tmp_path: Path) -> None:
    async with hub(tmp_path) as service:
        made = {"name": "k", "tenant": "t", "role": Role.AGENT}
        info, _ = await service.credentials.create_key(**made, agent_id="a", node_ids=NODES[:1])
        async with attached(service, SimAgent("a", HUB.country, NODES[1:2]), info.id) as link:
            assert NODES[1] in (await link.refused()).message
        await service.credentials.release_key(info.id, tenant=None)
        async with attached(service, SimAgent("b", HUB.country), info.id):
            await until_joined(service, "b")


async def test_an_agent_whose_key_is_revoked_is_cut_off(tmp_path: Path) -> None:
    async with hub(tmp_path) as service:
        info, _ = await service.credentials.create_key(name="k", tenant="t", role=Role.AGENT)
        link = Link(SimAgent("a", HUB.country))
        serving = asyncio.create_task(service.attach_agent(link, key_id=info.id))
        await until_joined(service, "a")
        await service.credentials.revoke_key(info.id, tenant=None)
        async with asyncio.timeout(20):
            await serving
        assert sessions(service) == {}


async def test_who_says_hello_twice_is_cut_off(tmp_path: Path) -> None:
    async with hub(tmp_path) as service:
        info, _ = await service.credentials.create_key(name="k", tenant="t", role=Role.AGENT)
        link = Link(SimAgent("a", HUB.country))
        link.say(SimAgent("b", HUB.country).hello())
        async with asyncio.timeout(20):
            await service.attach_agent(link, key_id=info.id)
        assert sessions(service) == {}
        assert service._jobs.machine.state.agents.agents == {}


def test_nobody_reports_on_the_tasks_of_another_agent(bench: Bench) -> None:
    bench.handle(ev.AgentJoined(SimAgent("agent", HUB.country, NODES[:1]).hello(), 1))
    bench.handle(ev.AgentJoined(SimAgent("other", HUB.country, NODES[1:]).hello(), 2))
    workload = bench.submit(gpus=1)
    bench.place()
    runner = bench.machine.state.agents.agent_of_node[workload.placement[0].node_id]
    liar = "other" if runner == "agent" else "agent"
    key = TaskKey(workload.id, workload.attempt, 0)
    end = TaskEnded(key=key, reason=ExitReason.EXITED, at=bench.now, exit_code=0)
    bench.handle(ev.TaskStartSeen(key, liar))
    bench.handle(ev.TaskEndSeen(liar, end))
    assert workload.state is State.SCHEDULED
    assert bench.sent == []
    bench.handle(ev.TaskStartSeen(key, runner))
    assert workload.state is State.RUNNING
    bench.handle(ev.TaskEndSeen(runner, end))
    assert workload.state is State.COMPLETED


# From an earlier version


def test_an_old_key_belongs_to_all_agents_that_have_been_seen(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    number = next(n for n, step in enumerate(MIGRATIONS) if any("CREATE TABLE agent_keys" in one for one in step))
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("CREATE TABLE schema_version (version INTEGER NOT NULL)")
    for version, step in enumerate(MIGRATIONS[:number], start=1):
        for statement in step:
            connection.execute(statement)
        connection.execute("INSERT INTO schema_version VALUES (?)", (version,))
    save = "INSERT INTO api_keys VALUES (?, ?, '', 't', ?, 'hsk_', '2026-01-01T00:00:00Z', NULL, ?)"
    for key_id, role, revoked in (("k1", "agent", 0), ("k2", "agent", 1), ("k3", "user", 0)):
        connection.execute(save, (key_id, key_id, role, revoked))
    happened = "INSERT INTO events VALUES (?, '2026-01-01T00:00:00Z', ?, ?, '', '', '{}')"
    for seq, (kind, subject) in enumerate(
        [("agent.joined", "a"), ("agent.joined", "b"), ("agent.joined", "a"), ("agent.refused", "c")], start=1
    ):
        connection.execute(happened, (seq, kind, subject))
    connection.close()
    database = Database(path)
    assert [(one.key_id, one.agent_id, one.node_ids) for one in database.agent_keys()] == [
        ("k1", "a", ()),
        ("k1", "b", ()),
    ]
    database.close()
