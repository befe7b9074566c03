"""How does a hub keep its SENTINEL? A process of its own, so that a heavy query never delays a placement.

It outlives a hub that dies: it goes on collecting, answering and alerting, above all that the hub is down. A hub that
starts finds it by the record that SENTINEL writes into the state folder, with its pid, start time and a fingerprint of
what it was started with; it takes it over if that is what it would start it with, and replaces it if not. A hub that is
asked to stop stops its SENTINEL. Until the record is written, SENTINEL ends with its hub: nothing runs that nobody
could find.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import msgspec

from harch.base.clock import Clock
from harch.base.config import SENTINEL_SWITCH as SWITCH
from harch.base.fork_server import ForkClient, ForkServerGone
from harch.execution.kernel import start_ticks
from harch.execution.process_record import ProcessRecord, RunningProcess, found_running, write_record

PACKAGES = ("numba", "cramjam", "pyarrow", "re2", "orjson", "opentelemetry.proto")
SENTINEL_KEY = "sentinel.key"
OWN_CONFIG, OWN_ALERTS, OWN_SETTINGS = "sentinel.yml", "alerts.yml", "sentinel.toml"
RESTART_S_FIRST, RESTART_S_MAX = 1.0, 60.0
STEADY_S = 120.0  # after so long, an end is a new trouble and not the old one
STOP_GRACE_S = 15.0
FOLDER, RECORD = "sentinel", "process.json"  # below the hub's state folder
FINGERPRINT = "HARCH_SENTINEL_FINGERPRINT"
_NOT_FOR_SENTINEL = frozenset({"HARCH_API_KEY", "HARCH_PARENT_PID", FINGERPRINT})
_NICER = 5  # work comes first; telemetry may wait

_log = logging.getLogger("harch.hub")

_SCRAPE = """\
# Written by the hub at each start. Put your own targets and rules into {own} beside this folder.
global: {{scrape_interval: 15s, external_labels: {{hub: "{hub_id}"}}}}
scrape_configs:
- job_name: harchos
  metrics_path: /v1/metrics
  honor_labels: true
  authorization: {{credentials_file: "{key_file}"}}
  static_configs: [{{targets: ["{address}"], labels: {{hub_name: "{hub_name}"}}}}]
- job_name: harchos-series
  metrics_path: /v1/metrics/series
  scrape_interval: 30s
  honor_labels: true
  authorization: {{credentials_file: "{key_file}"}}
  static_configs: [{{targets: ["{address}"], labels: {{hub_name: "{hub_name}"}}}}]
