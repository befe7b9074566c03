"""A hub in this process that is timed: its jobs are posted, placed, started and ended, and CPU time is counted.

Importable; `telemetry_overhead.py` tells the figures.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from harch.api.app import create_app
from harch.base.clock import SystemClock
from harch.base.tracing.tracer import Tracing
from harch.execution.protocol import (
    AgentHeartbeat,
    AgentMessage,
    StartTask,
    TaskEnded,
    TaskKey,
    TaskStarted,
    decode_hub_frame,
    encode_frame,
)
from harch.fleet.file import parse_fleet
from harch.hub.jobs import events as ev
from harch.hub.jobs.state import Closed
from harch.hub.service import build_hub
from harch.hub.views import Role
from harch.testing.agents import SimAgent
from harch.testing.fleet_generator import generate_blueprint
from harch.testing.fleet_writer import to_toml
from harch.workloads.lifecycle import ExitReason

GPUS, JOBS, KEY = 2_000, 20, "hsk_" + "b" * 40


class QuietAgent:
    """An agent that costs nothing while a hub is timed: it keeps the frames, and answers from bytes made before."""

    peer = "bench"

    def __init__(self, agent: SimAgent) -> None:
        self._frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.received: list[bytes] = []
        self.say([agent.hello(now=SystemClock().now())])

    async def receive(self) -> bytes:
        return await self._frames.get()

    async def send(self, frame: bytes) -> None:
        self.received.append(frame)

    def say(self, messages: list[AgentMessage]) -> None:
        self._frames.put_nowait(encode_frame(messages))

    def push(self, frame: bytes) -> None:
        self._frames.put_nowait(frame)

    def started(self) -> list[TaskKey]:
        """The tasks that it was told to start since it was asked last."""
        messages = [message for frame in self.received for message in decode_hub_frame(frame)]
        self.received.clear()
        return [message.task.key for message in messages if isinstance(message, StartTask)]


class BenchHub:
    """One hub in this process."""

    def __init__(self, folder: Path, tracing: Tracing | None) -> None:
        fleet = parse_fleet(to_toml(generate_blueprint(hub_count=1, gpu_count=GPUS)), "bench.toml")
        folder.mkdir()
        self._clock = SystemClock()
        self.service = build_hub(
            fleet=fleet,
            hub=fleet.hubs[0],
            state_dir=folder,
            clock=self._clock,
            version="bench",
            url="http://bench",
            peer_urls={},
            on_broken=lambda error: sys.exit(str(error)),
            tracing=tracing,
        )
        self.app = create_app(self.service, tracing=tracing)
        self.driver = self.service._jobs
        hub = fleet.hubs[0]
        self.agent = QuietAgent(SimAgent("bench", hub.country, tuple(node.id for node in hub.nodes), 10_000))
        serving = self.service.attach_agent(self.agent, key_id="key_agent")
        self._tasks = [asyncio.create_task(serving), asyncio.create_task(self.beat())]
        self._number = 0

    async def open(self) -> None:
        await self.service.credentials.adopt_key(KEY, name="bench", tenant="t", role=Role.ADMIN)
        while not self.driver.machine.state.agents.agents:
            await asyncio.sleep(0.01)

    async def beat(self) -> None:
        """Until cancelled: an agent that is silent for ten seconds gets no work."""
        while True:
            self.agent.say([AgentHeartbeat(0.0)])
            await asyncio.sleep(3)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.service.close()

    async def submitted(self) -> float:
        """CPU seconds of one POST; nothing is placed meanwhile."""
        await self.driver.handle(ev.HubClosed(Closed.CORDONED, "the bench"))
        bodies = [self._body() for _ in range(JOBS)]
        with _Counted() as counted:
            await asyncio.gather(*(self._post(body) for body in bodies))
        return counted.took_s / JOBS

    async def placed(self) -> float:
        """CPU seconds of one job from its turn to its end: decided, stored, sent, started, ended, stored again."""
        self.agent.received.clear()
        opened = self.driver.handle(ev.HubClosed(Closed.OPEN, "the bench"))
        await opened
        with _Counted() as counted:
            self.driver.plan_placement()
            await self._until(lambda: not len(self.driver.machine.state.scheduler.queue))
            await self.driver.handle(ev.Noted("bench", "bench", "a barrier"))
        at = self._clock.now()
        keys: list[TaskKey] = []
        async with asyncio.timeout(60):
            while len(keys) < JOBS:
                await asyncio.sleep(0.01)
                keys += self.agent.started()
        starts: list[AgentMessage] = [TaskStarted(key=key, at=at) for key in keys]
        ends: list[AgentMessage] = [TaskEnded(key=key, reason=ExitReason.EXITED, at=at, exit_code=0) for key in keys]
        frames = [encode_frame(starts), encode_frame(ends)]
        with _Counted() as rest:
            for frame in frames:
                self.agent.push(frame)
            await self._until(lambda: not self.driver.machine.state.scheduler.running)
            await self.driver.handle(ev.Noted("bench", "bench", "a barrier"))
        return (counted.took_s + rest.took_s) / JOBS

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.002)

    def _body(self) -> bytes:
        self._number += 1
        job = {"name": f"job-{self._number}", "resources": {"gpus": 1}, "modelled_duration_s": 3600}
        return msgspec.json.encode(job)

    async def _post(self, body: bytes) -> None:
        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start" and message["status"] != 201:
                raise SystemExit(f"a job was answered with {message['status']}")

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/workloads",
            "headers": [
                (b"host", b"127.0.0.1:7701"),
                (b"x-api-key", KEY.encode()),
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"traceparent", f"00-{os.urandom(16).hex()}-{os.urandom(8).hex()}-00".encode()),
            ],
        }
        await self.app(scope, receive, send)  # type: ignore[arg-type]


class _Counted:
    """CPU time of the whole process."""

    took_s = 0.0

    def __enter__(self) -> _Counted:
        self._began_s = time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.took_s = time.process_time() - self._began_s
