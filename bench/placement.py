"""How full does the placement policy keep a fleet, against the best published policy, and how fast does it decide?

Replays the public openb traces (arrivals only, and with departures) beside our own replica of FGD and the published
figures, measures decisions at 10,000 GPUs, and replays the saturated fleet with gangs and queues (`placement_fleet`)
and an overloaded hub (`placement_overload`).
The traces are not part of HarchOS: name their folder with `--data` or HARCH_PLACEMENT_DATA.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

import placement_fleet
from harch.placement.policy.engine import warm
from harch.simulate.placement import (
    HistorySource,
    Policy,
    arrivals,
    new_placer,
    read_nodes,
    read_requests,
    replay,
    simulate_placement,
)
from placement_data import (
    LARGE_NODES_FILE,
    NODES_FILE,
    PUBLISHED_FILE,
    TRACES,
    large_nodes,
    synthetic_hubs,
    trace_file,
)
from placement_departures import Outcome, Refused, Setting, depart_and_arrive
from placement_overload import overload
from placement_speed import measure
from verdict import Verdict, conditions

LOADS = (0.9, 1.0, 1.1, 1.3)
SEEDS = tuple(range(42, 52))  # those of the published figures
QUICK_HOURS = 48.0  # of the saturated fleet
LARGE_FLEET_SEEDS = (42, 43, 44)
TRACE_PARTS = ("allocation", "fleets", "departures", "speed")
PARTS = (*TRACE_PARTS, *placement_fleet.PARTS, "overload")
DEPARTURE_SEEDS = (110, 111)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    default = os.environ.get("HARCH_PLACEMENT_DATA", str(Path(__file__).parents[2] / "shared/data/placement"))
    options.add_argument("--data", type=Path, default=Path(default), help="folder of the public trace files")
    options.add_argument("--quick", action="store_true", help="two seeds and two traces: a look, not a measurement")
    options.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure")
    options.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options.add_argument("--kept", type=Path, help="folder for finished replays of the saturated fleet")
    options.add_argument("--report", type=Path, help="also writes everything that is printed to this file")
    chosen = options.parse_args()
    missing = [name for name in (NODES_FILE, PUBLISHED_FILE, LARGE_NODES_FILE) if not (chosen.data / name).is_file()]
    missing += [name for name in map(trace_file, TRACES) if not (chosen.data / name).is_file()]
    if missing and not set(chosen.parts).isdisjoint(TRACE_PARTS):
        print(f"error: no {', '.join(missing)} in {chosen.data}", file=sys.stderr)
        print("\nhint: python bench/placement.py --data FOLDER, or set HARCH_PLACEMENT_DATA", file=sys.stderr)
        sys.exit(2)
    seeds, traces = (SEEDS[:2], TRACES[:2]) if chosen.quick else (SEEDS, TRACES)
    report = Report()
    warm()
    report.line(f"Conditions: {conditions()}; seeds {seeds[0]} to {seeds[-1]}; sequence seed fixed in the code.")
    verdict = Verdict("placement")
    if "allocation" in chosen.parts:
        allocation(chosen.data, traces, seeds, chosen.processes, report, verdict)
    if "fleets" in chosen.parts:
        large_fleet(chosen.data, seeds[: len(LARGE_FLEET_SEEDS)], report, verdict)
    if "departures" in chosen.parts:
        departures(chosen.data, traces, DEPARTURE_SEEDS, chosen.processes, report, verdict)
    if "speed" in chosen.parts:
        speed(chosen.data, report, verdict)
    if "saturated" in chosen.parts:
        hours = QUICK_HOURS if chosen.quick else None
        placement_fleet.saturated(verdict, report.line, hours=hours, kept=chosen.kept)
    if "topology" in chosen.parts:
        placement_fleet.topology(verdict, report.line, kept=chosen.kept)
    if "rounds" in chosen.parts:
        placement_fleet.rounds(verdict, report.line)
    if "overload" in chosen.parts:
        overload(verdict, report.line)
    if chosen.report:
        chosen.report.write_text("\n".join(report.lines) + "\n")
    verdict.print()


class Report:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str = "") -> None:
        self.lines.append(text)
        print(text, flush=True)

    def table(self, *rows: tuple[object, ...]) -> None:
        self.line()
        for index, row in enumerate(rows):
            self.line("|" + "|".join(f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in row) + "|")
            if index == 0:
                self.line("|" + "---|" * len(row))
        self.line()


# Allocation on the openb traces


@dataclass(frozen=True)
class Run:
    data: Path
    trace: str
    seed: int
    policy: Policy
    history: HistorySource = "trace"


def curve(run: Run) -> list[float]:
    """Allocation in % at each of `LOADS`."""
    nodes = read_nodes(run.data / NODES_FILE)
    trace = read_requests(run.data / trace_file(run.trace), nodes.models)
    placer, _, before_each = new_placer(nodes, trace, policy=run.policy, seed=run.seed, history=run.history)
    come = arrivals(trace, nodes.gpus * 1000, max(LOADS), run.seed)
    outcome = replay(placer, come, nodes.gpus, before_each=before_each)
    return [outcome.allocation_pct(load) for load in LOADS]


def published_means(data: Path, policy: str = "06-FGD") -> dict[str, list[float]]:
    found: dict[str, list[list[float]]] = {}
    with (data / PUBLISHED_FILE).open(newline="") as file:
        for row in csv.DictReader(file):
            if row["sc_policy"] == policy:
                values = [float(row[str(round(100 * load))]) for load in LOADS]
                found.setdefault(row["workload"].removeprefix("openb_pod_list_"), []).append(values)
    return {trace: np.mean(rows, axis=0).tolist() for trace, rows in found.items()}


def allocation(
    data: Path, traces: tuple[str, ...], seeds: tuple[int, ...], processes: int, report: Report, verdict: Verdict
) -> None:
    kinds: tuple[tuple[Policy, HistorySource], ...] = (("harch", "trace"), ("fgd", "trace"), ("harch", "online"))
    runs = [Run(data, trace, seed, *kind) for trace in traces for seed in seeds for kind in kinds]
    with ProcessPoolExecutor(max(1, processes)) as pool:
        curves = dict(zip(runs, pool.map(curve, runs), strict=True))
    published = published_means(data)

    def mean(trace: str, kind: tuple[Policy, HistorySource]) -> list[float]:
        return np.mean([curves[Run(data, trace, seed, *kind)] for seed in seeds], axis=0).tolist()

    ours, replica, online = ({trace: mean(trace, kind) for trace in traces} for kind in kinds)
    report.line("\n### Allocation in %, means over the seeds\n")
    report.line("Each cell: FGD published / FGD replica / **policy** / policy that learns online from nothing.")
    head = ("trace", *(f"{load:.0%} arrived" for load in LOADS))
    rows: list[tuple[object, ...]] = []
    for trace in traces:
        cells = zip(published[trace], replica[trace], ours[trace], online[trace], strict=True)
        rows.append((trace, *(f"{p:.2f} / {r:.2f} / **{o:.2f}** / {n:.2f}" for p, r, o, n in cells)))
    report.table(head, *rows)
    report.line("Paired gain over the replica at 100 %, same arrivals (least, mean, most):")
    paired = [("trace", "least", "mean", "most")]
    for trace in traces:
        gains = [
            curves[Run(data, trace, seed, *kinds[0])][1] - curves[Run(data, trace, seed, *kinds[1])][1]
            for seed in seeds
        ]
        paired.append((trace, min(gains), statistics.mean(gains), max(gains)))
    report.table(*paired)
    gains_at = [[ours[trace][index] - published[trace][index] for trace in traces] for index in range(len(LOADS))]
    verdict.goal("least gain over published FGD at 100 % on any trace", "> 0", min(gains_at[1]), "points")
    verdict.goal("median gain over published FGD at 100 %", ">= 0.9", statistics.median(gains_at[1]), "points")
    verdict.goal("allocation of default at 100 %", ">= 95.9", ours["default"][1], "%")
    verdict.goal("least gain over published FGD at 110 % on any trace", "> 0", min(gains_at[2]), "points")
    verdict.goal("least gain over published FGD at 130 % on any trace", "> 0", min(gains_at[3]), "points")
    verdict.goal("least gain over published FGD at 90 % on any trace", ">= -0.05", min(gains_at[0]), "points")
    distance = max(abs(replica[trace][1] - published[trace][1]) for trace in traces)
    verdict.goal("largest distance of the FGD replica from published at 100 %", "<= 0.4", distance, "points")


# Another fleet, and speed at 10,000 GPUs


def large_fleet(data: Path, seeds: tuple[int, ...], report: Report, verdict: Verdict) -> None:
    report.line("### Other fleets: requests of openb default at 100 % (same seeds for both policies)")
    rows: list[tuple[object, ...]] = [("fleet", "nodes", "GPUs", "FGD replica %", "policy %")]
    for name, (nodes, trace) in (("2026 node list", large_nodes(data)), ("synthetic hubs", synthetic_hubs(data))):
        means = []
        for policy in ("fgd", "harch"):
            results = [simulate_placement(nodes, trace, policy=policy, load=1.0, seed=seed) for seed in seeds]
            means.append(statistics.mean(result.gpu_allocation_pct for result in results))
        rows.append((name, len(nodes.shapes), nodes.gpus, *means))
        verdict.goal(f"gain over the FGD replica at 100 %, {name}", "> 0", means[1] - means[0], "points")
    report.table(*rows)


def departures(
    data: Path, traces: tuple[str, ...], seeds: tuple[int, ...], processes: int, report: Report, verdict: Verdict
) -> None:
    """Every second node, load 1.2, stays of mean 1; measured from 2 to 4 mean stays. The policy learns online."""
    policies = ("bestfit", "fgd", "harch")
    ways: tuple[Refused, ...] = ("lost", "waits")
    runs = [(data, *run) for run in product(traces, ways, policies, seeds)]
    with ProcessPoolExecutor(max(1, processes)) as pool:
        outcomes = dict(zip(runs, pool.map(departures_run, runs), strict=True))
    report.line("### With departures: allocation in %, requests refused at arrival, of these naming a model\n")
    report.line("Each cell: mean over the seeds. Gain: policy minus FGD replica, same arrivals (least, mean, most).")
    rows: list[tuple[object, ...]] = [("trace", "refused work", "best fit", "FGD replica", "policy", "gain")]
    gains: dict[Refused, list[float]] = {way: [] for way in ways}
    for trace, way in product(traces, ways):
        found = {name: [outcomes[data, trace, way, name, seed] for seed in seeds] for name in policies}
        cells = [_cell(found[name]) for name in policies]
        paired = [
            ours.allocation_pct - theirs.allocation_pct
            for ours, theirs in zip(found["harch"], found["fgd"], strict=True)
        ]
        gains[way].append(statistics.mean(paired))
        spread = f"{min(paired):+.2f}, {statistics.mean(paired):+.2f}, {max(paired):+.2f}"
        rows.append((trace, way, *cells, spread))
    report.table(*rows)
    for way in ways:
        verdict.goal(f"departures, refused work {way}: median gain over FGD", "> 0", statistics.median(gains[way]))
        verdict.goal(f"departures, refused work {way}: least gain over FGD", "> 0", min(gains[way]))


def departures_run(run: tuple[Path, str, Refused, str, int]) -> Outcome:
    data, trace, way, policy, seed = run
    nodes = read_nodes(data / NODES_FILE)
    requests = read_requests(data / trace_file(trace), nodes.models)
    return depart_and_arrive(nodes, requests, policy, seed, Setting(refused=way))


def _cell(outcomes: list[Outcome]) -> str:
    allocation_pct, refused, named_refused = (
        statistics.mean(getattr(outcome, name) for outcome in outcomes)
        for name in ("allocation_pct", "refused", "named_refused")
    )
    return f"{allocation_pct:.2f} ({refused:,.0f}, {named_refused:,.0f})"


def speed(data: Path, report: Report, verdict: Verdict) -> None:
    report.line("### Speed of one thread at 10,000 GPUs\n")
    report.line("`20 hubs` is how HarchOS runs: an engine per hub, home first. `one engine` decides over all nodes.")
    names = ("fleet", "policy", "per s", "ratio to FGD", "p50 µs (CPU)", "p99 µs (CPU)", "p99 µs (wall)")
    rows: list[tuple[object, ...]] = [(*names, "slowest ms (wall)", "MB", "allocation %", "load average")]
    for fleet, (nodes, trace) in (("2026 node list", large_nodes(data)), ("synthetic hubs", synthetic_hubs(data))):
        for name, got in measure(nodes, trace, SEEDS[0]).items():
            times = (got.p50_us, got.p99_us, got.p99_wall_us, got.slowest_wall_ms)
            rates = (f"{got.per_s:,.0f}", got.ratio)
            rows.append((fleet, name, *rates, *times, got.memory_mb, got.allocation_pct, got.load_average))
            if name != "FGD":
                verdict.goal(f"speed against FGD over all nodes, {fleet}, {name}", ">= 3", got.ratio, "times")
                verdict.goal(f"p99 of one decision, {fleet}, {name}", "< 5", got.p99_wall_us / 1000, "ms")
    report.table(*rows)


if __name__ == "__main__":
    main()