"""


def record_of(state_dir: Path) -> Path:
    """Where the SENTINEL of the hub with this state folder writes which process it is."""
    return state_dir / FOLDER / RECORD


def write_own_record(data: Path) -> bool:
    """By SENTINEL itself, once its data folder is its own. False where no hub started it."""
    fingerprint = os.environ.get(FINGERPRINT)
    if fingerprint is None:
        return False
    write_record(data.parent / RECORD, ProcessRecord(os.getpid(), start_ticks(os.getpid()), fingerprint))
    return True


async def stop_left_over(state_dir: Path) -> None:
    """Stops a SENTINEL whose hub is gone, if there is one. Raises E1005 if it does not end."""
    process = found_running(record_of(state_dir))
    if process is not None:
        await process.stop(STOP_GRACE_S)


def missing_packages() -> list[str]:
    """What SENTINEL needs and this installation lacks."""
    return [name for name in PACKAGES if _is_missing(name)]


def is_kept() -> bool:
    """Whether a hub of this installation keeps telemetry at all."""
    return os.environ.get(SWITCH, "").lower() != "off" and not missing_packages()


def _is_missing(name: str) -> bool:
    try:
        return find_spec(name) is None
    except ModuleNotFoundError:
        return True


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _NOT_FOR_SENTINEL}


def _started(arguments: Sequence[str], settings: dict[str, str], errors: Path) -> subprocess.Popen[bytes]:
    with errors.open("wb") as sink:
        return subprocess.Popen(
            (sys.executable, "-m", "harch", *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=sink,
            start_new_session=True,  # a Ctrl-C is the hub's, which stops its child itself
            env={**settings, "HARCH_PARENT_PID": str(os.getpid())},
        )


class SentinelChild:
    """Starts SENTINEL beside a hub, or takes over the one that runs, and starts it again when it ends.

    `is_wanted_no_more` is asked at the end: whether the hub was told to stop, or dies of a fault. `preloaded`: a
    server that SENTINEL can be forked from; such a child belongs to whoever runs the server, and ends with that one.
    """

    def __init__(
        self,
        state_dir: Path,
        hub_id: str,
        hub_name: str,
        hub_url: str,
        listen: tuple[str, int],
        clock: Clock,
        is_wanted_no_more: Callable[[], bool] = lambda: True,
        preloaded: ForkClient | None = None,
    ) -> None:
        self._state_dir, self._hub_id, self._hub_name = state_dir, hub_id, hub_name
        self._hub_url, self._listen, self._clock = hub_url, listen, clock
        self._is_wanted_no_more = is_wanted_no_more
        self._preloaded = preloaded

    @property
    def key_file(self) -> Path:
        """An operator's key of this hub: with it SENTINEL reads the hub's figures."""
        return self._state_dir / SENTINEL_KEY

    async def run(self) -> None:
        """Until cancelled."""
        if os.environ.get(SWITCH, "").lower() == "off":
            await stop_left_over(self._state_dir)
            return
        if missing := missing_packages():
            _log.warning("no telemetry is kept: %s missing; pip install 'harch[sentinel]'", ", ".join(missing))
            return
        arguments = self._arguments()
        fingerprint = self._fingerprint(arguments)
        pause_s = RESTART_S_FIRST
        while True:
            began_s = self._clock.monotonic_s()
            process = await self._taken_over(fingerprint) or await self._launched(arguments, fingerprint)
            code = await self._watched(process)
            if self._clock.monotonic_s() - began_s > STEADY_S:
                pause_s = RESTART_S_FIRST
            _log.warning("SENTINEL exited with code %s; restarting in %.0f s", code, pause_s)
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, RESTART_S_MAX)

    async def _taken_over(self, fingerprint: str) -> RunningProcess | None:
        """The SENTINEL that runs already, if it was started as this hub would start it. Another one is stopped."""
        process = found_running(record_of(self._state_dir))
        if process is None:
            return None
        if process.record.config_sha256 != fingerprint:
            _log.warning("SENTINEL (process %d) has other settings and is replaced", process.record.pid)
            await process.stop(STOP_GRACE_S)
            return None
        _log.info("SENTINEL (process %d) outlived its hub and is adopted", process.record.pid)
        process.send(signal.SIGHUP)  # targets, rules and receivers may have changed meanwhile
        return process

    async def _launched(self, arguments: Sequence[str], fingerprint: str) -> RunningProcess:
        errors, settings = self._folder / "sentinel.err", {**_environment(), FINGERPRINT: fingerprint}
        pid, child = await self._forked(arguments, settings, errors), None
        if pid is None:
            child = _started(arguments, settings, errors)
            pid = child.pid
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            os.setpriority(os.PRIO_PROCESS, pid, _NICER)
        return RunningProcess(ProcessRecord(pid, start_ticks(pid), fingerprint), child)

    async def _forked(self, arguments: Sequence[str], settings: dict[str, str], errors: Path) -> int | None:
        """From the process that has its code loaded already; None where there is none."""
        if self._preloaded is None:
            return None
        environment = {**settings, "HARCH_PARENT_PID": str(os.getppid())}
        try:
            return await self._preloaded.fork(arguments, environment, errors)
        except ForkServerGone as gone:
            _log.warning("SENTINEL is started by itself: %s", gone)
            self._preloaded = None
            return None

    async def _watched(self, process: RunningProcess) -> int | None:
        """Its exit code, once it has ended. If the hub is to stop, it is stopped as well."""
        try:
            return await process.ended()
        except asyncio.CancelledError:
            if self._is_wanted_no_more():
                await process.stop(STOP_GRACE_S)
            raise

    def _fingerprint(self, arguments: Sequence[str]) -> str:
        """Of what SENTINEL cannot learn without a new start: the program, its arguments, settings and key."""
        files = [self._state_dir / OWN_SETTINGS, self.key_file]
        contents = [path.read_bytes() if path.exists() else b"" for path in files]
        settings = (version("harch"), sys.executable, list(arguments), contents)
        return hashlib.sha256(msgspec.json.encode(settings)).hexdigest()

    @property
    def _folder(self) -> Path:
        return self._state_dir / FOLDER

    def _arguments(self) -> list[str]:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        config = self._folder / "hub.yml"
        config.write_text(
            _SCRAPE.format(
                own=OWN_CONFIG,
                hub_id=self._hub_id,
                hub_name=self._hub_name,
                address=self._hub_url.partition("://")[2],
                key_file=self.key_file,
            ),
            "utf-8",
        )
        host, port = self._listen
        arguments = ["sentinel", "serve", "--data", str(self._folder / "data"), "--listen", f"{host}:{port}"]
        arguments += ["--hub-url", self._hub_url, "--token-file", str(self.key_file), "--config", str(config)]
        arguments += ["--log-file", str(self._folder / "sentinel.log")]
        for option, name in (("--config", OWN_CONFIG), ("--alerts", OWN_ALERTS), ("--settings", OWN_SETTINGS)):
            if (self._state_dir / name).exists():
                arguments += [option, str(self._state_dir / name)]
        return arguments
