"""How is a federation of serf agents run and watched on an emulated WAN?

One agent per hub, inside its namespace, with the settings of one of serf's own profiles. What they log is read at once;
they are told what to do over their RPC (msgpack), so that no start of a command is measured.
"""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, Literal

import msgspec

from harch.testing.wan import Wan

Profile = Literal["lan", "wan"]
GOSSIP_PORT, RPC_PORT = 7946, 7373
JOIN_WITHIN_S = 60.0
UPDATE_WITHIN_S = 90.0  # its push-pull, every 30 s (LAN) or 60 s (WAN), repairs what gossip has lost
KILL_WITHIN_S = 300.0


@contextmanager
def agents_in(wan: Wan, profile: Profile) -> Iterator[Agents]:
    agents = Agents(wan, profile)
    try:
        for name in wan.names:
            agents.start(name)
        for name in wan.names:
            if agents.until_seen(f"serf: EventMemberJoin: {name} ", agents.others(name), JOIN_WITHIN_S) is None:
                raise TimeoutError(f"serf: not all hubs have seen {name} in {JOIN_WITHIN_S:g} s")
        yield agents
    finally:
        agents.close()


@dataclass
class Agents:
    """The agents of one WAN and what they have logged, with the moment at which it was read."""

    wan: Wan
    profile: Profile
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _lines: list[tuple[float, str, str]] = field(default_factory=list)  # when, whose, what
    _news: threading.Condition = field(default_factory=threading.Condition)
    _logs: selectors.DefaultSelector = field(default_factory=selectors.DefaultSelector)
    _down: set[str] = field(default_factory=set)
    false_failures: int = 0
    _is_closed: bool = False

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read_logs, name="serf-logs")
        self._reader.start()

    def others(self, name: str) -> set[str]:
        return set(self.wan.names) - {name}

    def start(self, name: str) -> None:
        words = ["serf", "agent", "-node", name, "-bind", f"{self.wan.address(name)}:{GOSSIP_PORT}"]
        words += ["-profile", self.profile, "-retry-interval", "1s"]
        for other in sorted(self.others(name))[:2]:
            words += ["-retry-join", self.wan.address(other)]
        process = self.wan.popen(
            name, words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
        self._processes[name] = process
        log: IO[bytes] = process.stdout  # type: ignore[assignment]  # a pipe was asked for
        self._logs.register(log.fileno(), selectors.EVENT_READ, (name, log))

    def set_tag(self, name: str, value: str) -> float | None:
        """Seconds until all others have seen a new tag of this hub; None if not all did."""
        return self._timed(name, "tags", {"Tags": {"load": value}}, f"serf: EventMemberUpdate: {name} ")

    def send_event(self, name: str, value: str) -> float | None:
        """Seconds until all others have received a user event of this hub; None if not all did."""
        event = {"Name": f"{name}-{value}", "Payload": "", "Coalesce": False}
        return self._timed(name, "event", event, f"agent: Received event: user-event: {name}-{value} ")

    def kill_and_restart(self, name: str) -> float | None:
        """Seconds from a kill -9 until all others have declared the hub failed; None if not all did."""
        self._down.add(name)
        mark, start = len(self._lines), time.monotonic()
        self._end(name)
        seen = self.until_seen(f"serf: EventMemberFailed: {name} ", self.others(name), KILL_WITHIN_S, mark)
        mark = len(self._lines)
        self.start(name)
        if self.until_seen(f"serf: EventMemberJoin: {name} ", self.others(name), JOIN_WITHIN_S, mark) is None:
            raise TimeoutError(f"serf: {name} has not come back in {JOIN_WITHIN_S:g} s")
        self._down.remove(name)
        return None if seen is None else seen - start

    def until_seen(self, text: str, by: set[str], within_s: float, mark: int = 0) -> float | None:
        """When the last of these hubs logged the text, after the line numbered `mark`; None if not all did in time."""
        until = time.monotonic() + within_s
        seen: dict[str, float] = {}
        with self._news:
            while True:
                for at, name, line in self._lines[mark:]:
                    if name in by and text in f"{line} ":
                        seen.setdefault(name, at)
                mark = len(self._lines)
                if len(seen) == len(by):
                    return max(seen.values())
                if not self._news.wait(until - time.monotonic()):
                    return None

    def close(self) -> None:
        for name in list(self._processes):
            self._end(name)
        self._is_closed = True
        self._reader.join()
        self._logs.close()

    def _timed(self, name: str, command: str, body: dict[str, Any], text: str) -> float | None:
        with self.wan.connect(name, RPC_PORT) as connection:
            send_request(connection, 0, "handshake", {"Version": 1})
            read_answer(connection)
            mark, start = len(self._lines), time.monotonic()
            send_request(connection, 1, command, body)
            seen = self.until_seen(text, self.others(name), UPDATE_WITHIN_S, mark)
            read_answer(connection)
        return None if seen is None else seen - start

    def _end(self, name: str) -> None:
        self._processes[name].kill()
        self._processes[name].wait()

    def _read_logs(self) -> None:
        partial: dict[int, bytes] = {}
        while not self._is_closed or self._logs.get_map():
            for key, _ in self._logs.select(0.1):
                name, log = key.data
                data = os.read(key.fd, 1 << 16)
                now = time.monotonic()
                if not data:
                    self._logs.unregister(key.fd)
                    log.close()
                    partial.pop(key.fd, None)
                    continue
                *lines, partial[key.fd] = (partial.get(key.fd, b"") + data).split(b"\n")
                with self._news:
                    self._lines += [(now, name, line.decode()) for line in lines]
                    self.false_failures += sum(self._is_false_failure(line.decode()) for line in lines)
                    self._news.notify_all()

    def _is_false_failure(self, line: str) -> bool:
        _, found, rest = line.partition("serf: EventMemberFailed: ")
        return bool(found) and rest.split()[0] not in self._down


def send_request(connection: socket.socket, number: int, command: str, body: dict[str, Any]) -> None:
    """Serf reads the strings of an older msgpack: those below 32 bytes are the same in both."""
    connection.sendall(msgspec.msgpack.encode({"Command": command, "Seq": number}) + msgspec.msgpack.encode(body))


def read_answer(connection: socket.socket) -> None:
    """Only for commands that are answered by a header alone. Raises RuntimeError for an answer that is an error."""
    answer = msgspec.msgpack.decode(connection.recv(1 << 16))
    if answer["Error"]:
        raise RuntimeError(f"serf: {answer['Error']}")
