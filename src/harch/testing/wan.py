"""What does a federation do on a real network?

An emulated WAN of network namespaces for real processes: distances, ports that lead into a namespace, and what was
carried.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from harch.fleet.model import Fleet
from harch.testing.wan_emulator import READY, hub_address
from harch.testing.wan_network import LinkCounters, NamespaceThread, kill_processes_inside, why_not_permitted

READ_BYTES_MAX = 1 << 16


class Relay:
    """Carries TCP connections from local ports to servers that only `make_socket` can reach. One thread for all."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wan-relay", daemon=True)
        self._servers: list[asyncio.Server] = []
        self._thread.start()

    def open(self, make_socket: Callable[[], socket.socket], host: str, port: int) -> int:
        """The local port that leads to `host:port`. A connection that fails there is closed here."""

        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.closing(writer), contextlib.suppress(OSError):
                inner = make_socket()
                inner.setblocking(False)
                with contextlib.closing(inner):
                    await self._loop.sock_connect(inner, (host, port))
                    inner_reader, inner_writer = await asyncio.open_connection(sock=inner)
                    with contextlib.closing(inner_writer):
                        await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))

        async def listen() -> int:
            server = await asyncio.start_server(carry, "127.0.0.1", 0)
            self._servers.append(server)
            return int(server.sockets[0].getsockname()[1])

        return asyncio.run_coroutine_threadsafe(listen(), self._loop).result()

    def close(self) -> None:
        """Ends every connection."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One direction; the end of one stream is passed on while the other may still speak."""
    while data := await reader.read(READ_BYTES_MAX):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()


# How far apart are the hubs of an emulated WAN?


Pair = tuple[str, str]


def rtt_ms_of_fleet(fleet: Fleet) -> dict[Pair, float]:
    """The round trip between any two hubs: their link's, else the sum over the quickest way through others."""
    names = [hub.id for hub in fleet.hubs]
    linked = {pair: link.rtt_ms for link in fleet.links for pair in (link.ends, link.ends[::-1])}
    quickest = {pair: linked.get(pair, math.inf) for pair in itertools.permutations(names, 2)}
    for via, a, b in itertools.product(names, repeat=3):
        if len({via, a, b}) == 3:
            quickest[a, b] = min(quickest[a, b], quickest[a, via] + quickest[via, b])
    quickest.update(linked)  # traffic takes the link where there is one, even if a detour were quicker
    return both_ways_once(names, quickest)


def spread_rtt_ms(
    names: Sequence[str], *, rtt_ms_min: float = 8.0, rtt_ms_max: float = 45.0, seed: int = 1
) -> dict[Pair, float]:
    """Round trips drawn evenly between two bounds, both of which occur: a federation of any size at these distances."""
    pairs = list(itertools.combinations(names, 2))
    draw = random.Random(seed)  # noqa: S311 - an experiment, not a secret
    drawn = [rtt_ms_min, rtt_ms_max] + [draw.uniform(rtt_ms_min, rtt_ms_max) for _ in pairs[2:]]
    draw.shuffle(drawn)
    return {pair: round(rtt_ms, 1) for pair, rtt_ms in zip(pairs, drawn, strict=False)}


def both_ways_once(names: Sequence[str], rtt_ms: Mapping[Pair, float] | float) -> dict[Pair, float]:
    """Every pair once, in the order of the names. Raises ValueError for a pair without a finite round trip."""
    pairs = list(itertools.combinations(names, 2))
    if not isinstance(rtt_ms, Mapping):
        return dict.fromkeys(pairs, float(rtt_ms))
    if unknown := {name for pair in rtt_ms for name in pair} - set(names):
        raise ValueError(f"no such hub: {', '.join(sorted(unknown))}")
    found = {(a, b): float(rtt_ms.get((a, b), rtt_ms.get((b, a), math.inf))) for a, b in pairs}
    if apart := [f"{a} - {b}" for (a, b), value in found.items() if not 0 <= value < math.inf]:
        raise ValueError(f"no round trip is known for {', '.join(apart)}")
    return found


# What has the emulated WAN carried, and how well did it keep time?


@dataclass(frozen=True, slots=True)
class WanStatistics:
    """Counted since the start. Take two and subtract for what happened in between."""

    links: dict[tuple[str, str], LinkCounters]  # (from, to)
    late_ms_sum: float  # by how much packets were delivered after they were due
    late_ms_max: float
    cpu_s: float  # of the emulator

    @property
    def packets_delivered(self) -> int:
        return sum(counters.packets_delivered for counters in self.links.values())

    @property
    def late_ms_mean(self) -> float:
        return self.late_ms_sum / max(1, self.packets_delivered)

    def bytes_sent(self, name: str) -> int:
        """Whole IP packets that this hub has sent to others, those that were dropped on the way included."""
        return sum(counters.bytes_sent for (sender, _), counters in self.links.items() if sender == name)

    def bytes_received(self, name: str) -> int:
        return sum(counters.bytes_delivered for (_, receiver), counters in self.links.items() if receiver == name)


