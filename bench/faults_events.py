"""Are the books right after every event, if any call inside of it may fail? Real driver and store, random worlds.

Each world is a hub with two agents and a peer: events of every kind, and work with every field of the schema. In three
of ten events an error is raised at a random call inside; now and then the disk refuses a write, or nothing can be sent.
After every event the machine is compared with a fresh one that reads the same disk: what is held, what waits, leases,
quotas, hardware, data. Runs alone (`--events`, `--seed`), or as a part of bench/faults.py.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

from harch.testing.faulty_hub import FaultyHub
from verdict import Verdict, conditions

EVENTS, EVENTS_PER_WORLD = 20_000, 500
SEED = 2026
SHOWN_MAX = 10


def measure(verdict: Verdict, events: int = EVENTS, seed: int = SEED) -> None:
    logging.getLogger("harch.hub").setLevel(logging.CRITICAL + 1)  # thousands of stacks that were asked for
    began = time.perf_counter()
    outcomes: Counter[str] = Counter()
    places: set[str] = set()
    unequal = 0
    while sum(outcomes.values()) < events:
        count = min(EVENTS_PER_WORLD, events - sum(outcomes.values()))
        hub, wrong = asyncio.run(_world(seed, count))
        for line in wrong[: max(0, SHOWN_MAX - unequal)]:
            print(f"  seed {seed}: {line[:500]}", flush=True)
        outcomes, unequal, seed = outcomes + hub.outcomes, unequal + len(wrong), seed + 1
        places |= hub.places
    total, took_s = sum(outcomes.values()), time.perf_counter() - began
    told = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    print(f"events: {total} in {took_s:.0f} s: {told}; errors at {len(places)} different functions", flush=True)
    verdict.goal("random_events", f">= {EVENTS}", total)
    verdict.goal("random_events_20000_books_unequal_disk", "== 0", unequal)


async def _world(seed: int, count: int) -> tuple[FaultyHub, list[str]]:
    """A hub that is wrong once is not followed any further: everything after it would be counted twice."""
    with tempfile.TemporaryDirectory(prefix="harch-faults-") as folder:
        hub = FaultyHub(Path(folder), Random(seed))
        wrong: list[str] = []
        for step in range(count):
            found = await hub.step()
            if found:
                wrong.append(f"step {step}: {'; '.join(found)}")
                break
        await hub.close()
        return hub, wrong


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--events", type=int, default=EVENTS)
    options.add_argument("--seed", type=int, default=SEED)
    chosen = options.parse_args()
    print(f"conditions: {conditions()}", flush=True)
    verdict = Verdict("faults_events")
    measure(verdict, chosen.events, chosen.seed)
    verdict.print()


if __name__ == "__main__":
    main()
