"""Which figures does a span of a workload carry? Ids, sizes, states and what was decided; nothing that people wrote."""

from __future__ import annotations

from harch.base.clock import iso
from harch.base.tracing.spans import TEXT_MAX, Attributes
from harch.federation.offers import Bids, Need
from harch.wire.carbon import CarbonChoice
from harch.workloads.lifecycle import ExitReason, State, TaskEnd, Workload

_ORDERLY = (ExitReason.STOPPED, ExitReason.AGENT_SHUTDOWN, ExitReason.LEASE_ENDED)


def identity(workload: Workload) -> Attributes:
    found: Attributes = {
        "workload.id": workload.id,
        "workload.tenant": workload.tenant,
        "workload.attempt": workload.attempt,
    }
    if workload.epoch:
        found["workload.epoch"] = workload.epoch
    if workload.borrowed:
        found["workload.owner"] = workload.owner_hub
    return found


def size(workload: Workload) -> Attributes:
    spec = workload.spec
    return {
        "workload.class": spec.turn_class.value,
        "workload.type": spec.type.value,
        "workload.gpus": spec.gpus_total,
        "workload.tasks": spec.tasks,
    }


def placement(workload: Workload) -> Attributes:
    """The decision: where, how good it was judged, and why."""
    found: Attributes = {
        "placement.nodes": len({task.node_id for task in workload.placement}),
        "placement.gpus": sum(len(task.gpu_ids) for task in workload.placement),
        "placement.why": workload.placement_why[:TEXT_MAX],
    }
    if workload.placement:
        found["placement.node"] = workload.placement[0].node_id
    if workload.predicted_slowdown is not None:
        found["placement.slowdown"] = workload.predicted_slowdown  # modelled
    for part, value in workload.placement_score.items():
        found[f"placement.score.{part}"] = float(value)
    return found


def carbon(choice: CarbonChoice) -> Attributes:
    """What was decided about its power; all of it is forecast."""
    found: Attributes = {"carbon.action": choice.action, "carbon.hub": choice.hub_id, "carbon.held": choice.held}
    if choice.chosen is not None:
        found["carbon.grams"] = choice.chosen.grams
        found["carbon.kwh"] = choice.chosen.kwh
    if choice.at_once is not None:
        found["carbon.grams_at_once"] = choice.at_once.grams
    found["carbon.saves_grams"] = choice.saves_g
    found["carbon.options"] = len(choice.options)
    for name, moment in (("start_at", choice.start_at), ("start_by", choice.start_by)):
        if moment is not None:
            found[f"carbon.{name}"] = iso(moment)
    return found


def ending(workload: Workload) -> Attributes:
    found: Attributes = {"workload.state": workload.state.value, "workload.restarts": workload.restarts}
    end = _culprit(workload) or (workload.task_ends[0] if workload.task_ends else None)
    if end is not None:
        found["task.reason"] = end.reason.value
        if end.exit_code is not None:
            found["task.exit_code"] = end.exit_code
        if end.signal is not None:
            found["task.signal"] = end.signal
    return found


def failure(workload: Workload) -> str:
    """A word for how its tasks failed; empty if they did not, or were stopped in an orderly way."""
    culprit = _culprit(workload)
    return culprit.reason.value if culprit is not None and culprit.reason not in _ORDERLY else ""


def error_of(workload: Workload) -> str | None:
    """A word for what went wrong; empty if it went well, None if it was neither."""
    if workload.state is State.COMPLETED:
        return ""
    return (failure(workload) or "failed") if workload.state is State.FAILED else None


def _culprit(workload: Workload) -> TaskEnd | None:
    return next((end for end in workload.task_ends if end.reason is not ExitReason.EXITED or end.exit_code), None)


def answer_to(need: Need, bids: Bids) -> Attributes:
    """What a hub answered to one need."""
    found: Attributes = {"bid.gpus": need.needs.gpus * need.tasks, "bid.waited_s": need.waited_s}
    bid = next((bid for bid in bids.bids if bid.ref == need.ref), None)
    if bid is None:
        return {**found, "bid.outcome": "refused", "bid.reason": bids.refusals.get(need.ref, "")[:TEXT_MAX]}
    found["bid.outcome"] = "held" if bid.start_in_s == 0 else "queued"
    found["bid.start_in_s"] = bid.start_in_s
    found["bid.slowdown"] = bid.slowdown  # modelled
    if bid.carbon_g_per_kwh is not None:
        found["bid.carbon_g_per_kwh"] = bid.carbon_g_per_kwh
    return found