# What does a federation do on a real network? An emulated WAN of network namespaces, for real processes.
#
#     with Wan(["dakhla", "dakar"], rtt_ms=14, jitter_ms=1, loss=0.01) as wan:
#         server = wan.popen("dakhla", ["harch", "hub", "serve", ...])
#         client = httpx.Client(base_url=f"http://127.0.0.1:{wan.expose('dakhla', 7701)}")
#         wan.cut("dakhla", "dakar")
#
# Every hub has a namespace of its own with the address `wan.address(name)` on `wan0` and its own loopback; nothing else
# can be reached from inside. The links between them are emulated by a child process (`wan_emulator`), because the
# kernel's own emulation (netem) is missing on many machines. When the `with` ends, or this process dies in whatever
# way,
# everything that runs inside is killed and the namespaces are gone. Needs root: ask `why_not_permitted()` first.


__all__ = ["HUBS_MAX", "Wan", "WanError", "WanStatistics", "why_not_permitted"]

HUBS_MAX = 64
END_WITHIN_S = 10.0
ANSWER_WITHIN_S = 30.0
P = ParamSpec("P")
T = TypeVar("T")
_Link = tuple[int, int]  # from, to


class WanError(RuntimeError):
    """The WAN cannot be emulated, or its emulator has ended."""


