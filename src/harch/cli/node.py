"""`harch node`: nodes, GPUs, links and cooling as they are now; take them out of use and back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from harch.cli.remote import connect, remote_options

if TYPE_CHECKING:
    from harch.sdk.hardware_types import Condition, CoolingZone, Node, Topology

T = TypeVar("T")

_WAIT_EVERY_S = 0.5
_why = click.option("--why", default="", metavar="TEXT", help="The reason, shown wherever the change is.")


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


@click.group()
def command() -> None:
    """See nodes, GPUs, links and cooling; take them out of use and back.

    Changes need the role `operator`. Each is seen by the next decision, evicts nothing (but `drain`) and survives
    restarts of the hub.
    """


@command.command("ls")
@click.option("--rack", metavar="ID", help="Only of this rack.")
@click.option("--row", metavar="NAME", help="Only of this row.")
@click.option("--model", metavar="MODEL", help="Only with this GPU model.")
@click.option("--cordoned", is_flag=True, help="Only cordoned ones.")
@remote_options
def ls(rack: str | None, row: str | None, model: str | None, cordoned: bool, hub: str | None, as_json: bool) -> None:
    """List the nodes of a hub, with what is free, odd or out of use."""
    from harch.cli.output import emit_json, table

    with connect(hub) as client:
        nodes = client.nodes.list(rack=rack, row=row, model=model, cordoned=cordoned or None)
    if as_json:
        emit_json({"items": nodes, "total": len(nodes)})
        return
    table(
        ("NODE", "RACK", "ROW", "MODEL", "STATE", "GPUS FREE", "SICK", "CPUS", "MEMORY", "RACK KW", "ZONE KW", "NOTES"),
        (
            (
                node.id,
                node.rack_id,
                node.row,
                node.model,
                _state(node),
                f"{node.gpus_free} of {node.gpus_total}",
                node.gpus_unhealthy or "-",
                f"{node.cpus_free:g}",
                f"{node.memory_gb_free:g} GB",
                f"{node.rack_power_kw_free:.1f}",
                f"{node.zone_cooling_kw_free:.1f}",
                "; ".join(_words(condition) for condition in node.conditions),
            )
            for node in nodes
        ),
    )


@command.command("cordon")
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@_why
@remote_options
def cordon(nodes: tuple[str, ...], why: str, hub: str | None, as_json: bool) -> None:
    """Give nodes no new work; what runs there goes on."""
    with connect(hub) as client:
        changed = [client.nodes.cordon(node, why=why) for node in nodes]
    _say(as_json, changed, lambda node: f"cordoned {node.id}; {_tasks(node)} there go on")


@command.command("uncordon")
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@remote_options
def uncordon(nodes: tuple[str, ...], hub: str | None, as_json: bool) -> None:
    """Open cordoned or drained nodes again."""
    with connect(hub) as client:
        changed = [client.nodes.uncordon(node) for node in nodes]
    _say(as_json, changed, lambda node: f"opened {node.id}; {node.gpus_free} of {node.gpus_total} GPUs free")


@command.command("drain")
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@_why
@click.option("--wait", is_flag=True, help="Return only when nothing runs there any more.")
@remote_options
def drain(nodes: tuple[str, ...], why: str, wait: bool, hub: str | None, as_json: bool) -> None:
    """Cordon nodes and have their work move away.

    It is stopped with its grace, waits again and starts elsewhere, from its own checkpoint folder.
    """
    with connect(hub) as client:
        changed = [client.nodes.drain(node, why=why) for node in nodes]
        while wait and any(node.tasks for node in changed):
            time.sleep(_WAIT_EVERY_S)
            changed = [client.nodes.get(node) for node in nodes]
    _say(as_json, changed, lambda node: f"drained {node.id}; {_tasks(node)} still there")


@command.command("mark")
@click.argument("gpus", metavar="GPU...", nargs=-1, required=True)
@click.option("--unhealthy", is_flag=True, help="Give these GPUs no new work.")
@click.option("--healthy", is_flag=True, help="Use these GPUs again.")
@_why
@remote_options
def mark(gpus: tuple[str, ...], unhealthy: bool, healthy: bool, why: str, hub: str | None, as_json: bool) -> None:
    """Mark GPUs as unhealthy, or as healthy again; what runs on them goes on."""
    if unhealthy == healthy:
        raise click.UsageError("say either --unhealthy or --healthy")
    word = "healthy" if healthy else "unhealthy"
    with connect(hub) as client:
        changed = [client.nodes.mark(gpu, healthy=healthy, why=why) for gpu in gpus]
    _say(as_json, changed, lambda gpu: f"marked {gpu.id} as {word}, now {gpu.status}")


@command.command("cool")
@click.argument("zone", required=False)
@click.argument("kilowatts", metavar="KW", type=_Amount(), required=False)
@_why
@remote_options
def cool(zone: str | None, kilowatts: float | None, why: str, hub: str | None, as_json: bool) -> None:
    """Say how much heat the plant of a cooling zone removes now, in kW; without arguments, list the zones.

    `full` is what the fleet file says. Less than the present heat stops new work there and evicts nothing.
    """
    if zone is not None and kilowatts is None:
        raise click.UsageError("say how many kW, or `full`")
    with connect(hub) as client:
        if zone is None or kilowatts is None:
            _show_zones(client.nodes.cooling_zones(), as_json)
            return
        changed = client.nodes.set_cooling(zone, _unless_full(kilowatts), why=why)
    _say(
        as_json,
        [changed],
        lambda zone: f"{zone.id} removes {zone.heat_kw_max:g} kW now; {zone.cooling_kw_free:.1f} kW to spare",
    )


@command.command("link")
@click.argument("subject", metavar="NODE|RACK")
@click.argument("factor", type=_Amount())
@_why
@remote_options
def link(subject: str, factor: float, why: str, hub: str | None, as_json: bool) -> None:
    """Say how well a link works now: the NVLink of a node, or the uplink of a rack.

    FACTOR is a share of its bandwidth, e.g. 0.5, or `full`. A node whose NVLink has failed (0) still has PCIe.
    """
    with connect(hub) as client:
        if subject in {rack.id for rack in client.nodes.racks()}:
            rack = client.nodes.set_uplink(subject, _unless_full(factor), why=why)
            _say(as_json, [rack], lambda rack: f"the uplink of {rack.id} works at {rack.uplink_factor:g}")
        else:
            node = client.nodes.set_nvlink(subject, _unless_full(factor), why=why)
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
    from harch.cli.output import clean, table

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
    table(("ROW", "RACK", "NODE", "ISLAND", "GPUS FREE", "GB/S", "NVLINK", "UPLINK"), rows)
    between = ", ".join(f"{clean(level)} {speed:g}" for level, speed in view.between_gb_per_s.items())
    click.echo(f"between nodes, GB/s by the level that they share: {between}; {clean(view.bandwidth_source)}")


def _show_zones(zones: list[CoolingZone], as_json: bool) -> None:
    from harch.cli.output import emit_json, table

    if as_json:
        emit_json({"items": zones, "total": len(zones)})
        return
    table(
        ("ZONE", "REMOVES KW", "BUILT FOR KW", "HEAT KW", "TO SPARE KW", "RACKS", "NOTES"),
        (
            (
                zone.id,
                f"{zone.heat_kw_max:g}",
                f"{zone.heat_kw_built:g}",
                f"{zone.heat_kw:.1f}",
                f"{zone.cooling_kw_free:.1f}",
                len(zone.racks),
                zone.why,
            )
            for zone in zones
        ),
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
