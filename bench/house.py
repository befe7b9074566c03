"""Is the house in order? Modules, cycles, folders, words, what nothing reaches, mutants, and the speed of before.

Counting takes seconds. `--parts counts` stops there; `mutants` draws 200 of them (long), `speed` compares submissions
and a replay of placement with an earlier revision, in turns on this machine (an hour with ten rounds).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import api
from placement_overload import write_trace
from verdict import Verdict, conditions

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from house.reach import unreached_of_repository
from house.source import crowded_folders, import_graph, module_cycles, read_modules, sibling_cycles
from house.walks import PAGE, STATIONS_MAX, stations_of
from house.words import read_retired, retired_names, retired_texts

ROOT = Path(__file__).parent.parent
BEFORE = "e6bf71a"  # the last revision before the house was put in order
PARTS = ("counts", "mutants", "speed")
REPLAY_JOBS = 4000


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    options.add_argument("--seed", type=int, default=int(time.time()), help="of the drawn mutants")
    options.add_argument("--against", default=BEFORE, metavar="REV", help="the revision to compare the speed with")
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--round-seconds", type=float, default=10.0)
    options.add_argument("--connections", type=int, default=64)
    options.add_argument("--folder", type=Path, default=None, help="a folder on the disk to measure")
    chosen = options.parse_args()
    verdict = Verdict("house")
    print(f"conditions: {conditions()}")
    count(verdict)
    if "mutants" in chosen.parts:
        kill_mutants(verdict, chosen.seed)
    else:
        verdict.not_measured("mutants killed of 200", ">= 90", "%")
    with tempfile.TemporaryDirectory(prefix="harch-house-") as name:
        earlier = api.source_of(chosen.against, Path(name)) if "speed" in chosen.parts else None
        compare_speed(verdict, earlier, chosen, Path(name))
    verdict.print()


def count(verdict: Verdict) -> None:
    modules = read_modules()
    graph = import_graph(modules)
    cycles = [*(", ".join(group) for group in module_cycles(graph)), *sibling_cycles(graph)]
    crowded = crowded_folders(modules.values())
    retired = read_retired()
    words = [*retired_names(modules.values(), retired), *retired_texts(modules.values(), retired)]
    unreached = unreached_of_repository(ROOT)
    for found in (cycles, [f"{folder}: {files} files" for folder, files in crowded.items()], words, unreached):
        print(*found, sep="\n", end="\n" if found else "")
    verdict.goal("modules", "<= 1000", sum(not module.is_package for module in modules.values()))
    verdict.goal("import cycles, type-only imports and sibling packages included", "== 0", len(cycles))
    verdict.goal("folders of more than 25 files", "== 0", len(crowded))
    verdict.goal("retired words in identifiers, module names, metrics, help and messages", "== 0", len(words))
    verdict.goal("modules that no entry point imports", "== 0", len(unreached))
    for flow, stations in stations_of(PAGE.read_text("utf-8")).items():
        name, goal = f"stations in the walk of {flow}", f"<= {STATIONS_MAX}"
        verdict.goal(name, goal, stations) if stations else verdict.not_measured(name, goal)


def kill_mutants(verdict: Verdict, seed: int) -> None:
    print(f"mutants: seed {seed}")
    words = [
        sys.executable,
        str(ROOT / "tests" / "mutants" / "run.py"),
        "--sample",
        "200",
        "--seed",
        str(seed),
        "--json",
    ]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    try:
        share = json.loads(done.stdout)["killed"]
    except (ValueError, KeyError):
        print(done.stderr, file=sys.stderr)
        verdict.not_measured("mutants killed of 200", ">= 90", "%")
    else:
        verdict.goal("mutants killed of 200", ">= 90", 100 * share, "%")


def compare_speed(verdict: Verdict, earlier: Path | None, chosen: argparse.Namespace, folder: Path) -> None:
    """The upper end of the 95 % interval of the ratio: below 1, this source is slower for sure."""
    names = ("submissions accepted", "placement by CPU of `harch simulate fleet`")
    if earlier is None:
        for name in names:
            verdict.not_measured(f"{name}, upper end of the ratio to {chosen.against}", ">= 1", "x")
        return
    sources = {"before": earlier, "now": ROOT / "src"}
    trace = folder / "trace.csv"
    write_trace(trace, REPLAY_JOBS)
    rates: dict[str, list[float]] = {name: [] for name in sources}
    replays: dict[str, list[float]] = {name: [] for name in sources}
    for source in sources.values():  # kernels are compiled once
        replay_cpu_s(source, trace)
    for number in range(chosen.rounds):
        for name in (*sources,) if number % 2 == 0 else (*reversed(sources),):
            rates[name].append(api.one_round(sources[name], chosen)["accepted_per_s"])
            replays[name].append(1 / replay_cpu_s(sources[name], trace))
    for name, found in zip(names, (rates, replays), strict=True):
        ratio, low, high = api.mean_ratio([new / old for new, old in zip(found["now"], found["before"], strict=True)])
        medians = ", ".join(f"{which} {statistics.median(each):.4g}" for which, each in found.items())
        print(f"{name}: {ratio:.3f} of {chosen.against} (95 %: {low:.3f} to {high:.3f}); medians {medians} per s")
        verdict.goal(f"{name}, upper end of the ratio to {chosen.against}", ">= 1", high, "x")


def replay_cpu_s(source: Path, trace: Path) -> float:
    before = getrusage(RUSAGE_CHILDREN)
    words = [sys.executable, "-m", "harch", "simulate", "fleet", "--json", "--workload", str(trace)]
    subprocess.run(words, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(source)})
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