class Wan:
    """Hubs by name. `rtt_ms` is one figure or one per pair; half of it is the delay of each way, ± `jitter_ms`.

    `loss` is the chance of a packet per way. All methods may be called from any thread, and return when they hold.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        rtt_ms: Mapping[Pair, float] | float,
        jitter_ms: float = 0.0,
        loss: float = 0.0,
        seed: int = 1,
    ) -> None:
        if len(set(names)) != len(names) or not 1 <= len(names) <= HUBS_MAX:
            raise ValueError(f"give 1 to {HUBS_MAX} different names, not {list(names)}")
        self.names = tuple(names)
        self.rtt_ms = both_ways_once(self.names, rtt_ms)
        self._jitter_ms, self._loss, self._seed = jitter_ms, loss, seed
        self._numbers = {name: number for number, name in enumerate(names)}
        self._exposed: dict[tuple[str, int, str], int] = {}
        self._processes: list[subprocess.Popen[Any]] = []
        self._lock = threading.Lock()
        self._closing = contextlib.ExitStack()

    @classmethod
    def of_fleet(cls, fleet: Fleet, *, jitter_ms: float = 0.0, loss: float = 0.0, seed: int = 1) -> Self:
        """The hubs of a fleet at the distances of its links."""
        names = [hub.id for hub in fleet.hubs]
        return cls(names, rtt_ms=rtt_ms_of_fleet(fleet), jitter_ms=jitter_ms, loss=loss, seed=seed)

    def __enter__(self) -> Self:
        if reason := why_not_permitted():
            raise WanError(reason)
        try:
            self._start()
        except BaseException:
            self._closing.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def address(self, name: str) -> str:
        return hub_address(self._number(name))

    @property
    def emulator_pid(self) -> int:
        """The process that carries the packets, for those who want to watch it."""
        return self._emulator.pid

    def inside(self, name: str, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Calls a short function in the hub's namespace; sockets that it creates stay there."""
        return self._threads[self._number(name)].run(function, *arguments, **named)

    def popen(self, name: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Starts a process inside; it is a direct child, so it can be waited for and killed as any other."""
        process = self.inside(name, lambda: subprocess.Popen(argv, **options))
        with self._lock:
            self._processes = [known for known in self._processes if known.returncode is None] + [process]
        return process

    def run(
        self, name: str, argv: Sequence[str], *, timeout_s: float = 60.0, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command inside to its end and captures its output."""
        with self.popen(name, argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                output, errors = process.communicate(timeout=timeout_s)
            except BaseException:
                process.kill()
                raise
        if check and process.returncode:
            raise subprocess.CalledProcessError(process.returncode, argv, output, errors)
        return subprocess.CompletedProcess(argv, process.returncode, output, errors)

    def connect(self, name: str, port: int, *, host: str = "127.0.0.1", timeout_s: float = 10.0) -> socket.socket:
        """A TCP connection opened inside the hub's namespace, by default to a server on its own loopback."""
        connection = self.inside(name, socket.socket)
        try:
            connection.settimeout(timeout_s)
            connection.connect((host, port))
        except BaseException:
            connection.close()
            raise
        return connection

    def expose(self, name: str, port: int, *, host: str = "127.0.0.1") -> int:
        """The port on the loopback outside that leads to a server inside; it may be asked for before that listens."""
        key = (name, port, host)
        with self._lock:
            if key not in self._exposed:
                self._exposed[key] = self._relay.open(lambda: self.inside(name, socket.socket), host, port)
            return self._exposed[key]

    def set_link(
        self,
        a: str,
        b: str,
        *,
        delay_ms: float | None = None,
        jitter_ms: float | None = None,
        loss: float | None = None,
        rate_mbps: float | None = None,
        one_way: bool = False,
    ) -> None:
        """Changes what is given, for packets sent from now on. `delay_ms` is per way; a rate of infinity is none."""
        given = {"delay_ms": delay_ms, "jitter_ms": jitter_ms, "loss": loss, "rate_mbps": rate_mbps}
        settings = {key: value for key, value in given.items() if value is not None}
        if (
            not all(value >= 0 for value in settings.values())
            or not 0 <= settings.get("loss", 0) <= 1
            or rate_mbps == 0
        ):
            raise ValueError(f"not a link: {settings}")
        self._command("shape", self._links_between([a], [b], one_way), **settings)

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Nothing passes any more, what is on its way included; `one_way` lets packets from b to a pass."""
        self._command("cut", self._links_between([a], [b], one_way))

    def heal(self, a: str, b: str, *, one_way: bool = False) -> None:
        self._command("heal", self._links_between([a], [b], one_way))

    def partition(self, *groups: Iterable[str]) -> None:
        """Cuts every link between hubs of different groups, at one moment."""
        members = [tuple(group) for group in groups]
        between = (self._links_between(one, other) for one, other in itertools.combinations(members, 2))
        self._command("cut", [link for links in between for link in links])

    def heal_all(self) -> None:
        self._command("heal", self._links_between(self.names, self.names))

    def statistics(self) -> WanStatistics:
        """What every link has carried, and how well the emulator kept time."""
        answer = self._command("statistics", [])
        links = {(self.names[a], self.names[b]): LinkCounters(*counts) for a, b, *counts in answer.pop("links")}
        return WanStatistics(links=links, **answer)

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            raise ValueError(f"no hub `{name}` in this WAN; there are {', '.join(self.names)}")
        return self._numbers[name]

    def _links_between(self, ones: Iterable[str], others: Iterable[str], one_way: bool = False) -> list[_Link]:
        pairs = itertools.product(map(self._number, ones), map(self._number, others))
        there = [(a, b) for a, b in pairs if a != b]
        return there if one_way else there + [(b, a) for a, b in there]

    def _start(self) -> None:
        """What is entered last ends first: processes, then the relay and the threads, then the emulator."""
        self._control, theirs = socket.socketpair()
        self._closing.callback(self._control.close)
        self._control.settimeout(ANSWER_WITHIN_S)
        words = [sys.executable, "-m", "harch.testing.wan_emulator", str(theirs.fileno()), str(len(self.names))]
        with theirs:
            self._emulator = subprocess.Popen(
                [*words, str(self._seed)], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )
        self._closing.callback(self._end_emulator)
        # Not inherited: a process that keeps a namespace would keep it from going away.
        ready, namespaces, _, _ = socket.recv_fds(self._control, len(READY), len(self.names), socket.MSG_CMSG_CLOEXEC)
        for namespace in namespaces:
            self._closing.callback(os.close, namespace)
        if ready != READY or len(namespaces) != len(self.names):
            raise WanError("the emulator of the WAN did not start; its error was written above")
        self._answers = self._closing.enter_context(self._control.makefile("rb"))
        self._threads = [NamespaceThread(*pair) for pair in zip(self.names, namespaces, strict=True)]
        for thread in self._threads:
            self._closing.callback(thread.close)
        self._relay = Relay()
        self._closing.callback(self._relay.close)
        self._closing.callback(self._end_processes, namespaces)
        for (a, b), rtt_ms in self.rtt_ms.items():
            self.set_link(a, b, delay_ms=rtt_ms / 2, jitter_ms=self._jitter_ms, loss=self._loss)

    def _command(self, verb: str, links: list[_Link], **settings: float) -> dict[str, Any]:
        message = json.dumps({"do": verb, "links": links, **settings}).encode() + b"\n"
        with self._lock:
            try:
                self._control.sendall(message)
                answer = self._answers.readline()
            except OSError as error:
                raise WanError(f"the emulator of the WAN does not answer: {error}") from error
        if not answer:
            raise WanError("the emulator of the WAN has ended")
        return dict(json.loads(answer))

    def _end_processes(self, namespaces: Sequence[int]) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        kill_processes_inside(namespaces)  # also what those processes have started
        for process in self._processes:
            process.wait()

    def _end_emulator(self) -> None:
        with contextlib.suppress(OSError):  # it may have ended already
            self._control.shutdown(socket.SHUT_RDWR)
        try:
            self._emulator.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._emulator.kill()
            self._emulator.wait()
