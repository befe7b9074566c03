"""What does tracing cost a hub and SENSE? CPU time with and without it, in turns of a fraction of a second.

Hubs with the same fleet stand side by side in one process: one without tracing, one as shipped (ten new traces in a
second, a burst of a hundred spent before anything is timed) and, for information, one that traces every workload. They
take turns with the same work, in an order that changes, so that other work on the machine meets all alike; a turn is
compared with the turn of the hub without tracing beside it, and the median of those ratios is told. Counted is the CPU
time of the whole process, with the thread that encodes spans and sends them to a server. The shipped limit of traces is
per second of the hub's own CPU time here, as if it had a core to itself.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path

import msgspec
import uvloop

from harch.api.app import create_app
from harch.base.clock import SystemClock
from harch.base.tracing.exporter import EVERY_S, Exporter, HttpPost
from harch.base.tracing.logs import show_traces
from harch.base.tracing.sampling import BATCH_SHARE, TRACES_PER_S, Budget
from harch.base.tracing.span import Resource
from harch.base.tracing.tracer import Tracing
from harch.execution.protocol import (
    AgentMessage,
    Heartbeat,
    StartTask,
    TaskEnded,
    TaskKey,
    TaskStarted,
    decode_hub_frame,
    encode_frame,
)
from harch.fleet.file import parse_fleet
from harch.fleet.generate import generate_blueprint
from harch.fleet.writer import to_toml
from harch.hub import happenings as h
from harch.hub.desk import Closed
from harch.hub.service import HubService
from harch.hub.views import Role
from harch.testing.agents import SimAgent
from harch.workloads.lifecycle import ExitReason
from telemetry_overhead_sense import sense_ratios
from verdict import Verdict, conditions

GPUS, JOBS, KEY = 2_000, 100, "hsk_" + "b" * 40
AT_ONCE = 50
WARM, ALL_EVERY = 4, 4  # rounds that are not counted; every how many the hub that traces everything takes part
OFF, SHIPPED, ALL = "off", "as shipped", "every workload"
LIMIT_PCT = 2.0


class CpuClock(SystemClock):
    """Seconds of CPU time that one hub has had while it was timed, for the limit of new traces.

    It stands still during a turn: to read the CPU time for each request would cost more than what is measured.
    """

    passed_s = 0.0

    def monotonic_s(self) -> float:
        return self.passed_s


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
        self._cpu = tracing.clock if tracing is not None and isinstance(tracing.clock, CpuClock) else CpuClock()
        self.service = HubService(
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
        self.driver = self.service._driver
        hub = fleet.hubs[0]
        self.agent = QuietAgent(SimAgent("bench", hub.country, tuple(node.id for node in hub.nodes), 10_000))
        self._tasks = [asyncio.create_task(self.service.attach_agent(self.agent)), asyncio.create_task(self.beat())]
        self._number = 0

    async def open(self) -> None:
        await self.service.credentials.adopt_key(KEY, name="bench", tenant="t", role=Role.ADMIN)
        while not self.driver.machine.desk.agents.agents:
            await asyncio.sleep(0.01)

    async def beat(self) -> None:
        """Until cancelled: an agent that is silent for ten seconds gets no work."""
        while True:
            self.agent.say([Heartbeat(0.0)])
            await asyncio.sleep(3)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.service.close()

    async def submitted(self) -> float:
        """CPU seconds of one POST; nothing is placed meanwhile."""
        await self.driver.handle(h.HubClosed(Closed.CORDONED, "the bench"))
        bodies = [self._body() for _ in range(JOBS)]
        with _Counted(self._cpu) as counted:
            for first in range(0, JOBS, AT_ONCE):
                await asyncio.gather(*(self._post(body) for body in bodies[first : first + AT_ONCE]))
        return counted.took_s / JOBS

    async def placed(self) -> float:
        """CPU seconds of one job from its turn to its end: decided, stored, sent, started, ended, stored again."""
        self.agent.received.clear()
        opened = self.driver.handle(h.HubClosed(Closed.OPEN, "the bench"))
        await opened
        with _Counted(self._cpu) as counted:
            self.driver.plan_placement()
            await self._until(lambda: not len(self.driver.machine.desk.scheduler.queue))
            await self.driver.handle(h.Noted("bench", "bench", "a barrier"))
        at = self._clock.now()
        keys: list[TaskKey] = []
        async with asyncio.timeout(60):
            while len(keys) < JOBS:
                await asyncio.sleep(0.01)
                keys += self.agent.started()
        starts: list[AgentMessage] = [TaskStarted(key=key, at=at) for key in keys]
        ends: list[AgentMessage] = [TaskEnded(key=key, reason=ExitReason.EXITED, at=at, exit_code=0) for key in keys]
        frames = [encode_frame(starts), encode_frame(ends)]
        with _Counted(self._cpu) as rest:
            for frame in frames:
                self.agent.push(frame)
            await self._until(lambda: not self.driver.machine.desk.scheduler.running)
            await self.driver.handle(h.Noted("bench", "bench", "a barrier"))
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
    """CPU time of the whole process, without the collector's pauses, which fall on whoever is there."""

    took_s = 0.0

    def __init__(self, clock: CpuClock) -> None:
        self._clock = clock

    def __enter__(self) -> _Counted:
        gc.collect()
        gc.disable()
        self._began_s = time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.took_s = time.process_time() - self._began_s
        self._clock.passed_s += self.took_s
        gc.enable()


