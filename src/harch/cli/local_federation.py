"""How does a federation run on one machine?

One process per hub and per agent, watched, restarted, stopped in order; whether a hub is stuck is judged by what it
does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

import click
import httpx

from harch.api.sentinel_process import is_kept
from harch.base.clock import Clock, SystemClock
from harch.base.config import Home, Ports
from harch.base.errors import HarchError
from harch.base.fork_server import ForkClient, ForkServerGone, socket_pair
from harch.base.http.server import bind
from harch.base.process_title import ROOM
from harch.cli.contexts import remember_local
from harch.cli.process_tree import AdoptedProcess, Descendants, cpu_s
from harch.cli.views.progress import ProgressLine, is_visible
from harch.execution.isolation.sandbox import agent_mode, choose
from harch.execution.kernel import start_ticks
from harch.execution.process_record import ProcessRecord, write_record
from harch.federation.identity.authority import make_federation
from harch.fleet.model import Fleet, Hub, HubSafeguards
from harch.hub.keys import ensure_key_file
from harch.sovereignty.audit.verification import WAY_OUT

QUIET_S_MAX = 60.0  # without a step and without use of the processor
CPU_S_OF_PROGRESS = 1.0  # a process that loads uses more, one that waits for something less
CPU_S_MAX = 300.0  # for one step: a start takes some seconds of a processor, however many share it
ENDS_MAX = 3

PAUSE_S_FIRST, PAUSE_S_MAX = 0.5, 60.0
STEADY_S = 120.0  # after so long, an end is a new trouble and not the old one


class StartStep(IntEnum):
    STARTED = 0
    ANSWERS = 1
    READY = 2


@dataclass
class StartWatch:
    """One hub and its agent, on the way to be ready."""

    began_s: float
    step: StartStep = StartStep.STARTED
    _progress_s: float = 0.0
    _progress_cpu_s: float = 0.0
    _step_cpu_s: float = 0.0

    def __post_init__(self) -> None:
        self._progress_s = self.began_s

    def stuck(self, now_s: float, step: StartStep, *, cpu_s: float, ends: int) -> str:
        """Why it is not waited for any longer; empty while it is on its way. `cpu_s` is what its processes have used,
        `ends` how often one of them has ended."""
        if step > self.step:
            self.step = step
            self._step_cpu_s = cpu_s
            self._made_progress(now_s, cpu_s)
        elif cpu_s < self._progress_cpu_s:  # a new process
            self._step_cpu_s = self._progress_cpu_s = cpu_s
        elif cpu_s - self._progress_cpu_s >= CPU_S_OF_PROGRESS:
            self._made_progress(now_s, cpu_s)
        what = "has no agent yet" if self.step is StartStep.ANSWERS else "does not answer yet"
        if ends >= ENDS_MAX:
            return f"has ended {ends} times"
        if now_s - self._progress_s > QUIET_S_MAX:
            return f"{what} and has done nothing for {QUIET_S_MAX:g} s"
        if cpu_s - self._step_cpu_s > CPU_S_MAX:
            return f"{what} after {CPU_S_MAX:g} s of CPU time"
        return ""

    def _made_progress(self, now_s: float, cpu_s: float) -> None:
        self._progress_s, self._progress_cpu_s = now_s, cpu_s


@dataclass
class Backoff:
    """How long to wait before a process that has ended is started again: longer each time, until it runs steadily."""

    ends: int = 0
    pause_s: float = 0.0

    def ended(self, lived_s: float) -> float:
        if lived_s >= STEADY_S:
            self.ends, self.pause_s = 0, 0.0
        self.ends += 1
        self.pause_s = min(2 * self.pause_s, PAUSE_S_MAX) if self.pause_s else PAUSE_S_FIRST
        return self.pause_s


def starts_at_once(cores: int) -> int:
    """How many hubs start side by side: a start is bound by the processor, so more would only slow each other down."""
    return max(2, cores)


# How does a federation run on one machine? One process per hub and per agent, watched, restarted, stopped in order.


AGENT_STOP_S, HUB_STOP_S, STOP_S_PER_HUB = 20.0, 30.0, 2.0  # many that stop together share the processors
LEFTOVERS_STOP_S = 5.0
LOOK_S, LOOK_AGAIN_S, SENTINEL_LOOK_S = 0.1, 2.0, 0.5
ERROR_CHARS_MAX = 2000
HOST = "127.0.0.1"
HUB_RECORD = "hub.pid"  # in the folder of the hub


@dataclass
class Child:
    """A process of ours that must run. `errors` holds what it wrote to stderr since its last start.

    `record`: where its pid is written down, if anybody needs it. `starts_sentinel`: a hub does.
    """

    name: str
    arguments: list[str]
    errors: Path
    record: Path | None = None
    starts_sentinel: bool = False
    process: asyncio.subprocess.Process | AdoptedProcess | None = None
    backoff: Backoff = field(default_factory=Backoff)

    @property
    def cpu_s(self) -> float:
        return cpu_s(self.process.pid) if self.process is not None else 0.0

    @property
    def last_words(self) -> str:
        try:
            return self.errors.read_text(errors="replace").strip()[-ERROR_CHARS_MAX:]
        except OSError:
            return ""


@dataclass
class HubSite:
    """A hub with its agent."""

    hub: Hub
    url: str
    serving: Child
    agent: Child

    @property
    def children(self) -> tuple[Child, Child]:
        return self.serving, self.agent


class LocalFederation:
    """Starts, watches and stops. It holds no state: whatever is killed is started again and finds its own on disk."""

    def __init__(
        self, *, fleet: Fleet, fleet_argument: str, home: Home, ports: Ports, share: tuple[str, ...], as_json: bool
    ) -> None:
        self._fleet, self._home, self._ports, self._as_json = fleet, home, ports, as_json
        self._clock: Clock = SystemClock()
        self._stopping = asyncio.Event()
        self._sites = [
            HubSite(
                hub,
                f"http://{HOST}:{ports.api(index)}",
                self._hub(hub, fleet_argument),
                self._agent(index, hub, share),
            )
            for index, hub in enumerate(fleet.hubs)
        ]
        self._ready: set[str] = set()
        self._watching: list[asyncio.Task[None]] = []
        self._reporting: asyncio.Task[None] | None = None
        self._starting = asyncio.Semaphore(starts_at_once(os.cpu_count() or 1))
        self._preloaded: ForkClient | None = None
        self._line = ProgressLine("", enabled=False)

    async def run(self) -> None:
        """Until SIGINT or SIGTERM. Whatever ends it, nothing that it has started is left."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stopping.set)
        self._prepare()
        descendants = Descendants()
        self._show_progress("starting hubs", 0)
        self._preloaded = self._preload()
        try:
            async with asyncio.TaskGroup() as group:
                helpers = [
                    group.create_task(self._start_all(group)),
                    group.create_task(self._keep_reaping(descendants)),
                ]
                await self._stopping.wait()
                for task in (*helpers, *self._watching, self._reporting):
                    if task is not None:
                        task.cancel()
        finally:
            self._show_progress("stopping")
            try:
                await self._stop_all(descendants)
            finally:
                self._line.finish()
        if not self._as_json:
            self._line.echo("\nstopped; the state is kept, `harch up` resumes from it")

    def _prepare(self) -> None:
        """What must hold before anything starts: a sandbox where it is required, every port free, every key and
        identity written."""
        if agent_mode(os.environ) == "required":
            with tempfile.TemporaryDirectory() as scratch:
                choose("required", Path(scratch)).check()
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

    def _preload(self) -> ForkClient:
        """Starts the process that others are forked from. It ends when we hang up, or are gone."""
        ours, theirs = socket_pair()
        with theirs, (self._home.root / "preload.err").open("wb") as errors:
            self._preloading = subprocess.Popen(
                (sys.executable, "-m", "harch.cli.preload", str(theirs.fileno()), ROOM),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        return ForkClient(ours)

    def _hub(self, hub: Hub, fleet_argument: str) -> Child:
        folder = self._home.hub(hub.id)
        arguments = ["hub", "serve", hub.id, "--fleet", fleet_argument, "--log-file", str(folder / "hub.log")]
        return Child(f"hub {hub.name}", arguments, folder / "hub.err", folder / HUB_RECORD, starts_sentinel=True)

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

    # Start

    async def _start_all(self, group: asyncio.TaskGroup) -> None:
        """A few hubs at a time, each until it is ready or stuck; then says what to do next."""
        total = len(self._sites)
        at_once = starts_at_once(os.cpu_count() or 1)
        if total > at_once and not self._as_json:
            self._line.echo(f"starting {total} hubs, {at_once} at a time")
        async with httpx.AsyncClient(timeout=2.0, trust_env=False) as client:
            await asyncio.gather(*(self._start(site, group, client) for site in self._sites))
            self._report_all()
            if is_kept() and not self._as_json:
                self._reporting = group.create_task(self._report_sentinels())
            while late := [site for site in self._sites if site.hub.id not in self._ready]:
                await self._clock.sleep(LOOK_AGAIN_S)
                for site in late:
                    if await start_step(client, site.url) is StartStep.READY:
                        self._report_ready(site)

    async def _start(self, site: HubSite, group: asyncio.TaskGroup, client: httpx.AsyncClient) -> None:
        async with self._starting:
            self._watching += [group.create_task(self._watch(child)) for child in site.children]
            watch = StartWatch(self._clock.monotonic_s())
            while (step := await start_step(client, site.url)) is not StartStep.READY:
                used_s, ends = sum(child.cpu_s for child in site.children), max(c.backoff.ends for c in site.children)
                if why := watch.stuck(self._clock.monotonic_s(), step, cpu_s=used_s, ends=ends):
                    log = self._home.hub(site.hub.id) / "hub.log"
                    self._line.echo(f"hub {site.hub.name} {why}; see {log}. The others keep running", err=True)
                    return
                await self._clock.sleep(LOOK_S)
            self._report_ready(site)

    async def _watch(self, child: Child) -> None:
        """Keeps one process running. One that keeps ending is started again ever later; the others go on."""
        while True:
            began_s = self._clock.monotonic_s()
            try:
                ended = f"ended with code {await self._run_once(child)}"
            except OSError as error:  # the disk is full, or there may be no more processes: that passes
                ended = f"cannot be started: {error.strerror}"
            pause_s = child.backoff.ended(self._clock.monotonic_s() - began_s)
            often = f" ({child.backoff.ends} times so far)" if child.backoff.ends > 1 else ""
            self._line.echo(f"{child.name} {ended}{often}; restarting it in {pause_s:g} s", err=True)
            if child.backoff.ends == ENDS_MAX:
                self._line.echo(f"{child.last_words}\nfull log: {child.errors.with_suffix('.log')}", err=True)
            await self._clock.sleep(pause_s)

    async def _run_once(self, child: Child) -> int:
        child.process = await self._spawned(child)
        if child.record is not None:
            pid = child.process.pid
            with contextlib.suppress(OSError, HarchError):  # without it the hub runs all the same
                write_record(child.record, ProcessRecord(pid, start_ticks(pid), ""))
        return await child.process.wait()

    async def _spawned(self, child: Child) -> asyncio.subprocess.Process | AdoptedProcess:
        """Forked from what is loaded already; where that cannot be, started anew."""
        environment = {**os.environ, "HARCH_PARENT_PID": str(os.getpid())}
        if self._preloaded is not None:
            try:
                pid = await self._preloaded.fork(
                    child.arguments, environment, child.errors, wants_next=child.starts_sentinel
                )
                return AdoptedProcess(pid)
            except ForkServerGone as gone:
                self._preloaded = None
                self._line.echo(f"new processes share no memory with others any more: {gone}", err=True)
        with child.errors.open("wb") as errors:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "harch",
                *child.arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is for us; we stop the children in the right order
                env=environment,
            )

    async def _keep_reaping(self, descendants: Descendants) -> None:
        while True:
            own = {child.process.pid for site in self._sites for child in site.children if child.process is not None}
            descendants.reap(own)
            await self._clock.sleep(1.0)

    # What is said

    def _report_ready(self, site: HubSite) -> None:
        self._ready.add(site.hub.id)
        self._line.update(len(self._ready), len(self._sites))
        if not self._as_json:
            hub, count = site.hub, f"{len(self._ready)} of {len(self._sites)}"
            what = f"{hub.country}  {hub.gpu_count:>5} GPUs ({hub.provenance.value})"
            self._line.echo(f"{hub.name:<12} {what}  {site.url}  {count}")

    def _show_progress(self, what: str, done: int | None = None) -> None:
        """In place of what was shown. `done` of all hubs, where they are counted."""
        self._line.finish()
        self._line = ProgressLine(what, enabled=is_visible(self._as_json))
        if done is not None:
            self._line.update(done, len(self._sites))

    def _report_all(self) -> None:
        self._line.finish()
        missing = [site.hub for site in self._sites if site.hub.id not in self._ready]
        context = remember_local(self._ports, tuple(site.url for site in self._sites), self._home.admin_key)
        if self._as_json:
            report: dict[str, object] = {"ready": not missing, "hubs": {site.hub.id: site.url for site in self._sites}}
            report |= {"not_ready": [hub.id for hub in missing], "key_file": str(self._home.admin_key)}
            self._line.echo(json.dumps(report))
            return
        if missing:
            names = ", ".join(hub.name for hub in missing)
            self._line.echo(f"\n{len(self._ready)} of {len(self._sites)} hubs are ready; not ready: {names}")
        first = next((site.url for site in self._sites if site.hub.id in self._ready), self._sites[0].url)
        self._line.echo(f"\nAPI      {first}/v1   (docs: {first}/docs)\nkey      {self._home.admin_key}")
        self._line.echo(f"context  {context}\n")
        program = sys.argv[0].removeprefix(f"{os.getcwd()}/")
        self._line.echo("Try in another terminal:")
        for words in ("hubs", "run --gpus 1 -- echo 'hello from a GPU job'", "why NAME"):
            self._line.echo(f"  {program} {words}")
        self._line.echo("\nCtrl-C stops everything.")

    async def _report_sentinels(self) -> None:
        """Hubs are ready earlier: telemetry has its own processes, with kernels to load or even to compile."""
        total, announced = len(self._sites), False
        self._show_progress("starting SENTINEL", 0)
        urls = {f"http://{HOST}:{self._ports.telemetry(index)}/-/ready" for index in range(total)}
        async with httpx.AsyncClient(timeout=2.0, trust_env=False) as client:
            while urls:
                urls -= {url for url in urls if await _answers(client, url)}
                self._line.update(total - len(urls), total)
                if urls and not announced:
                    self._line.echo("SENTINEL is starting; where its kernels were never compiled, that takes a minute")
                    announced = True
                await self._clock.sleep(SENTINEL_LOOK_S if urls else 0.0)
        self._line.finish()
        self._line.echo(f"SENTINEL is ready at {total} of {total} hubs")

    # Stop

    async def _stop_all(self, descendants: Descendants) -> None:
        """Agents first, so that work ends while its hub can note it; then hubs; then whatever is left of them."""
        more_s = STOP_S_PER_HUB * len(self._sites)
        await self._stop([site.agent for site in self._sites], AGENT_STOP_S + more_s)
        await self._stop([site.serving for site in self._sites], HUB_STOP_S + more_s)
        if self._preloaded is not None:
            self._preloaded.close()
        folders = [self._home.hub(site.hub.id) for site in self._sites]
        if left := await descendants.end(folders, self._clock, grace_s=LEFTOVERS_STOP_S):
            pids = ", ".join(map(str, left))
            raise HarchError(
                "E1001", f"processes {pids} do not end", hint="check them; they may be blocked on disk I/O"
            )

    async def _stop(self, children: list[Child], within_s: float) -> None:
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
    """Here one file describes hub and nodes; elsewhere an agent is configured by its own operator."""
    options = ["--encrypts-at-rest"] if declared.encrypts_at_rest else []
    for country in declared.keys_in:
        options += ["--keys-in", country]
    for framework in declared.frameworks:
        options += ["--framework", framework]
    return options


async def _answers(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(url)).status_code == 200
    except httpx.HTTPError:
        return False


async def start_step(client: httpx.AsyncClient, url: str) -> StartStep:
    """How far the hub at this address is, by what it says of itself."""
    try:
        response = await client.get(f"{url}/v1/summary")
        summary = response.json()
        if response.status_code != 200:
            return StartStep.STARTED
        if summary["status"] == "error" and WAY_OUT in summary["status_detail"]:
            click.echo(f"hub {summary['name']}: {summary['status_detail']}", err=True)
            return StartStep.READY  # only a person can help it, and needs it to answer
        # A hub that an operator has cordoned, drained or retired is as ready as it will be.
        return StartStep.READY if summary["agents"] > 0 and summary["status"] != "error" else StartStep.ANSWERS
    except (httpx.HTTPError, ValueError, KeyError):
        return StartStep.STARTED
