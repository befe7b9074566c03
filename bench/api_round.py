"""How many submissions does a hub of this source tree accept per second? One round, with whatever `harch` is imported.

Run as its own process, with PYTHONPATH set to the `src` folder of a revision: `python bench/api_round.py CONNECTIONS
SECONDS [FOLDER]`. It uses only what every revision has had, so that old ones can be measured beside the new one. Prints
one JSON object.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harch.testing.hub_process import HubProcess

try:
    from harch.testing.fleet_generator import generate_blueprint
    from harch.testing.fleet_writer import to_toml
except ImportError:  # a revision in which they stood beside the fleet file
    from harch.fleet.generate import generate_blueprint  # type: ignore[import-not-found, no-redef]
    from harch.fleet.writer import to_toml  # type: ignore[import-not-found, no-redef]

GPUS = 10_000
SETTLED_SHARE = 0.2  # of one core: then nothing is compiled or started any more
SETTLE_S_MIN, SETTLE_S_MAX = 40.0, 60.0  # the first telemetry of 10,000 GPUs is stored half a minute after the start


def main(connections: str, seconds: str, folder: str | None = None) -> None:
    blueprint = generate_blueprint(hub_count=1, gpu_count=GPUS)
    with (
        tempfile.TemporaryDirectory(dir=folder, prefix="harch-bench-") as name,
        HubProcess(to_toml(blueprint), blueprint.hubs[0].name.lower(), Path(name)) as hub,
    ):
        if hub.hub is None:
            raise RuntimeError("the hub does not run")
        settle(hub.hub.pid)
        placed, cpu_s, start = hub.event_count("workload.scheduled"), cpu_seconds(hub.hub.pid), time.perf_counter()
        words = [sys.executable, str(Path(__file__).with_name("http_load.py")), str(hub.port_base + 1), hub.key]
        found = subprocess.run([*words, connections, seconds], check=True, capture_output=True, text=True).stdout
        load = json.loads(found)
        load["placed_per_s"] = (hub.event_count("workload.scheduled") - placed) / (time.perf_counter() - start)
        load["accepted_per_s"] = load["accepted"] / load["elapsed_s"]
        load["hub_cpu_us"] = (cpu_seconds(hub.hub.pid) - cpu_s) / max(load["accepted"], 1) * 1e6
        print(json.dumps(load))


def settle(pid: int) -> None:
    """Waits until the hub and the processes that it starts are done with starting, the same for every revision."""
    began = time.monotonic()
    while time.monotonic() < began + SETTLE_S_MAX:
        before = sum(map(cpu_seconds, family(pid)))
        time.sleep(2)
        is_quiet = sum(map(cpu_seconds, family(pid))) - before < 2 * SETTLED_SHARE
        if is_quiet and time.monotonic() > began + SETTLE_S_MIN:
            return


def family(pid: int) -> list[int]:
    """A process and its children."""
    found = [pid]
    for path in Path("/proc").glob("[0-9]*"):
        fields = stat_fields(int(path.name))
        if fields and int(fields[1]) == pid:
            found.append(int(path.name))
    return found


def cpu_seconds(pid: int) -> float:
    fields = stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def stat_fields(pid: int) -> list[str]:
    """From the state on; none for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


if __name__ == "__main__":
    main(*sys.argv[1:])
