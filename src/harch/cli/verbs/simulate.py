"""`harch simulate`: replay and what-if, on the same code as the real scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harch.cli.options import fleet_option
from harch.cli.plot import TERMINAL, PlotCommand, PlotTarget, plot_option
from harch.cli.plot import plot as draw_plot
from harch.cli.remote import json_option
from harch.cli.verb_group import VerbGroup

if TYPE_CHECKING:
    from harch.cli.views.chart import ChartPanel
    from harch.simulate.carbon import CarbonOutcome
    from harch.simulate.fleet_replay import FleetReplay
    from harch.simulate.placement import HistorySource, Policy
    from harch.simulate.policies import FleetPolicy

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_PLACEMENT_POLICIES = ("harch", "fgd", "bestfit", "dotprod", "packing", "random")
_FLEET_POLICIES = ("harch", "fifo", "binpack", "drf", "blind")


@click.group("simulate", help="Replay work on a fleet with the real scheduler.", cls=VerbGroup)
def command() -> None:
    pass


@command.command()
@click.option(
    "--nodes", metavar="FILE", required=True, type=_FILE, help="Node list: sn,cpu_milli,memory_mib,gpu,model."
)
@click.option(
    "--pods",
    metavar="FILE",
    required=True,
    type=_FILE,
    help="Requests: name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec.",
)
@click.option(
    "--policy", type=click.Choice(_PLACEMENT_POLICIES), default="harch", show_default=True, help="Placement policy."
)
@click.option(
    "--load", metavar="X", type=float, default=1.0, show_default=True, help="Arriving GPU demand, relative to capacity."
)
@click.option(
    "--seed",
    metavar="N",
    type=int,
    default=42,
    show_default=True,
    help="Seed for the order of arrivals and equal nodes.",
)
@click.option(
    "--history",
    type=click.Choice(["trace", "online"]),
    default="trace",
    show_default=True,
    help="What harch knows of the mix: the whole trace, as FGD does, or past arrivals.",
)
@json_option
def placement(
    nodes: Path, pods: Path, policy: Policy, load: float, seed: int, history: HistorySource, as_json: bool
) -> None:
    """Fill a fleet with a trace: arrivals only.

    Requests arrive one by one, nothing departs and refused ones are lost, as in the published comparisons. Allocation
    counts allocated GPUs, not busy GPUs.
    """
    from harch.cli.output import emit_json
    from harch.cli.views.table import TableColumn, table
    from harch.simulate.placement import read_nodes, read_requests, simulate_placement

    node_list = read_nodes(nodes)
    requests = read_requests(pods, node_list.models)
    with _progress("placing arrivals", as_json) as progress:
        result = simulate_placement(
            node_list, requests, policy=policy, load=load, seed=seed, history=history, progress=progress
        )
    if as_json:
        emit_json(result.as_dict())
    else:
        table(
            (
                TableColumn("METRIC"),
                TableColumn("VALUE"),
            ),
            result.as_dict().items(),
        )


@command.command(cls=PlotCommand)
@fleet_option
@click.option(
    "--workload",
    metavar="SOURCE",
    default="gen:saturated",
    show_default=True,
    help="gen:MIX (shipped, or the path of a TOML file), or the path of a trace in CSV.",
)
@click.option(
    "--policy",
    type=click.Choice(_FLEET_POLICIES),
    default="harch",
    show_default=True,
    help="Scheduling policy; blind is harch without topology awareness.",
)
@click.option("--hours", metavar="N", type=float, help="Hours to replay (default: the whole workload).")
@click.option("--seed", metavar="N", type=int, default=42, show_default=True, help="Seed of the generated arrivals.")
@plot_option("Draw the allocation of every hub by hour, or write it to a PNG or SVG file.")
@json_option
def fleet(
    fleet: str,
    workload: str,
    policy: FleetPolicy,
    hours: float | None,
    seed: int,
    plot: PlotTarget | None,
    as_json: bool,
) -> None:
    """Replay arrivals, departures, gangs, queueing and preemption over all hubs.

    Times, utilisation, slowdowns and the moves between hubs are modelled; the decisions are the real scheduler's.
    """
    from harch.cli.output import emit_json
    from harch.cli.process import open_fleet
    from harch.simulate.fleet import open_workload, replay_fleet, report

    loaded = open_fleet(fleet)
    jobs = open_workload(workload, loaded, hours=hours, seed=seed)
    with _progress("replaying hours", as_json) as progress:
        replay = replay_fleet(loaded, jobs, policy=policy, progress=progress)
    result = report(loaded, jobs, replay, policy=policy, seed=seed)
    if plot is not None and not (as_json and plot == TERMINAL):
        title = f"{loaded.name}, {jobs.name}, policy {policy}"
        draw_plot(plot, [_fleet_panel(replay, jobs.hours)], title=title, note="simulated; durations are modelled")
    if as_json:
        emit_json(result)
    else:
        _show_fleet(result)


@command.command(cls=PlotCommand)
@click.argument("scenario")
@click.option("--days", metavar="N", type=click.IntRange(1, 366), help="Days to replay of each week (default: all).")
@plot_option("Draw the power of the first week, or write it to a PNG or SVG file.")
@json_option
def carbon(scenario: str, days: int | None, plot: PlotTarget | None, as_json: bool) -> None:
    """Replay a carbon scenario: naive, planned, and planned with a perfect forecast.

    SCENARIO is shipped (onsite-124, grid-only, full-house-94) or the path of a TOML file. Everything is modelled; which
    GPUs work gets is decided by the real scheduler, where and when by the real planner.
    """
    from harch.cli.output import emit_json
    from harch.cli.process import open_fleet
    from harch.simulate.carbon import simulate_carbon
    from harch.simulate.carbon_scenario import load_scenario, with_days

    loaded = load_scenario(scenario)
    loaded = loaded if days is None else with_days(loaded, days)
    with _progress("replaying weeks", as_json) as progress:
        outcome = simulate_carbon(open_fleet(loaded.fleet), loaded, progress=progress)
    if plot is not None and not (as_json and plot == TERMINAL):
        title, note = str(outcome.report["scenario"]), f"modelled, {outcome.report['evidence']}"
        draw_plot(plot, _carbon_panels(outcome), title=title, note=note, across=len(outcome.hourly))
    if as_json:
        emit_json(outcome.report)
    else:
        _show_carbon(outcome.report)


def _show_carbon(report: dict[str, object]) -> None:
    from harch.cli.views.table import TableColumn, table

    cases = report["cases"]
    flat: list[tuple[str, object]] = []
    for name, value in report.items():
        if name != "cases":
            flat += _flattened(name, value)
    for number, case in enumerate(cases if isinstance(cases, list) else [], start=1):
        flat += [pair for key, value in case.items() if key != "weeks" for pair in _flattened(f"{number}.{key}", value)]
    table((TableColumn("METRIC"), TableColumn("VALUE")), flat)  # both always: a name without its value says nothing


def _show_fleet(result: dict[str, object]) -> None:
    from harch.cli.views.table import TableColumn, table

    flat: list[tuple[str, object]] = []
    for name, value in result.items():
        flat += _flattened(name, value)
    table((TableColumn("METRIC"), TableColumn("VALUE")), flat)  # both always: a name without its value says nothing


def _flattened(name: str, value: object) -> list[tuple[str, object]]:
    if not isinstance(value, dict):
        return [(name, "-" if value is None else value)]
    return [pair for key, inner in value.items() for pair in _flattened(f"{name}.{key}", inner)]


@contextmanager
def _progress(what: str, as_json: bool) -> Iterator[Callable[[float, float], None]]:
    """How far a replay is, on stderr. Kernels that no process on this machine has compiled yet come first."""
    from harch.cli.views.progress import progress_line
    from harch.placement.policy import kernels_available

    first = "compiling kernels, once for this machine" if kernels_available() and not _is_compiled() else what
    with progress_line(first, as_json) as line:
        yield lambda done, of: line.update(done, of, what)


def _is_compiled() -> bool:
    from harch.base.compile_once import is_compiled
    from harch.placement.policy.compiled import SOURCES

    return is_compiled("placement", SOURCES)


# Curves of replays


def _fleet_panel(replay: FleetReplay, hours: float) -> ChartPanel:
    """Mean GPUs held per hour of the replay, in % of each hub's."""
    from harch.cli.views.chart import ChartCurve, ChartPanel

    curves = []
    for name, hub in replay.tally.hubs.items():
        lengths_s = [min(3600.0, hours * 3600 - 3600 * hour) for hour in range(len(hub.held_hourly_gpu_s))]
        shares = [
            100 * held / (hub.hub.gpu_count * length)
            for held, length in zip(hub.held_hourly_gpu_s, lengths_s, strict=True)
        ]
        curves.append(ChartCurve(name, [(3600.0 * (hour + 0.5), share) for hour, share in enumerate(shares)]))
    return ChartPanel(
        curves,
        "GPU allocation by hub",
        "%",
        "allocation",
        zero_based=True,
        between=(0.0, hours * 3600),
        is_elapsed=True,
    )


def _carbon_panels(outcome: CarbonOutcome) -> list[ChartPanel]:
    """Power of the first week: a row per policy, a column per case."""
    from harch.cli.views.chart import ChartCurve, ChartPanel
    from harch.simulate.carbon import POLICIES

    cases: Any = outcome.report["cases"]
    panels = []
    for policy in POLICIES:
        for case, hourly in zip(cases, outcome.hourly, strict=True):
            begin = datetime.fromisoformat(f"{case['weeks'][0]['first_day']}T00:00:00+00:00").timestamp()
            curves = [
                ChartCurve(name, [(begin + 3600 * hour, hourly[policy][hour][part]) for hour in sorted(hourly[policy])])
                for part, name in enumerate(("on site", "grid"))
            ]
            requested, g_per_kwh = 100 * case["utilisation_asked"], case["policies"][policy]["g_per_kwh"]
            title = f"{policy}, {requested:.0f} % requested: {g_per_kwh} g/kWh over all weeks"
            panels.append(ChartPanel(curves, title, "kW", "power", zero_based=True))
    return panels
