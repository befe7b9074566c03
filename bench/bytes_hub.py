"""A hub that somebody sends files to with `harch`: what passes between them, and what both of them use for it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from bytes_programs import Ran, run
from harch.testing.hub_process import HubProcess
from harch.testing.samples import TINY_FLEET_TOML

TAG = ("--process-in", "MA", "--rest-in", "MA", "--plain-at-rest")
HUB = "dakhla"
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_READ_BYTES = 1 << 18


@dataclass(frozen=True)
class Sent:
    """One `harch` command. Bytes are those of its connections to the hub, with whatever HTTP puts around chunks."""

    bytes_up: int
    bytes_down: int
    client_cpu_s: float
    hub_cpu_s: float
    said: str

    @property
    def cpu_s(self) -> float:
        return self.client_cpu_s + self.hub_cpu_s


class Counter:
    """Carries TCP connections to a hub, and counts their bytes."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self.bytes_up = self.bytes_down = 0
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                theirs, _ = self._listener.accept()
                ours = socket.create_connection(self._target)
                for source, target, is_up in ((theirs, ours, True), (ours, theirs, False)):
                    threading.Thread(target=self._carry, args=(source, target, is_up), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, is_up: bool) -> None:
        with suppress(OSError), closing(source):
            while data := source.recv(_READ_BYTES):
                target.sendall(data)
                with self._lock:
                    if is_up:
                        self.bytes_up += len(data)
                    else:
                        self.bytes_down += len(data)
            target.shutdown(socket.SHUT_WR)


class Sender:
    """Somebody with a cache of his own, at one hub."""

    def __init__(self, world: HubProcess, folder: Path, counter: Counter) -> None:
        self._world, self._counter = world, counter
        own = {"XDG_CACHE_HOME": str(folder / "cache"), "HARCH_URL": f"http://127.0.0.1:{counter.port}"}
        self._environment = {**world.environment, **own}

    def harch(self, *words: str) -> Sent:
        """Raises RuntimeError if it fails."""
        up, down, hub_s = self._counter.bytes_up, self._counter.bytes_down, self._hub_cpu_s()
        ran = self.plain(*words)
        return Sent(
            self._counter.bytes_up - up,
            self._counter.bytes_down - down,
            ran.cpu_s,
            self._hub_cpu_s() - hub_s,
            ran.errors.strip().rpartition("\n")[2],
        )

    def plain(self, *words: str) -> Ran:
        return run([sys.executable, "-m", "harch", *words], env=self._environment)

    def add(self, name: str, files: Path) -> Sent:
        return self.harch("data", "add", name, "--files", str(files), *TAG)

    def _hub_cpu_s(self) -> float:
        process = self._world.hub
        if process is None:
            raise RuntimeError("the hub does not run")
        return cpu_s_of(process)


@contextmanager
def sender(folder: Path) -> Iterator[Sender]:
    """One hub without telemetry, its agent, and somebody who sends files there."""
    folder.mkdir(parents=True, exist_ok=True)
    with QuietHub(TINY_FLEET_TOML, HUB, folder) as world:
        host, _, port = world.url.removeprefix("http://").partition(":")
        with Counter((host, int(port))) as counter:
            yield Sender(world, folder, counter)


class QuietHub(HubProcess):
    """SENTINEL would use the cores that are measured. Modules are compiled once, as on every machine of a user."""

    @property
    def environment(self) -> dict[str, str]:
        own = {"HARCH_SENTINEL": "off", "PYTHONPYCACHEPREFIX": str(self.home / "compiled")}
        return {name: value for name, value in super().environment.items() if name != NO_BYTECODE} | own


def cpu_s_of(process: subprocess.Popen[bytes]) -> float:
    """Of all of its threads, and of none of its children."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S
