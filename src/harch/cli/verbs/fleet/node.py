"""`harch node` and `harch defrag`: nodes, GPUs, links and cooling as they are now; take them out of use and back;
moves that make room.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from harch.base.errors import EXIT_ERROR, EXIT_INFEASIBLE, EXIT_OK
from harch.cli.listing import Listing, Sortable, list_options
from harch.cli.options import check_can_prompt, confirmed, reason_option, renamed, yes_option
from harch.cli.remote import connect, hub_option, remote_options
from harch.cli.verb_group import VerbGroup
from harch.cli.views.table import TableColumn

if TYPE_CHECKING:
    from harch.sdk.hardware_types import Condition, CoolingZone, Defragmentation, Node, Topology


# `harch node`: nodes, GPUs, links and cooling as they are now; take them out of use and back.


T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_WAIT_EVERY_S = 0.5
_NODES = (
    TableColumn("NODE"),
    TableColumn("RACK", 7),
    TableColumn("ROW", 11),
    TableColumn("MODEL", 3),
    TableColumn("STATE"),
    TableColumn("GPUS FREE", 1),
    TableColumn("UNHEALTHY", 5),
    TableColumn("CPUS", 6),
    TableColumn("MEMORY", 8),
    TableColumn("RACK KW", 9),
    TableColumn("ZONE KW", 10),
    TableColumn("NOTES", 2, takes_rest=True),
)
_ZONES = (
    TableColumn("ZONE"),
    TableColumn("COOLING KW"),
    TableColumn("RATED KW", 4),
    TableColumn("HEAT KW", 2),
    TableColumn("HEADROOM KW", 1),
    TableColumn("RACKS", 5),
    TableColumn("NOTES", 3, takes_rest=True),
)


def _reason(command: F) -> F:
    return reason_option()(renamed("--why", "--reason")(command))


class _Amount(click.ParamType[float]):
    """A number, or `full` (NaN inside, because click reads None as absent): as the fleet file says."""

    name = "amount"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if value == "full":
            return float("nan")
        try:
            return float(str(value))
        except ValueError:
            self.fail(f"`{value}` is neither a number nor `full`", param, ctx)


@click.group(cls=VerbGroup)
def command() -> None:
    """Show nodes, GPUs, links and cooling; cordon, drain and uncordon them.

    Changes need the role `operator`. Each applies from the next decision on, evicts nothing (but `drain`) and survives
    restarts of the hub.
    """


@command.command("ls")
@click.option("--rack", metavar="ID", help="Only nodes of this rack.")
@click.option("--row", metavar="NAME", help="Only nodes of this row.")
@click.option("--model", metavar="MODEL", help="Only nodes with this GPU model.")
@click.option("--cordoned", is_flag=True, help="Only cordoned nodes.")
@hub_option
@list_options
def ls(rack: str | None, row: str | None, model: str | None, cordoned: bool, hub: str | None, listing: Listing) -> None:
    """List the nodes of a hub with free resources, state and problems."""
    with connect(hub) as client:
        nodes = client.nodes.list(rack=rack, row=row, model=model, cordoned=cordoned or None)
    listing.show(nodes, _NODES, _node_row, name=lambda node: node.id)


def _node_row(node: Node) -> tuple[object, ...]:
    return (
        node.id,
        node.rack_id,
        node.row,
        node.model,
        _state(node),
        Sortable(f"{node.gpus_free} of {node.gpus_total}", node.gpus_free),
        node.gpus_unhealthy or "-",
        f"{node.cpus_free:g}",
        f"{node.memory_gb_free:g} GB",
        f"{node.rack_power_kw_free:.1f}",
        f"{node.zone_cooling_kw_free:.1f}",
        "; ".join(_words(condition) for condition in node.conditions),
    )


@command.command("cordon")
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@_reason
@remote_options
def cordon(nodes: tuple[str, ...], reason: str, hub: str | None, as_json: bool) -> None:
    """Cordon nodes: no new work starts there, running work continues."""
    with connect(hub) as client:
        changed = [client.nodes.cordon(node, why=reason) for node in nodes]
    _say(as_json, changed, lambda node: f"cordoned {node.id}; {_tasks(node)} still running")


@command.command("uncordon")
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@remote_options
def uncordon(nodes: tuple[str, ...], hub: str | None, as_json: bool) -> None:
    """Reopen cordoned or drained nodes."""
    with connect(hub) as client:
        changed = [client.nodes.uncordon(node) for node in nodes]
    _say(as_json, changed, lambda node: f"reopened {node.id}; {node.gpus_free} of {node.gpus_total} GPUs free")


@command.command("drain")
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@_reason
@click.option("--wait", is_flag=True, help="Wait until nothing runs there.")
@remote_options
def drain(nodes: tuple[str, ...], reason: str, wait: bool, hub: str | None, as_json: bool) -> None:
    """Cordon nodes and move their work elsewhere.

    It is stopped gracefully, requeued and started elsewhere, from its own checkpoint folder.
    """
    with connect(hub) as client:
        changed = [client.nodes.drain(node, why=reason) for node in nodes]
        while wait and any(node.tasks for node in changed):
            time.sleep(_WAIT_EVERY_S)
            changed = [client.nodes.get(node) for node in nodes]
    _say(as_json, changed, lambda node: f"drained {node.id}; {_tasks(node)} still there")


@command.command("mark")
@click.argument("gpus", metavar="GPU...", nargs=-1, required=True)
@click.option("--unhealthy", is_flag=True, help="Give these GPUs no new work.")
@click.option("--healthy", is_flag=True, help="Use these GPUs again.")
@_reason
@remote_options
def mark(gpus: tuple[str, ...], unhealthy: bool, healthy: bool, reason: str, hub: str | None, as_json: bool) -> None:
    """Mark GPUs as unhealthy, or as healthy again; running work continues."""
    if unhealthy == healthy:
        raise click.UsageError("pass either --unhealthy or --healthy")
    word = "healthy" if healthy else "unhealthy"
    with connect(hub) as client:
        changed = [client.nodes.mark(gpu, healthy=healthy, why=reason) for gpu in gpus]
    _say(as_json, changed, lambda gpu: f"marked {gpu.id} as {word}, now {gpu.status}")


@command.command("cool")
@click.argument("zone", required=False)
@click.argument("kilowatts", metavar="KW", type=_Amount(), required=False)
@_reason
@hub_option
@list_options
def cool(zone: str | None, kilowatts: float | None, reason: str, hub: str | None, listing: Listing) -> None:
    """Set the heat that a cooling zone can remove, in kW; without arguments, list the zones.

    `full` is the value of the fleet file. Less than the current heat stops new work there and evicts nothing.
    """
    if zone is not None and kilowatts is None:
        raise click.UsageError("give a number of kW, or `full`")
    with connect(hub) as client:
        if zone is None or kilowatts is None:
            listing.show(client.nodes.cooling_zones(), _ZONES, _zone_row, name=lambda zone: zone.id)
            return
        changed = client.nodes.set_cooling(zone, _unless_full(kilowatts), why=reason)
    _say(
        listing.output == "json",
        [changed],
        lambda zone: f"{zone.id} removes {zone.heat_kw_max:g} kW now; {zone.cooling_kw_free:.1f} kW to spare",
    )


@command.command("link")
@click.argument("subject", metavar="NODE|RACK")
@click.argument("factor", metavar="FACTOR", type=_Amount())
@_reason
@remote_options
def link(subject: str, factor: float, reason: str, hub: str | None, as_json: bool) -> None:
    """Set the health of a link: the NVLink of a node, or the uplink of a rack.

    FACTOR is a share of its bandwidth, e.g. 0.5, or `full`. A node with failed NVLink (0) still has PCIe.
    """
    with connect(hub) as client:
        if subject in {rack.id for rack in client.nodes.racks()}:
            rack = client.nodes.set_uplink(subject, _unless_full(factor), why=reason)
            _say(as_json, [rack], lambda rack: f"the uplink of {rack.id} works at {rack.uplink_factor:g}")
        else:
            node = client.nodes.set_nvlink(subject, _unless_full(factor), why=reason)
            _say(as_json, [node], lambda node: f"the NVLink of {node.id} works at {node.nvlink_factor:g}")


@command.command("topology")
@remote_options
def topology(hub: str | None, as_json: bool) -> None:
    """Show racks, nodes and NVLink islands, with modelled bandwidth."""
    from harch.cli.output import emit_json

    with connect(hub) as client:
        view = client.nodes.topology()
    if as_json:
        emit_json(view)
    else:
        _show_topology(view)


def _show_topology(view: Topology) -> None:
    from harch.cli.output import clean
    from harch.cli.views.table import table

    rows = [
        (
            rack.row,
            rack.rack_id,
            node.node_id,
            island.island,
            f"{island.gpus_idle} of {len(island.gpu_ids)}",
            f"{island.gb_per_s:.0f}" if island.gb_per_s else "-",
            f"{node.nvlink_factor:g}",
            f"{rack.uplink_factor:g}",
        )
        for rack in view.racks
        for node in rack.nodes
        for island in node.islands
    ]
    table(
        (
            TableColumn("ROW", 6),
            TableColumn("RACK", 2),
            TableColumn("NODE"),
            TableColumn("ISLAND"),
            TableColumn("GPUS FREE", 1, right=True),
            TableColumn("GB/S", 3, right=True),
            TableColumn("NVLINK", 4, right=True),
            TableColumn("UPLINK", 5, right=True),
        ),
        rows,
    )
    between = ", ".join(f"{clean(level)} {speed:g}" for level, speed in view.between_gb_per_s.items())
    click.echo(f"GB/s between nodes, by shared level: {between}; {clean(view.bandwidth_source)}")


def _zone_row(zone: CoolingZone) -> tuple[object, ...]:
    return (
        zone.id,
        f"{zone.heat_kw_max:g}",
        f"{zone.heat_kw_built:g}",
        f"{zone.heat_kw:.1f}",
        f"{zone.cooling_kw_free:.1f}",
        len(zone.racks),
        zone.why,
    )


def _say(as_json: bool, changed: list[T], sentence: Callable[[T], str]) -> None:
    from harch.cli.output import clean, emit_json

    if as_json:
        emit_json({"items": changed})
        return
    for item in changed:
        click.echo(clean(sentence(item)))


def _state(node: Node) -> str:
    if node.cordoned:
        return "cordoned"
    return "ready" if node.served else "no agent"


def _words(condition: Condition) -> str:
    kind = condition.kind.replace("_", " ")
    value = f" {condition.value:g}" if condition.kind in {"cooling_kw", "nvlink", "uplink"} else ""
    why = f" ({condition.why})" if condition.why else ""
    return f"{condition.subject} {kind}{value}{why}"


def _tasks(node: Node) -> str:
    return "1 task" if node.tasks == 1 else f"{node.tasks} tasks"


def _unless_full(amount: float) -> float | None:
    return None if amount != amount else amount


# `harch defrag`: which moves would make room for a waiting workload; make them.


@click.command()
@click.argument("ref", metavar="WORKLOAD")
@click.option("--apply", is_flag=True, help="Apply the moves, after confirmation.")
@yes_option
@remote_options
def defrag_command(ref: str, apply: bool, yes: bool, hub: str | None, as_json: bool) -> int:
    """Plan and apply moves that make room for a waiting workload.

    A move is a graceful stop: the workload is requeued, starts elsewhere and resumes from its own checkpoint folder.
    Exits with 3 if no moves would help. Requires the role `operator`.
    """
    from harch.cli.output import clean, emit_json

    if apply:
        check_can_prompt(yes=yes, as_json=as_json)
    with connect(hub) as client:
        plan = client.nodes.defragment(ref)
        if not as_json:
            _show(plan)
        if apply and plan.possible:
            question = f"stop {len(plan.moves)} and restart them elsewhere?"
            if not confirmed(question, yes=yes, as_json=as_json):
                return EXIT_ERROR
            plan = client.nodes.defragment(ref, apply=True)
            if not as_json:
                click.echo(f"moving: {len(plan.moves)}; `harch why {clean(ref)}` shows what is reserved for it")
    if as_json:
        emit_json(plan)
    return EXIT_OK if plan.possible else EXIT_INFEASIBLE


def _show(plan: Defragmentation) -> None:
    from harch.cli.output import clean
    from harch.cli.views.table import table

    click.echo(clean(plan.sentence))
    if not plan.possible:
        return
    table(
        (
            TableColumn("WORKLOAD"),
            TableColumn("NAME", 4),
            TableColumn("TENANT", 6),
            TableColumn("GPUS", 2, right=True),
            TableColumn("FROM", 1),
            TableColumn("FITS ON", 3),
            TableColumn("REPEATED GPU-S", 5, right=True),
        ),
        (
            (
                move.workload_id,
                move.name,
                move.tenant,
                f"{move.gpus:g}",
                ", ".join(move.from_nodes),
                ", ".join(move.to_nodes),
                f"{move.lost_gpu_s:.0f}",
            )
            for move in plan.moves
        ),
    )
    click.echo(f"frees {', '.join(map(clean, plan.nodes))} for {clean(plan.workload_id)}")
    verdict = "worth it" if plan.pays else "not worth it: more work is repeated than starts now"
    click.echo(f"{plan.lost_gpu_s:.0f} GPU-seconds are repeated; {verdict}")