def swallow(listener: socket.socket) -> None:
    """A server that takes every request and forgets it."""

    def serve(line: socket.socket) -> None:
        data = b""
        while piece := line.recv(1 << 20):
            data += piece
            head, found, body = data.partition(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
            if found and len(body) >= size:
                line.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                data = body[size:]

    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


async def hub_ratios(rounds: int, folder: Path) -> dict[str, dict[str, list[float]]]:
    """For each measure and kind of tracing: CPU time against the hub without, one figure per round."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = get_context("fork").Process(target=swallow, args=(listener,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    exporters: list[Exporter] = []

    def tracing(budget: Budget, every_s: float = EVERY_S) -> Tracing:
        post = HttpPost(url, lambda: "token")
        exporter = Exporter(Resource("harchos-hub", {"hub": "bench"}), post, every_s=every_s)
        exporter.start()
        exporters.append(exporter)
        return Tracing(exporter.give, CpuClock(), budget)

    hubs = {
        OFF: BenchHub(folder / "off", None),
        SHIPPED: BenchHub(folder / "shipped", tracing(Budget())),
        ALL: BenchHub(folder / "all", tracing(Budget(per_s=1e9, burst=1e9), 0.02)),
    }
    found: dict[str, dict[str, list[float]]] = {"submit": {}, "placement": {}}
    try:
        for hub in hubs.values():
            await hub.open()
        for number in range(WARM + rounds):
            if number == WARM:  # the first turns compile and spend the burst
                gc.collect()
                gc.freeze()
            names = [OFF, SHIPPED] if number % 2 else [SHIPPED, OFF]
            if number % ALL_EVERY == 0:
                names.append(ALL)
            took = {name: (await hubs[name].submitted(), await hubs[name].placed()) for name in names}
            while exporters[-1].waiting:
                await asyncio.sleep(0.02)  # what the hub that traces everything has told is not counted for others
            for place, seconds in enumerate(found.values()):
                for name in names if number >= WARM else ():
                    seconds.setdefault(name, []).append(took[name][place] / took[OFF][place])
                    seconds.setdefault(f"{name} s", []).append(took[name][place])
    finally:
        for hub in hubs.values():
            await hub.close()
        for exporter in exporters:
            exporter.close()
        server.terminate()
        server.join()
    for exporter, name in zip(exporters, (SHIPPED, ALL), strict=True):
        print(f"  spans {name}: {exporter.counts['sent']:,} sent, {exporter.counts['dropped']:,} dropped")
    return found


def overhead_pct(ratios: Sequence[float]) -> float:
    return 100 * (statistics.median(ratios) - 1)


def told(name: str, ratios: Sequence[float]) -> str:
    low, high = statistics.quantiles(ratios, n=4)[0], statistics.quantiles(ratios, n=4)[2]
    return f"  {name:16} {overhead_pct(ratios):+6.2f} % (quarters {100 * (low - 1):+.2f} to {100 * (high - 1):+.2f})"


def measure(verdict: Verdict, *, rounds: int, folder: Path | None = None) -> None:
    """Prints the figures and adds the goals: at most 2 % each, as shipped."""
    _log_to_a_file()
    with tempfile.TemporaryDirectory(dir=folder, prefix="harch-bench-") as name:
        found = uvloop.run(hub_ratios(rounds, Path(name)))
    traced_s = 0.0
    for name, by_kind in found.items():
        without_s, all_s = statistics.median(by_kind[f"{OFF} s"]), statistics.median(by_kind[f"{ALL} s"])
        traced_s += max(0.0, all_s - without_s)
        print(f"{name}: {1 / without_s:,.0f} jobs per CPU second without tracing; with it")
        for kind in (SHIPPED, ALL):
            print(told(kind, by_kind[kind]))
        verdict.goal(f"tracing as shipped: {name}", f"<= {LIMIT_PCT:g}", overhead_pct(by_kind[SHIPPED]), "% of CPU")
    share = 100 * TRACES_PER_S * traced_s
    print(
        f"one traced workload: {1e6 * traced_s:,.0f} us of CPU; {TRACES_PER_S:g} in a second: {share:.2f} % of a core"
    )
    ratios, done = uvloop.run(sense_ratios(2 * rounds, BATCH_SHARE))
    print(f"SENSE: {done}")
    print(told(f"share {BATCH_SHARE:g}", ratios))
    verdict.goal("tracing as shipped: SENSE", f"<= {LIMIT_PCT:g}", overhead_pct(ratios), "% of CPU")


def _log_to_a_file() -> None:
    """As a hub does, so that lines about traced work count."""
    handler = logging.StreamHandler(open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    show_traces(handler)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=100)
    options.add_argument("--folder", type=Path, default=None, help="where the hubs keep their state")
    chosen = options.parse_args()
    print(f"conditions: {conditions()}; load average {os.getloadavg()[0]:.1f}; {chosen.rounds} rounds of {JOBS} jobs")
    verdict = Verdict("telemetry-overhead")
    measure(verdict, rounds=chosen.rounds, folder=chosen.folder)
    verdict.print()


if __name__ == "__main__":
    main()
