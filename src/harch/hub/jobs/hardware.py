"""What if hardware changes while it runs? Cordoned nodes, GPUs that fail, links that degrade, cooling that weakens.

Each change is stored, seen by the very next decision, and evicts nothing; only draining a node asks its work to move.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Container

from harch.base.errors import HarchError
from harch.hub.jobs import effects as fx
from harch.hub.jobs.state import Closed
from harch.hub.jobs.transaction import Transaction
from harch.hub.store.records import Condition, ConditionKind

_WORDS = {  # for those that are either so or not; others are named with their value
    (ConditionKind.CORDONED, False): "cordoned",
    (ConditionKind.CORDONED, True): "open again",
    (ConditionKind.UNHEALTHY, False): "unhealthy",
    (ConditionKind.UNHEALTHY, True): "healthy again",
}


def set_condition(tx: Transaction, condition: Condition) -> None:
    apply(tx, condition)
    tx.emit(fx.SaveCondition(condition.kind, condition.subject, condition.value, condition.why))
    state = "as in the fleet file" if condition.value is None else f"{condition.value:g}"
    state = _WORDS.get((condition.kind, condition.value is None)) or f"{condition.kind} {state}"
    if condition.kind is ConditionKind.CLOSED:
        state = f"the hub is {tx.state.closed.name.lower()}"
    tx.note("hardware.changed", condition.subject, f"{state}: {condition.why}" if condition.why else state)


def drain(tx: Transaction, node_id: str, why: str) -> None:
    """Cordons the node and stops what runs there, in an orderly way; it waits again and is placed elsewhere."""
    set_condition(tx, Condition(kind=ConditionKind.CORDONED, subject=node_id, value=1, why=why or "drained"))
    for running in list(tx.state.scheduler.running.values()):
        workload = tx.state.registry.workloads.get(running.request.id)
        if workload is None:
            continue  # held for a bid, for two seconds at most
        here = any(task.node_id == node_id for task in workload.placement)
        if here and not workload.stop_reason:
            tx.stop_for_others(workload, f"node {node_id} is drained", kind="workload.drained")


def close_hub(tx: Transaction, closed: Closed, why: str) -> None:
    """Cordons, drains, retires or opens the hub itself. Draining asks what runs to go elsewhere."""
    set_condition(
        tx, Condition(kind=ConditionKind.CLOSED, subject=tx.state.hub.id, value=float(closed) or None, why=why)
    )
    if closed >= Closed.DRAINING:
        for running in list(tx.state.scheduler.running.values()):
            workload = tx.state.registry.workloads.get(running.request.id)
            if workload is not None and not workload.stop_reason:
                tx.stop_for_others(workload, f"hub {tx.state.hub.id} is drained", kind="workload.drained")


def apply(tx: Transaction, condition: Condition) -> None:
    """To memory only; also at start, with what the store remembers. Raises before anything changed."""
    scheduler, subject, value = tx.state.scheduler, condition.subject, condition.value
    match condition.kind:
        case ConditionKind.CORDONED:
            scheduler.cordon(_known(subject, scheduler.room.row_of, "node"), value is not None)
        case ConditionKind.UNHEALTHY:
            node_id, device = _gpu(tx, subject)
            scheduler.set_health(node_id, device, value is None)
        case ConditionKind.COOLING_KW:
            zones = {zone.id: (index, zone.heat_kw_max) for index, zone in enumerate(tx.state.hub.cooling_zones)}
            index, heat_kw_max = zones[_known(subject, zones, "cooling zone")]
            scheduler.set_cooling(index, heat_kw_max if value is None else _between(value, 0, heat_kw_max))
        case ConditionKind.CLOSED:
            _known(subject, (tx.state.hub.id,), "hub")
            tx.state.closed = Closed.OPEN if value is None else Closed(int(_between(value, 1, 3)))
        case ConditionKind.NVLINK:
            node_id = _known(subject, scheduler.room.row_of, "node")
            scheduler.set_nvlink(node_id, 1.0 if value is None else _between(value, 0, 1))
        case ConditionKind.UPLINK:
            racks = {rack.id: rack for rack in tx.state.hub.racks}
            scheduler.set_uplink(_known(subject, racks, "rack"), 1.0 if value is None else _between(value, 0.01, 1))


def _gpu(tx: Transaction, gpu_id: str) -> tuple[str, int]:
    node_id = gpu_id.rpartition("-")[0]
    row = tx.state.scheduler.room.row_of.get(node_id, -1)
    for gpu in tx.state.hub.nodes[row].gpus if row >= 0 else ():
        if gpu.id == gpu_id:
            return node_id, gpu.index
    raise missing("GPU", gpu_id)


def _known(subject: str, known: Container[str], noun: str) -> str:
    if subject not in known:
        raise missing(noun, subject)
    return subject


def _between(value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        raise HarchError("E0201", f"{value:g} is not between {low:g} and {high:g}", hint="see `harch node --help`")
    return value


def missing(noun: str, subject: str) -> HarchError:
    return HarchError(
        "E0311", f"this hub has no {noun} `{subject[:64]}`", hint="`harch node ls` and `harch gpus` list them"
    )
