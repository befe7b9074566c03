"""What does the tour touch? The federation, read and cleaned up by the client, and `harch` itself as a process."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from typing import IO, TYPE_CHECKING

from harch.base.errors import HarchError
from harch.cli.remote import connect
from harch.cli.tour.stations import FederationFacts, TourCommand, TourHub

if TYPE_CHECKING:
    from harch.sdk import Client, Workload

COMMAND_S_MAX = 150.0  # a hub that was killed may take two minutes on a busy machine; everything else takes seconds
_GOES_S = 10.0  # how long an interrupted command may take to end
_STOP_S_MAX = 60.0  # TERM, then KILL after 30 s
_BACK_S_MAX = 60.0  # how long a hub that does not answer is waited for to clean up there
_AGAIN_S = 1.0
_PAGES_MAX = 20


def facts_of(client: Client) -> FederationFacts:
    """Raises HarchError where no hub answers."""
    home_id = client.health().hub_id
    hubs = [(TourHub(hub.id, hub.name, hub.country), hub) for hub in client.hubs.list()]
    home = next((one for one, hub in hubs if hub.id == home_id), None)
    if home is None:
        raise HarchError("E0801", f"hub {home_id} does not list itself yet", hint="try again in a moment")
    others = tuple(one for one, hub in hubs if hub.id != home_id and hub.reachable and hub.status == "ready")
    return FederationFacts(home, others, is_local=client.settings.is_loopback and _is_ours(home_id))


def _is_ours(hub_id: str) -> bool:
    """Whether `harch hub kill` would find it."""
    from harch.cli.local_federation import HUB_RECORD
    from harch.cli.local_hubs import local_home
    from harch.execution.process_record import found_running

    return found_running(local_home().hub(hub_id) / HUB_RECORD) is not None


def sentinel_gap() -> str:
    """Why SENTINEL cannot be asked; empty where it answers."""
    from harch.sdk.sentinel import SentinelClient

    try:
        with SentinelClient() as client:
            client.query("vector(1)")
    except HarchError as error:
        return f"{error.message}; {error.hint}" if error.hint else error.message
    return ""


def stop_all(tag: str, home_id: str) -> list[str]:
    """Stops all work whose name begins with the tag, at whichever hub, and waits for it. Returns the names.

    Raises HarchError where the hub that took it cannot be asked, or work does not end in time.
    """
    end_s = time.monotonic() + _BACK_S_MAX
    while True:
        try:
            return _stop_unfinished(f"{tag}-", home_id)
        except HarchError as error:
            # Whoever leaves just after a hub was killed still wants its work stopped.
            if error.code not in {"E0801", "E0802"} or time.monotonic() > end_s:
                raise
        time.sleep(_AGAIN_S)


def _stop_unfinished(prefix: str, home_id: str) -> list[str]:
    with connect() as near:
        found, silent = _unfinished(near, prefix)
        queried_id = near.health().hub_id
        by_owner: dict[str, list[Workload]] = {}
        for workload in found:
            by_owner.setdefault(workload.hub_id or queried_id, []).append(workload)
        for hub_id, owned in by_owner.items():
            with contextlib.nullcontext(near) if hub_id == queried_id else connect(hub_id) as client:
                _stop_here(client, owned)
    if home_id in silent:
        raise HarchError("E0802", f"{home_id} does not answer: work named {prefix}… may be left there")
    return sorted(workload.name or workload.id for workload in found)


def _stop_here(client: Client, workloads: list[Workload]) -> None:
    for workload in workloads:
        try:
            client.workloads.stop(workload.id)
        except HarchError as error:
            if error.code != "E0304":  # it has ended in the meantime
                raise
    for workload in workloads:
        try:
            client.workloads.wait(workload.id, timeout_s=_STOP_S_MAX)
        except TimeoutError as error:
            raise HarchError("E0801", f"{workload.name} ({workload.id}) has not ended yet") from error


def _unfinished(client: Client, prefix: str) -> tuple[list[Workload], set[str]]:
    """With the hubs that did not answer."""
    found: list[Workload] = []
    silent: set[str] = set()
    for number in range(1, _PAGES_MAX + 1):
        page = client.workloads.everywhere(page=number)
        found += [workload for workload in page.items if (workload.name or "").startswith(prefix)]
        silent.update(hub.hub_id for hub in page.silent_hubs)
        if number * page.pagination.per_page >= page.total:
            break
    return found, silent


def run_harch(command: TourCommand, stdout: IO[bytes] | None) -> int:
    """The same `harch`, with the terminal of the tour. Raises E0801 if it does not end in time."""
    process = subprocess.Popen([sys.executable, "-m", "harch", *command.words], stdin=subprocess.DEVNULL, stdout=stdout)
    try:
        return process.wait(COMMAND_S_MAX)
    except subprocess.TimeoutExpired as error:
        raise HarchError("E0801", f"`{command}` did not end within {COMMAND_S_MAX:g} s") from error
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GOES_S)
