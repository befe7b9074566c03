"""How are the programs that fetch and unpack images run? Confined, watched, and ended with all that they started.

Images are foreign, and the programs that read them have had holes: umoci 0.4.7 deletes the parent of its target when a
layer has a file named `.wh...`. So each runs in a bubblewrap of its own, sees system programs and what it works on, and
writes nothing but its scratch folder; only the one that fetches sees the network.
"""

from __future__ import annotations

import codecs
import os
import re
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO

from harch.base.errors import HarchError
from harch.execution import kernel
from harch.execution.isolation.sandbox import HostLayout

POLL_S = 0.1
READ_BYTES = 65536
OUTPUT_BYTES_MAX = 8 * 1024 * 1024
LOG_LINES_MAX = 2000  # of one run
LAST_LINES = 5
KILLED_GONE_S_MAX = 10.0
_ETC = ("ssl/certs", "ssl/openssl.cnf", "ca-certificates", "pki/tls/certs", "pki/ca-trust/extracted", "hosts")
# Trust and mirrors are the site's: what its `/etc/containers` says of registries and signatures holds here, too.
_ETC_OF_NETWORK = ("resolv.conf", "nsswitch.conf", "gai.conf", "docker/certs.d")
_ETC_OF_CONTAINERS = ("containers",)
_PROXY = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_LOGGED_MESSAGE = re.compile(r'^time="[^"]*" level=(?:fatal|error|warning) msg="(?P<message>.*)"$')


@dataclass(frozen=True, slots=True)
class Hooks:
    """How preparing reaches the task that it is for: lines of its log, what it waits for, in words, and a check that
    raises once nobody wants the result any more."""

    log: Callable[[str], None]
    progress: Callable[[str], None]
    check: Callable[[], None]


@dataclass(frozen=True, slots=True)
class ToolView:
    """What a tool gets to see beside system programs, as (path inside, path on the node)."""

    writable: tuple[tuple[str, str], ...]
    readable: tuple[tuple[str, str], ...] = ()
    network: bool = False


@dataclass(frozen=True, slots=True)
class ToolResult:
    """`output` is its standard output, `last_lines` are those of its messages."""

    status: int
    output: bytes
    last_lines: tuple[str, ...]

    @property
    def message(self) -> str:
        """What went wrong, in its own words."""
        lines = [line for line in self.last_lines if line.strip()]
        return lines[-1].strip(" ⨯•") if lines else f"exit status {self.status}"


@dataclass(frozen=True, slots=True)
class ToolRunner:
    """`bubblewrap`: its path. `environment`: of the agent, of which tools get what leads to a proxy."""

    bubblewrap: str
    host: HostLayout
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(
        self,
        command: list[str],
        view: ToolView,
        hooks: Hooks,
        *,
        timeout_s: float,
        watch: Callable[[], None] = lambda: None,
    ) -> ToolResult:
        """Blocks until it has ended. `watch` is called several times a second, and may raise to end it.

        Raises what `watch` and the check raise, and E1113 if it does not end in time; nothing of it runs on then.
        """
        arguments = [self.bubblewrap, *confinement(self.host, view, self.environment), "--", *command]
        with subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={},
            start_new_session=True,
            bufsize=0,
        ) as process:
            pipes = _Pipes(process, hooks.log)
            give_up_at = time.monotonic() + timeout_s
            try:
                while pipes.are_open:
                    pipes.read(POLL_S)
                    hooks.check()
                    watch()
                    if time.monotonic() > give_up_at:
                        raise HarchError(
                            "E1113",
                            f"`{os.path.basename(command[0])}` did not end within {timeout_s:g} s",
                            hint="`harch logs ID --preparation` shows how far it came",
                        )
            except BaseException:
                kernel.kill_group(process.pid, signal.SIGKILL)
                _wait_until_gone(pipes)
                raise
            return ToolResult(process.wait(), bytes(pipes.output), tuple(pipes.last_lines))


class _Pipes:
    """What a tool says. Both ends closed means that it has ended, and all that it started."""

    def __init__(self, process: subprocess.Popen[bytes], log: Callable[[str], None]) -> None:
        self.output = bytearray()
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._log, self._lines, self._rest = log, 0, ""
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._selector = selectors.DefaultSelector()
        for pipe, receive in ((process.stdout, self._on_output), (process.stderr, self._on_message)):
            if pipe is not None:
                self._selector.register(pipe, selectors.EVENT_READ, receive)

    @property
    def are_open(self) -> bool:
        return bool(self._selector.get_map())

    def read(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            pipe: IO[bytes] = key.fileobj  # type: ignore[assignment]
            data = os.read(pipe.fileno(), READ_BYTES)
            if not data:
                self._selector.unregister(pipe)
            key.data(data)
        if not self.are_open:
            self._selector.close()

    def _on_output(self, data: bytes) -> None:
        if len(self.output) + len(data) > OUTPUT_BYTES_MAX:
            raise HarchError("E1113", "a tool wrote more than it may", hint="see its log")
        self.output += data

    def _on_message(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + self._decode(data, final=not data)).split("\n")
        if not data and self._rest:
            lines, self._rest = [*lines, self._rest], ""
        self._rest = self._rest[-READ_BYTES:]
        for line in lines:
            self._on_line(plain_message(line.rstrip("\r")))

    def _on_line(self, line: str) -> None:
        self.last_lines.append(line)
        self._lines += 1
        if self._lines <= LOG_LINES_MAX:
            self._log(line)
        elif self._lines == LOG_LINES_MAX + 1:
            self._log(f"(more than {LOG_LINES_MAX} lines: the rest is left out)")


def plain_message(line: str) -> str:
    """Without the time and level that programs in Go put around what they say."""
    found = _LOGGED_MESSAGE.match(line)
    return found["message"].replace('\\"', '"').replace("\\\\", "\\") if found else line


def _wait_until_gone(pipes: _Pipes) -> None:
    """Until the last process that was killed has closed its pipes: then none writes to the scratch folder."""
    give_up_at = time.monotonic() + KILLED_GONE_S_MAX
    while pipes.are_open and time.monotonic() < give_up_at:
        try:
            pipes.read(POLL_S)
        except HarchError:
            continue  # it had more to say


def confinement(host: HostLayout, view: ToolView, environment: Mapping[str, str]) -> list[str]:
    """The arguments of bubblewrap for one tool."""
    args = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if not view.network:
        args.append("--unshare-net")
    args += ["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--ro-bind", "/usr", "/usr"]
    for path, target in host.system:
        args += ["--symlink", target, path] if target else ["--ro-bind", path, path]
    for name in (*_ETC, *_ETC_OF_CONTAINERS, *(_ETC_OF_NETWORK if view.network else ())):
        args += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    args += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]  # noqa: S108 - a private one
    for inside, path in view.writable:
        args += ["--bind", path, inside]
    for inside, path in view.readable:
        args += ["--ro-bind", path, inside]
    args += ["--remount-ro", "/", "--chdir", "/", "--clearenv"]
    env = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/tmp", "LANG": "C.UTF-8"}  # noqa: S108
    if view.network:
        env |= {name: environment[name] for name in _PROXY if environment.get(name)}
    for name, value in env.items():
        args += ["--setenv", name, value]
    return args
