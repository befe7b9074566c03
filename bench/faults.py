"""What remains after faults? Flipped bits in every store, kill -9 of hub and SENTINEL, errors inside of events.

Each part is a module `bench/faults_PART.py` with `measure(verdict)`. `--parts` picks some. A goal that no part has
measured is in the verdict all the same, as `"got": null, "met": false`: silence is no success.
"""

from __future__ import annotations

import argparse
import importlib
import traceback

from verdict import Verdict, conditions

Goal = tuple[str, str]

# What each part answers for, in the order of the issue that asked for it.
PARTS: dict[str, tuple[Goal, ...]] = {
    "stores": (("faults_silent_of_500", "== 0"),),
    "kills": (
        ("kills_of_sentinel_and_hub", ">= 100"),
        ("kills_of_sentinel_and_hub_violations", "== 0"),
    ),
    "events": (
        ("random_events", ">= 20000"),
        ("random_events_20000_books_unequal_disk", "== 0"),
    ),
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=tuple(PARTS), help="what to measure")
    chosen = options.parse_args()
    verdict = Verdict("faults")
    print(f"conditions: {conditions()}", flush=True)
    for part, goals in PARTS.items():
        if part in chosen.parts:
            measure(part, verdict)
        for name, wanted in goals:
            if name not in verdict.names:
                print(f"{part}: {name} was not measured", flush=True)
                verdict.not_measured(name, wanted)
    verdict.print()


def measure(part: str, verdict: Verdict) -> None:
    """A part that fails costs its own goals, and no other part's."""
    try:
        importlib.import_module(f"faults_{part}").measure(verdict)
    except Exception:  # noqa: BLE001 - told here, and in the verdict by the goals that are missing
        traceback.print_exc()


if __name__ == "__main__":
    main()
