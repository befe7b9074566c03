"""How does a hub keep its SENTINEL? A process of its own, so that a heavy query never delays a placement."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from harch.base.clock import Clock

SWITCH = "HARCH_SENTINEL"  # `off` runs a hub without it
PACKAGES = ("numba", "cramjam", "pyarrow", "re2", "orjson", "opentelemetry.proto")
SENTINEL_KEY = "sentinel.key"
OWN_CONFIG, OWN_ALERTS, OWN_SETTINGS = "sentinel.yml", "alerts.yml", "sentinel.toml"
RESTART_S_FIRST, RESTART_S_MAX = 1.0, 60.0
STEADY_S = 120.0  # after so long, an end is a new trouble and not the old one
STOP_GRACE_S = 15.0
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
    return {name: value for name, value in os.environ.items() if name != "HARCH_API_KEY"}


class SentinelChild:
    """Starts SENTINEL beside a hub and starts it again when it ends."""

    def __init__(
        self, state_dir: Path, hub_id: str, hub_name: str, hub_url: str, listen: tuple[str, int], clock: Clock
    ) -> None:
        self._state_dir, self._hub_id, self._hub_name = state_dir, hub_id, hub_name
        self._hub_url, self._listen, self._clock = hub_url, listen, clock

    @property
    def key_file(self) -> Path:
        """An operator's key of this hub: with it SENTINEL reads the hub's figures."""
        return self._state_dir / SENTINEL_KEY

    async def run(self) -> None:
        """Until cancelled."""
        if os.environ.get(SWITCH, "").lower() == "off":
            return
        if missing := missing_packages():
            _log.warning("no telemetry is kept: %s missing; pip install 'harch[sentinel]'", ", ".join(missing))
            return
        arguments = self._arguments()
        pause_s = RESTART_S_FIRST
        while True:
            began_s = self._clock.monotonic_s()
            code = await self._run_once(arguments)
            if self._clock.monotonic_s() - began_s > STEADY_S:
                pause_s = RESTART_S_FIRST
            _log.warning("SENTINEL ended with code %s and is started again in %.0f s", code, pause_s)
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, RESTART_S_MAX)

    async def _run_once(self, arguments: Sequence[str]) -> int:
        errors = self._folder / "sentinel.err"
        with errors.open("wb") as sink:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "harch", *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=sink,
                start_new_session=True,  # a Ctrl-C is the hub's, which stops its child itself
                env={**_environment(), "HARCH_PARENT_PID": str(os.getpid())},
            )
        os.setpriority(os.PRIO_PROCESS, process.pid, _NICER)
        try:
            return await process.wait()
        except asyncio.CancelledError:
            process.terminate()
            try:
                async with asyncio.timeout(STOP_GRACE_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
            raise

    @property
    def _folder(self) -> Path:
        return self._state_dir / "sentinel"

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
