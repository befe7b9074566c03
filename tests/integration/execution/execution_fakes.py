"""A hub in miniature and an agent in a process of its own, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from websockets.asyncio.server import ServerConnection, serve

from harch.execution import kernel
from harch.execution.isolation import cgroups
from harch.execution.preparation import StateFolder
from harch.execution.protocol import (
    FRAME_BYTES_MAX,
    AgentHello,
    Forget,
    HubMessage,
    ReadTaskLog,
    StartTask,
    TaskEnded,
    TaskKey,
    TaskLogChunk,
    TaskSpec,
    TaskStarted,
    decode_agent_frame,
    encode_frame,
)

_in_sandbox = [pytest.param(mode, marks=pytest.mark.needs("bubblewrap")) for mode in ("auto", "bare auto")]
everywhere = pytest.mark.parametrize("mode", [*_in_sandbox, "off", "bare off"], indirect=True)
API_KEY = "hsk_test"
WAIT_S = 15.0
Message = TypeVar("Message")

_AGENT = """
import asyncio, json, sys
from pathlib import Path
from harch.execution.admission import AgentConfig
from harch.execution.agent_process import serve
settings = json.loads(sys.argv[1])
for name in ("state_dir",):
    settings[name] = Path(settings[name])
for name in ("share", "hide"):
    settings[name] = tuple(Path(path) for path in settings.get(name, ()))
asyncio.run(serve(AgentConfig(**settings)))
"""


@dataclass
class FakeHub:
    """Accepts agents, records what they say, and says what the test tells it to."""

    forgets: bool = True
    messages: list[Any] = field(default_factory=list)
    hellos: list[AgentHello] = field(default_factory=list)
    frames: int = 0
    url: str = ""
    _socket: ServerConnection | None = None
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)
    _requests: int = 0

    @contextlib.asynccontextmanager
    async def listening(self, port: int = 0):
        async with serve(
            self._talk,
            "127.0.0.1",
            port,
            compression=None,
            max_size=FRAME_BYTES_MAX,
            process_request=self._authenticate,
        ) as server:
            self.port = server.sockets[0].getsockname()[1]
            self.url = f"http://127.0.0.1:{self.port}"
            yield self

    async def say(self, *messages: HubMessage) -> None:
        await self.until(lambda: self._socket is not None)
        await self._socket.send(encode_frame(list(messages)))

    async def wait_for(self, kind: type[Message], where: Callable[[Message], bool] = lambda _: True) -> Message:
        found: list[Message] = []

        def look() -> bool:
            found[:] = [one for one in self.messages if isinstance(one, kind) and where(one)]
            return bool(found)

        await self.until(look, what=f"{kind.__name__} among {self.messages[-10:]}")
        return found[0]

    async def until(self, condition: Callable[[], bool], *, what: str = "") -> None:
        try:
            async with asyncio.timeout(WAIT_S), self._news:
                await self._news.wait_for(condition)
        except TimeoutError:
            raise AssertionError(f"the agent never said {what or 'what was awaited'}: {self.messages[-5:]}") from None

    async def start(self, task: TaskSpec) -> TaskStarted:
        await self.say(StartTask(task))
        return await self.started(task.key)

    async def started(self, key: TaskKey) -> TaskStarted:
        return await self.wait_for(TaskStarted, lambda one: one.key == key)

    async def ended(self, key: TaskKey) -> TaskEnded:
        return await self.wait_for(TaskEnded, lambda one: one.key == key)

    async def run(self, task: TaskSpec) -> TaskEnded:
        await self.say(StartTask(task))
        return await self.ended(task.key)

    async def log(
        self, key: TaskKey, offset: int = 0, bytes_max: int = 1 << 20, *, preparation: bool = False
    ) -> TaskLogChunk:
        self._requests += 1
        number = self._requests
        await self.say(ReadTaskLog(number, key, offset, bytes_max, preparation=preparation))
        return await self.wait_for(TaskLogChunk, lambda one: one.request_id == number)

    async def hang_up(self) -> None:
        socket, self._socket = self._socket, None
        await socket.close()

    def _authenticate(self, connection: ServerConnection, request):
        if request.headers.get("X-API-Key") != API_KEY:
            return connection.respond(401, "who are you?")
        return None if request.path == "/v1/agents/connect" else connection.respond(404, "no such door")

    async def _talk(self, socket: ServerConnection) -> None:
        async for frame in socket:
            self.frames += 1
            told = decode_agent_frame(frame)
            forget = [Forget(one.key) for one in told if isinstance(one, TaskEnded)] if self.forgets else []
            if forget:
                await socket.send(encode_frame(forget))
            async with self._news:
                for one in told:
                    if isinstance(one, AgentHello):
                        self.hellos.append(one)
                        self._socket = socket
                    self.messages.append(one)
                self._news.notify_all()


@dataclass
class AgentProcess:
    """A real agent process, which a test may kill."""

    hub_url: str
    state_dir: Path
    settings: dict[str, Any] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        settings = {
            "hub_url": self.hub_url,
            "api_key": API_KEY,
            "agent_id": "agent-1",
            "state_dir": str(self.state_dir),
            "country": "MA",
            **self.settings,
        }
        self.process = subprocess.Popen([sys.executable, "-c", _AGENT, json.dumps(settings)], stderr=subprocess.PIPE)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    def terminate(self, timeout_s: float = 15) -> tuple[int, str]:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, said.decode()


def stop_supervisors(state_dir: Path) -> None:
    """Ends what a test has left running: the supervisors by the pids in their locks, and with them their tasks."""
    for lock in state_dir.glob("tasks/*/lock"):
        text = lock.read_text()
        if text and not (lock.parent / "ended.json").exists():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(text), signal.SIGKILL)
    state = StateFolder(state_dir)
    limits = cgroups.detect(state.tag)
    for name in set(limits.leftovers()):
        kernel.kill_cgroups(limits.folders_of(name))
        kernel.remove_cgroups(limits.folders_of(name))
    limits.close()
    state.close()


def alive(pid: int) -> bool:
    """False for the dead and for zombies."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    give_up_at = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up_at, "timed out"
        time.sleep(0.01)


_COUNTER = iter(range(1, 10**6))


def task(*command: str, **changes: Any) -> TaskSpec:
    number = next(_COUNTER)
    fields: dict[str, Any] = {
        "key": TaskKey(f"wl_{os.getpid()}_{number}", 1, 0),
        "name": f"task-{number}",
        "tenant": "default",
        "node_id": "n1",
        "gpu_ids": ("n1-g0", "n1-g1"),
        "gpu_indexes": (0, 1),
        "gpus_modelled": True,
        "command": command,
        "country": "MA",
        "memory_gb": 0.5,
        "stop_grace_s": 1.0,
    }
    return TaskSpec(**{**fields, **changes})
