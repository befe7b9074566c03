"""What do the bytes of work cost, are they ever lost, and do they stay where they may be?

Each part is a module `bench/bytes_PART.py` with `measure(verdict, chosen)`. `--parts` picks some. A goal that no part
has measured is in the verdict all the same, as `"got": null, "met": false`. Figures of CPU and of speed mean something
on a quiet machine only; the load average is printed before each part.
"""

from __future__ import annotations

import argparse
import importlib
import os
import traceback

from bytes_goals import PARTS
from verdict import Verdict, conditions


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=tuple(PARTS), help="what to measure")
    options.add_argument("--megabytes", type=int, default=500, help="of the folders of `dedupe` and `ingest`")
    options.add_argument("--rounds", type=int, default=9, help="of `dedupe`")
    options.add_argument("--transfers", type=int, default=5, help="rounds of `transfer`")
    options.add_argument("--transfer-megabytes", type=int, default=300)
    options.add_argument("--rate-mbps", type=float, default=200.0, help="of the emulated link; 0: no limit")
    options.add_argument("--jitter-ms", type=float, default=1.0, help="of the emulated link, per way")
    options.add_argument("--cuts", type=int, default=5, help="of the link during one more transfer")
    options.add_argument("--kills", type=int, default=100, help="rounds of `kills`")
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    verdict = Verdict("bytes")
    print(f"conditions: {conditions()}", flush=True)
    for part, goals in PARTS.items():
        if part in chosen.parts:
            print(f"\n{part} (load average {os.getloadavg()[0]:.1f})", flush=True)
            measure(part, verdict, chosen)
        for goal in goals:
            if goal.name not in verdict.names:
                print(f"{part}: not measured: {goal.name}", flush=True)
                goal.not_measured(verdict)
    verdict.print()


def measure(part: str, verdict: Verdict, chosen: argparse.Namespace) -> None:
    """A part that fails costs its own goals, and no other part's."""
    try:
        importlib.import_module(f"bytes_{part}").measure(verdict, chosen)
    except Exception:  # noqa: BLE001 - told here, and in the verdict by the goals that are missing
        traceback.print_exc()


if __name__ == "__main__":
    main()
