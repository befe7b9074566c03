"""Two hubs of one process, linked for real, each with an agent at the other end of a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from harch.base.clock import SystemClock
from harch.base.config import Home
from harch.execution.protocol import (
    AgentMessage,
    FilesAnswer,
    ReadTaskLog,
    SnapshotFiles,
    TaskArtifact,
    TaskEnded,
    TaskKey,
    TaskLogChunk,
    decode_hub_frame,
    encode_frame,
)
from harch.federation.identity.authority import make_federation
from harch.federation.identity.folder import identity_folder
from harch.federation.identity.hub_identity import HubIdentity
from harch.hub.service import build_hub
from harch.hub.views import PeerView
from harch.testing.agents import SimAgent
from harch.testing.ports import free_ports
from harch.testing.samples import tiny_fleet
from harch.workloads.lifecycle import ExitReason, Workload
from harch.workloads.spec import Resources, WorkloadSpec

CLOCK = SystemClock()


class NearAgent:
    """A node's agent at the other end of a queue instead of a socket. Its tasks have all written the same."""

    peer = "test"
    key_id = "key_test"

    def __init__(self, agent: SimAgent) -> None:
        self.agent = agent
        self.tree = ""  # the digest of whatever is in the working folders of its tasks
        self._frames: asyncio.Queue[bytes] = asyncio.Queue()
        self._say([agent.hello(now=CLOCK.now())])

    async def receive(self) -> bytes:
        return await self._frames.get()

    async def send(self, frame: bytes) -> None:
        for message in decode_hub_frame(frame):
            if isinstance(message, ReadTaskLog):
                since = "" if message.since_s is None else f" since {message.since_s:g}"
                text = f"output of attempt {message.key.attempt}{since}"[message.offset :].encode()
                self._say([TaskLogChunk(request_id=message.request_id, offset=message.offset, data=text, eof=True)])
            elif isinstance(message, SnapshotFiles):
                self._say([FilesAnswer(request_id=message.request_id, digest=self.tree)])
            else:
                self.agent.receive(message, now=CLOCK.now())
        self.report()

    def report(self) -> None:
        messages = self.agent.take_outbox()
        if messages:
            self._say(messages)

    def end(self, key: TaskKey, *artifacts: TaskArtifact) -> None:
        self.agent.end(key, ExitReason.EXITED, now=CLOCK.now(), exit_code=0)
        if artifacts:
            (end,) = (one for one in self.agent.take_outbox() if isinstance(one, TaskEnded))
            self._say([replace(end, artifacts=artifacts)])
        self.report()

    def _say(self, messages: list[AgentMessage]) -> None:
        self._frames.put_nowait(encode_frame(messages))


class LiveHub:
    """A hub and its agent. `stop` is sudden for its peers: no word of parting."""

    def __init__(self, home: Home, number: int) -> None:
        fleet = tiny_fleet()
        self._hub = fleet.hubs[number]
        others = {hub.id: f"http://{hub.id}" for hub in fleet.hubs if hub is not self._hub}
        self.service = build_hub(
            fleet=fleet,
            hub=self._hub,
            state_dir=home.hub(self._hub.id),
            clock=CLOCK,
            version="test",
            url=f"http://{self._hub.id}",
            peer_urls=others,
            on_broken=lambda error: None,
            identity=HubIdentity(identity_folder(home, self._hub.id)),
        )
        self.agent = NearAgent(SimAgent(f"{self._hub.id}-agent", self._hub.country))
        self._tasks = [
            asyncio.create_task(self.service.run()),
            asyncio.create_task(self.service.attach_agent(self.agent, key_id="key_agent")),
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.service.close()

    def other(self) -> PeerView:
        return self.service.peers()[1]

    def told(self, field: str) -> object:
        """A figure of the other hub, as far as it is known here."""
        return getattr(self.other().summary, field, None)

    def sees_other(self) -> bool:
        return self.other().reachable and self.told("agents") == 1

    async def submit(self, **fields: object) -> Workload:
        spec = WorkloadSpec(name="job", command=("true",), resources=Resources(gpus=1), **fields)  # type: ignore[arg-type]
        workload, _ = await self.service.submit(spec, tenant="t", annotations={}, idempotency_key=None)
        return workload

    async def has_noted(self, kind: str, subject: str) -> bool:
        return bool(await self.service.events(after=0, limit=1, tenant=None, subject=subject, kind=kind))

    async def notes(self, kind: str, subject: str) -> None:
        """Returns once it has."""
        async with asyncio.timeout(20):
            while not await self.has_noted(kind, subject):
                await self.service.wait_for_event(self.service.last_event(), 1.0)


class Pair:
    def __init__(self, home: Home) -> None:
        self.home = home
        self.dakhla, self.dakar = LiveHub(home, 0), LiveHub(home, 1)

    async def ready(self) -> None:
        for hub in (self.dakhla, self.dakar):
            await until(hub.sees_other)


async def until(look: Callable[[], object], within_s: float = 20) -> None:
    async with asyncio.timeout(within_s):
        while not look():
            await asyncio.sleep(0.01)


def make_pair(folder: Path) -> Pair:
    home = Home(folder)
    fleet = tiny_fleet()
    addresses = {hub.id: ("127.0.0.1", port) for hub, port in zip(fleet.hubs, free_ports(2), strict=True)}
    make_federation(home, addresses, now=CLOCK.now())
    return Pair(home)
