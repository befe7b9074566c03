"""How does a federation run on one machine? One process per hub and per agent, watched, restarted, stopped in order."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import click
import httpx

from harch.api.sentinel_child import stop_left_over
from harch.api.server import bind
from harch.base.clock import Clock, SystemClock
from harch.base.config import Home, Ports
from harch.base.errors import HarchError
from harch.federation.identity.founding import make_federation
from harch.fleet.model import Fleet, Hub, HubSafeguards
from harch.hub.keys import ensure_key_file

READY_WITHIN_S = 60.0
AGENT_STOP_S, HUB_STOP_S = 20.0, 10.0
RESTARTS_MAX, RESTARTS_WITHIN_S = 10, 60.0
HOST = "127.0.0.1"


@dataclass
class Child:
    """A process of ours that must run. `errors` holds what it wrote to stderr since its last start."""

    name: str
    arguments: list[str]
    errors: Path
    process: asyncio.subprocess.Process | None = None
    starts_s: deque[float] = field(default_factory=lambda: deque(maxlen=RESTARTS_MAX))


class Federation:
    """Starts, watches and stops. It holds no state: whatever is killed is started again and finds its own on disk."""

    def __init__(
        self, *, fleet: Fleet, fleet_argument: str, home: Home, ports: Ports, share: tuple[str, ...], as_json: bool
    ) -> None:
        self._fleet, self._home, self._ports, self._as_json = fleet, home, ports, as_json
        self._clock: Clock = SystemClock()
        self._stopping = asyncio.Event()
        hubs = list(enumerate(fleet.hubs))
        self._hubs = [self._hub(hub, fleet_argument) for _, hub in hubs]
        self._agents = [self._agent(index, hub, share) for index, hub in hubs]

    async def run(self) -> None:
        """Until SIGINT or SIGTERM."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stopping.set)
        self._prepare()
        try:
            async with asyncio.TaskGroup() as group:
                watchers = [group.create_task(self._watch(child)) for child in (*self._hubs, *self._agents)]
                announcing = group.create_task(self._announce())
                await self._stopping.wait()
                announcing.cancel()
                await self._stop(self._agents, AGENT_STOP_S)
                await self._stop(self._hubs, HUB_STOP_S)
                await self._stop_left_over()
                for watcher in watchers:
                    watcher.cancel()
        except* HarchError as errors:
            await self._stop([*self._agents, *self._hubs], AGENT_STOP_S)
            await self._stop_left_over()
            raise errors.exceptions[0] from None
        if not self._as_json:
            click.echo("\nstopped; the state is kept, `harch up` goes on from it")

    def _prepare(self) -> None:
        """What must hold before anything starts: every port free, every key and identity written."""
        for index in range(len(self._fleet.hubs)):
            bind(HOST, self._ports.api(index)).close()
            bind(HOST, self._ports.peer(index)).close()
        peers = {hub.id: (HOST, self._ports.peer(index)) for index, hub in enumerate(self._fleet.hubs)}
        make_federation(self._home, peers, now=self._clock.now())
        try:
            ensure_key_file(self._home.admin_key)
            for hub in self._fleet.hubs:
                ensure_key_file(self._home.hub(hub.id) / "agent.key")
        except OSError as error:
            raise HarchError(
                "E1005",
                f"cannot write {self._home.root}: {error.strerror}",
                hint="set HARCH_HOME to a folder you may write",
            ) from error

    def _hub(self, hub: Hub, fleet_argument: str) -> Child:
        folder = self._home.hub(hub.id)
        arguments = ["hub", "serve", hub.id, "--fleet", fleet_argument, "--log-file", str(folder / "hub.log")]
        return Child(f"hub {hub.name}", arguments, folder / "hub.err")

    def _agent(self, index: int, hub: Hub, share: tuple[str, ...]) -> Child:
        folder = self._home.hub(hub.id)
        first, last = self._ports.gang_range(index)
        arguments = ["agent", "serve", "--hub-url", f"http://{HOST}:{self._ports.api(index)}"]
        arguments += ["--key-file", str(folder / "agent.key"), "--id", f"{hub.id}-agent", "--country", hub.country]
        arguments += ["--state-dir", str(folder / "agent"), "--gang-ports", f"{first}-{last}"]
        arguments += ["--stop-tasks-on-exit", "--log-file", str(folder / "agent.log"), "--hide", str(self._home.root)]
        arguments += safeguard_options(hub.safeguards)
        arguments += ["--telemetry-url", f"http://{HOST}:{self._ports.telemetry(index)}/api/v1/write"]
        for path in share:
            arguments += ["--share", path]
        return Child(f"agent of {hub.name}", arguments, folder / "agent.err")

    async def _watch(self, child: Child) -> None:
        """Keeps one process running. One that keeps dying is a fault that restarting does not mend."""
        while not self._stopping.is_set():
            child.starts_s.append(self._clock.monotonic_s())
            with child.errors.open("wb") as errors:
                child.process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "harch",
                    *child.arguments,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=errors,
                    start_new_session=True,  # Ctrl-C is for us; we stop the children in the right order
                    env={**os.environ, "HARCH_PARENT_PID": str(os.getpid())},
                )
            code = await child.process.wait()
            if self._stopping.is_set():
                return
            starts = child.starts_s
            if len(starts) == RESTARTS_MAX and starts[-1] - starts[0] < RESTARTS_WITHIN_S:
                said = child.errors.read_text(errors="replace").strip()[-2000:]
                raise HarchError(
                    "E1001", f"{child.name} ended {RESTARTS_MAX} times in a minute\n{said}", hint="see its log"
                )
            click.echo(f"{child.name} ended with code {code}; starting it again", err=True)
            await self._clock.sleep(min(0.1 * 2 ** len(starts), 2.0))

    async def _announce(self) -> None:
        """Waits until every hub answers and has its agent, then says what to do next."""
        urls = {hub.id: f"http://{HOST}:{self._ports.api(index)}" for index, hub in enumerate(self._fleet.hubs)}
        deadline_s = self._clock.monotonic_s() + READY_WITHIN_S
        async with httpx.AsyncClient(timeout=2.0, trust_env=False) as client:
            for hub in self._fleet.hubs:
                while not await _is_ready(client, urls[hub.id]):
                    if self._clock.monotonic_s() > deadline_s:
                        raise HarchError(
                            "E0801", f"hub {hub.name} is not ready", hint=f"see {self._home.hub(hub.id)}/hub.log"
                        )
                    await self._clock.sleep(0.1)
                if not self._as_json:
                    label = hub.provenance.value
                    click.echo(f"{hub.name:<12} {hub.country}  {hub.gpu_count:>5} GPUs ({label})  {urls[hub.id]}")
        if self._as_json:
            ready = {"ready": True, "hubs": urls, "key_file": str(self._home.admin_key)}
            click.echo(json.dumps(ready))
            return
        first = next(iter(urls.values()))
        click.echo(f"\nAPI  {first}/v1   (docs: {first}/docs)\nkey  {self._home.admin_key}\n")
        program = sys.argv[0].removeprefix(f"{os.getcwd()}/")
        click.echo("Try in another terminal:")
        for words in ("hubs", "run --gpus 1 -- echo 'hello from a GPU job'", "why NAME"):
            click.echo(f"  {program} {words}")
        click.echo("\nCtrl-C stops everything.")

    async def _stop_left_over(self) -> None:
        """SENTINEL outlives a hub that died or had to be killed; what is stopped here leaves nothing running."""
        await asyncio.gather(*(stop_left_over(self._home.hub(hub.id)) for hub in self._fleet.hubs))

    async def _stop(self, children: list[Child], within_s: float) -> None:
        self._stopping.set()
        running = [child.process for child in children if child.process and child.process.returncode is None]
        for process in running:
            process.terminate()
        if running:
            waits = [asyncio.ensure_future(process.wait()) for process in running]
            _, late = await asyncio.wait(waits, timeout=within_s)
            if late:
                for process in running:
                    if process.returncode is None:
                        process.kill()
                await asyncio.wait(late)


def safeguard_options(declared: HubSafeguards) -> list[str]:
    """Here one file describes hub and nodes; elsewhere an agent is told by its own operator."""
    options = ["--encrypts-at-rest"] if declared.encrypts_at_rest else []
    for country in declared.keys_in:
        options += ["--keys-in", country]
    for framework in declared.frameworks:
        options += ["--framework", framework]
    return options


async def _is_ready(client: httpx.AsyncClient, url: str) -> bool:
    try:
        response = await client.get(f"{url}/v1/summary")
        summary = response.json()
        # A hub that an operator has cordoned, drained or retired is as ready as it will be.
        return response.status_code == 200 and summary["agents"] > 0 and summary["status"] != "error"
    except (httpx.HTTPError, ValueError, KeyError):
        return False
