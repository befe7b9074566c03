"""How do logs, traces and questions over hubs do? All parts of `make bench-telemetry`, one process each, one verdict.

Each part is a program of its own, `bench/telemetry_NAME.py`, that ends with the JSON line of its goals. `--parts` picks
some; what stands behind `--` goes to all of them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from verdict import Verdict, conditions

PARTS = ("ingest", "logs", "logql", "traces", "overhead", "federated")
_HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", default=",".join(PARTS))
    options, more = parser.parse_known_args()
    print(conditions())
    verdict = Verdict("telemetry")
    failed = []
    for part in options.parts.split(","):
        print(f"\n{part}", flush=True)
        found = _goals(_HERE / f"telemetry_{part}.py", [one for one in more if one != "--"])
        if found is None:
            failed.append(part)
        else:
            verdict.goals += [{**goal, "name": f"{part}: {goal['name']}"} for goal in found]
    verdict.goal("parts that did not end", "== 0", len(failed))
    verdict.print()


def _goals(program: Path, arguments: list[str]) -> list[dict[str, object]] | None:
    """What a part says in its last line; its other lines are shown as they come. None where it failed."""
    last = ""
    with subprocess.Popen([sys.executable, str(program), *arguments], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if not line.startswith('{"bench"'):
                print(f"  {line}", end="", flush=True)
            last = line
    if running.returncode != 0:
        print(f"  ended with {running.returncode}")
        return None
    goals: list[dict[str, object]] = json.loads(last)["goals"]
    return goals


if __name__ == "__main__":
    main()
