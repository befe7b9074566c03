"""Which process is a hub that `harch up` runs here? Written down at its start, so that a demonstration can kill it."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import httpx

from harch.base.clock import Clock
from harch.base.config import Home, home_from_env
from harch.base.errors import HarchError
from harch.cli.local_federation import HUB_RECORD, StartStep, start_step
from harch.execution.kernel import kill_process
from harch.execution.process_record import found_running

LOOK_S = 0.2


def local_home() -> Home:
    """The state folder: named, or of the current folder, or of the context in use."""
    from harch.sdk.contexts import context_in_use

    home = home_from_env()
    context = None if home.admin_key.exists() else context_in_use()
    return Home(Path(context.key_file).expanduser().parent) if context is not None else home


def kill_hub(home: Home, hub_id: str) -> int:
    """Without warning. Returns the pid that it had. Raises E0305 where no such hub of ours runs."""
    running = found_running(home.hub(hub_id) / HUB_RECORD)
    if running is None:
        hint = "only hubs that `harch up` runs on this machine can be killed; `harch hubs` lists all"
        raise HarchError("E0305", f"`harch up` runs no hub `{hub_id}` with the state folder {home.root}", hint=hint)
    kill_process(running.record.pid, signal.SIGKILL)
    return running.record.pid


async def until_ready(url: str, clock: Clock, within_s: float) -> None:
    """Raises TimeoutError if the hub at this address and its agent do not come back in time."""
    end_s = clock.monotonic_s() + within_s
    async with httpx.AsyncClient(timeout=2.0, trust_env=False) as client:
        while await start_step(client, url) is not StartStep.READY:
            if clock.monotonic_s() > end_s:
                raise TimeoutError(f"the hub at {url} was not ready again after {within_s:g} s")
            await asyncio.sleep(LOOK_S)
