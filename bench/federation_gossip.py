"""How fast does news reach all hubs, and a death? HarchOS's gossip over its TLS links on the emulated WAN."""

from __future__ import annotations

import json
import multiprocessing
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from federation_serf import Times, traffic
from harch.base.config import Home
from harch.federation.identity.authority import make_federation
from harch.testing.wan import Wan

PEER_PORT = 7721
GAP_S = (0.2, 1.2)
NODE = Path(__file__).parent / "federation_node.py"


@dataclass(frozen=True, slots=True)
class GossipFigures:
    """Bytes are whole IP packets that a hub sends, the mean of all hubs."""

    hub_count: int
    update_seen_by_all: Times
    kill_seen_by_all: Times
    bytes_per_s_idle: float
    bytes_per_s_updating: float


@dataclass
class Nodes:
    """The gossip processes of one WAN, and what they say."""

    wan: Wan
    home: Path
    _processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    _said: list[tuple[float, str, str, str, str]] = field(default_factory=list)  # when, who, what, of whom, value
    _news: threading.Condition = field(default_factory=threading.Condition)
    _generation: int = 0

    def start(self, name: str) -> None:
        self._generation += 1
        command = [sys.executable, str(NODE), str(self.home), name, str(self._generation)]
        process = self.wan.popen(name, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._processes[name] = process
        threading.Thread(target=self._read, args=(name, process), daemon=True).start()

    def _read(self, name: str, process: subprocess.Popen[str]) -> None:
        if process.stdout is None:
            raise RuntimeError("the process was started without its output")
        for line in process.stdout:
            at_s, what, hub, value = json.loads(line)
            with self._news:
                self._said.append((at_s, name, what, hub, value))
                self._news.notify_all()

    def others(self, name: str) -> set[str]:
        return set(self._processes) - {name}

    def first_s(self, what: str, hub: str, value: str, since_s: float) -> dict[str, float]:
        """When each process first said this."""
        found: dict[str, float] = {}
        for at_s, name, said, of, told in self._said:
            if (said, of, told) == (what, hub, value) and at_s >= since_s:
                found.setdefault(name, at_s)
        return found

    def until_all(self, what: str, hub: str, value: str, since_s: float, within_s: float) -> float | None:
        """The moment at which the last of the others said so; None: not all did."""
        ends_s = time.monotonic() + within_s
        with self._news:
            while True:
                found = self.first_s(what, hub, value, since_s)
                if self.others(hub) <= set(found):
                    return max(found[name] for name in self.others(hub))
                if not self._news.wait(ends_s - time.monotonic()):
                    return None

    def update(self, name: str, value: str) -> float | None:
        began_s = time.monotonic()
        process = self._processes[name]
        if process.stdin is None:
            raise RuntimeError("the process was started without its input")
        process.stdin.write(value + "\n")
        process.stdin.flush()
        seen_s = self.until_all("seen", name, value, began_s, 30)
        with self._news:
            set_s = self.first_s("set", name, value, began_s).get(name)
        return None if seen_s is None or set_s is None else seen_s - set_s

    def kill_and_restart(self, name: str) -> float | None:
        killed_s = time.monotonic()
        process = self._processes.pop(name)
        process.kill()
        process.wait()
        seen_s = self.until_all("suspected", name, "", killed_s, 30)
        self.start(name)
        self.until_all("recovered", name, "", killed_s, 30)
        time.sleep(5)
        return None if seen_s is None else seen_s - killed_s

    def suspicions(self, since_s: float) -> int:
        with self._news:
            return sum(what == "suspected" and at_s >= since_s for at_s, _, what, _, _ in self._said)

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


@contextmanager
def nodes_in(wan: Wan) -> Iterator[Nodes]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        make_federation(Home(home), {name: (wan.address(name), PEER_PORT) for name in wan.names}, now=datetime.now(UTC))
        nodes = Nodes(wan, home)
        try:
            for name in wan.names:
                nodes.start(name)
            for number, name in enumerate(wan.names):
                if nodes.update(name, f"hello-{number}") is None:
                    raise TimeoutError(f"not all hubs have heard of {name}")
            yield nodes
        finally:
            nodes.close()


def measure_gossip(
    wan: Wan, *, updates: int = 40, kills: int = 3, idle_s: float = 20.0, seed: int = 1
) -> GossipFigures:
    draw = random.Random(seed)
    with nodes_in(wan) as nodes:
        time.sleep(3)
        idle = traffic(wan, lambda: time.sleep(idle_s))
        times: list[float | None] = []

        def update() -> None:
            for number in range(updates):
                time.sleep(draw.uniform(*GAP_S))
                times.append(nodes.update(wan.names[number % len(wan.names)], f"v{number}"))

        updating = traffic(wan, update)
        killed = [nodes.kill_and_restart(draw.choice(wan.names)) for _ in range(kills)]
        return GossipFigures(len(wan.names), _times(times), _times(killed), idle, updating)


def false_suspicions(wan: Wan, *, minutes: float, burners: int) -> int:
    """How often a live hub is suspected while other processes want more of the processors than there is."""
    with nodes_in(wan) as nodes:
        time.sleep(5)
        began_s = time.monotonic()
        with _stress(burners):
            time.sleep(minutes * 60)
        return nodes.suspicions(began_s)


@contextmanager
def _stress(burners: int) -> Iterator[None]:
    processes = [multiprocessing.Process(target=_burn, daemon=True) for _ in range(burners)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _burn() -> None:
    while True:
        sum(range(100_000))


def _times(taken_s: list[float | None]) -> Times:
    seen = tuple(taken for taken in taken_s if taken is not None)
    return Times(seen, len(taken_s) - len(seen))
