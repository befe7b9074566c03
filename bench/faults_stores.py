"""Does any store take a lying disk at its word? 500 flipped bits and cut files over every store that HarchOS keeps.

Each store is filled and read through the product's own code; a fault hits a copy, which is then opened as a start
does. Equal to before is harmless, an error, a line in the log or a file set aside is found, all else is silent. One hub
is a real process that was killed at work. `--seed` repeats a run, `--count` makes it shorter.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

from harch.hub.keys import SecretBox
from harch.hub.store.database import Database
from harch.testing.fleet_generator import generate_blueprint
from harch.testing.fleet_writer import to_toml
from harch.testing.hub_process import HubProcess
from harch.testing.store_faults import ALL_STORES, FaultVerdict, FaultyStore, StoreBench, attempts
from harch.testing.store_faults.hub_stores import dump
from verdict import Verdict, conditions

COUNT = 500


def measure(verdict: Verdict, *, seed: int | None = None, count: int = COUNT) -> None:
    """The part of `bench/faults.py`."""
    seed = seed if seed is not None else int.from_bytes(os.urandom(4), "little")
    print(f"stores: seed {seed}", flush=True)
    began = time.perf_counter()
    found: Counter[tuple[str, str]] = Counter()
    silent = []
    with tempfile.TemporaryDirectory() as name:
        stores = (*ALL_STORES, FaultyStore("hub that was killed at work", make_live_hub, read_live_hub))
        benches = [StoreBench(store, Path(name) / str(number)) for number, store in enumerate(stores)]
        for tried in attempts(benches, random.Random(seed), count):
            found[tried.store, tried.verdict] += 1
            if tried.verdict is FaultVerdict.SILENT:
                silent.append(tried)
                print(f"SILENT {tried.store}: {tried.fault}", flush=True)
    for store in stores:
        counts = ", ".join(f"{found[store.name, one]} {one}" for one in FaultVerdict)
        print(f"{store.name}: {counts}", flush=True)
    print(f"{sum(found.values())} faults in {time.perf_counter() - began:.0f} s", flush=True)
    verdict.goal(f"faults_silent_of_{count}", "== 0", len(silent))


def make_live_hub(folder: Path) -> None:
    """A hub with its agent takes work and is killed in the middle of it."""
    home = folder.with_name("home")
    home.mkdir()
    blueprint = generate_blueprint(hub_count=1, gpu_count=64)
    hub_id = blueprint.hubs[0].name.lower()
    with HubProcess(to_toml(blueprint), hub_id, home) as hub, hub.client() as client:
        for number in range(40):
            body = {"name": f"job-{number}", "command": ["true"], "resources": {"gpus": 1}}
            client.post("/v1/workloads", json=body).raise_for_status()
        client.put("/v1/secrets/token", json={"value": "s3cr3t"})
        hub.kill_hub()
        for file in ("hub.db", "hub.db-wal", "hub.db-sums", "secrets.key"):
            if (path := home / hub_id / file).exists():
                shutil.copy2(path, folder / file)
    shutil.rmtree(home, ignore_errors=True)


def read_live_hub(folder: Path) -> object:
    database = Database(folder / "hub.db")
    try:
        secrets = database.secrets()
        opened = SecretBox(folder / "secrets.key", secrets).open("default", [name for _, name, _ in secrets])
        return dump(database), opened
    finally:
        database.close()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, help="repeat a run")
    options.add_argument("--count", type=int, default=COUNT, help="how many faults")
    chosen = options.parse_args()
    verdict = Verdict("faults_stores")
    print(f"conditions: {conditions()}", flush=True)
    measure(verdict, seed=chosen.seed, count=chosen.count)
    verdict.print()


if __name__ == "__main__":
    main()
