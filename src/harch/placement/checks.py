"""May this request go to that hub? Hard checks in a written order; each "no" is a value with its nearest fix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harch.base.rejection import Rejection, RuleOutcome
from harch.placement.facts import HubFacts
from harch.placement.request import Request
from harch.workloads.spec import Level


@dataclass(frozen=True, slots=True)
class Check:
    """`permanent`: waiting will not help, so admission refuses instead of queueing."""

    rule: str
    permanent: bool
    judge: Callable[[Request, HubFacts], tuple[bool, str, str]]  # passed, detail, nearest fix


def _residency(request: Request, hub: HubFacts) -> tuple[bool, str, str]:
    """Its own word and that of the tags on its data, which are already compiled to hubs: both must say yes."""
    hubs, allowed = request.hubs_allowed, request.countries_allowed
    if hubs is not None and hub.hub_id not in hubs:
        listed = ", ".join(hubs) or "no hub"
        fix = f"choose {' or '.join(hubs)}" if hubs else "ask the owner of the data"
        return False, f"the tags of its data do not permit {hub.hub_id}; allowed: {listed}", fix
    if not allowed:
        return True, "no country is excluded", ""
    listed = ", ".join(allowed)
    return (
        hub.country in allowed,
        f"stands in {hub.country}; allowed: {listed}",
        f"choose a hub in {listed}" if hub.country not in allowed else "",
    )


def _accepting(request: Request, hub: HubFacts) -> tuple[bool, str, str]:
    return hub.accepts_work, hub.status_detail or "accepts work", "wait, or choose another hub"


def _gpu_model(request: Request, hub: HubFacts) -> tuple[bool, str, str]:
    needs = request.needs
    if not needs.gpus:
        return True, "asks for no GPU", ""
    suitable = hub.suitable(request)
    has = ", ".join(f"{m.total} x {m.model} ({m.memory_gb} GB)" for m in hub.models)
    wanted = " or ".join(needs.models_wanted) or "any model"
    if needs.gpu_memory_gb_min:
        wanted += f" of >= {needs.gpu_memory_gb_min:g} GB"
    return bool(suitable), f"wants {wanted}; has {has}", "ask for one of these models"


def _node_shape(request: Request, hub: HubFacts) -> tuple[bool, str, str]:
    needs = request.needs
    suitable = hub.suitable(request)
    most = max((m.gpus_per_node_max for m in suitable), default=0) if needs.gpus else 0
    fits = needs.gpus <= most and needs.cpus <= hub.cpus_per_node_max and needs.memory_gb <= hub.memory_gb_per_node_max
    if needs.gpus:
        fits = fits and hub.slots_empty > 0
    return (
        fits,
        f"a task needs {needs.gpus} GPUs, {needs.cpus:g} cpus, {needs.memory_gb:g} GB; the largest node has "
        f"{most} suitable GPUs, {hub.cpus_per_node_max:g} cpus, {hub.memory_gb_per_node_max:g} GB",
        f"split it into tasks of at most {most} GPUs" if needs.gpus > most > 0 else "ask for less per task",
    )


def _size(request: Request, hub: HubFacts) -> tuple[bool, str, str]:
    return (
        request.tasks <= hub.slots_empty,
        f"{request.tasks} tasks; the hub holds {hub.slots_empty} of them when empty",
        f"ask for at most {hub.slots_empty} tasks, or choose a larger hub",
    )


def _domain(request: Request, hub: HubFacts) -> tuple[bool, str, str]:
    level = request.topology.required
    if level is Level.HUB:
        return True, "may stand anywhere in the hub", ""
    if hub.domain_slots_empty is None:
        return True, f"wants one {level}; not published by this hub", ""
    return (
        request.tasks <= hub.domain_slots_empty,
        f"{request.tasks} tasks in one {level}; the largest {level} holds {hub.domain_slots_empty} when empty",
        f"ask for a larger domain than {level}, or for fewer GPUs",
    )


def _process_limit(request: Request, hub: HubFacts) -> tuple[bool, str, str]:
    needed = request.tasks if request.runs_process else 0
    if not needed or not hub.nodes_up:  # the limit is known only while agents are connected
        return True, "runs no process" if not needed else "not known while no agent is connected", ""
    total = hub.process_slots_total
    return (
        needed <= total,
        f"{needed} processes; the agents of this hub run at most {total} at a time",
        f"use at most {total} tasks, or `modelled_duration_s` instead of a command",
    )


_OPEN = "an operator opens nodes again: `harch node uncordon`"


def _nodes_up(request: Request, hub: HubFacts) -> tuple[bool, str, str]:
    if hub.held_back and not hub.nodes_up:
        return False, f"no node takes work; {hub.held_back}", _OPEN
    return hub.nodes_up > 0, f"{hub.nodes_up} nodes are served by an agent", "start an agent: `harch agent serve`"


def _quota(request: Request, hub: HubFacts) -> tuple[bool, str, str]:
    rejection = hub.quota_rejection
    return not rejection, rejection or "within quota", "wait for other work of this tenant to end, or raise its quota"


def _process_slots(request: Request, hub: HubFacts) -> tuple[bool, str, str]:
    needed = request.tasks if request.runs_process else 0
    missing = needed - hub.process_slots_free
    return (
        missing <= 0,
        f"needs {needed} of {hub.process_slots_free} free process slots",
        f"starts when {missing} more running processes have ended",
    )


def _capacity(request: Request, hub: HubFacts) -> tuple[bool, str, str]:
    needs = request.needs
    free = sum(m.free for m in hub.suitable(request))
    missing = request.tasks - hub.slots_now
    per_task = f"{needs.gpus} free GPUs on one node" if needs.gpus else "free cpus and memory on one node"
    detail = f"{request.tasks} tasks wanted, {max(hub.slots_now, 0)} fit now ({free} suitable GPUs free)"
    fix = f"starts when {missing} more times {per_task} come free"
    if missing > 0 and hub.held_back:
        detail = f"{detail}; {hub.held_back}"
        fix = f"{fix}, or {_OPEN}" if hub.held_back_slots else fix
    return missing <= 0, detail, fix


def _domain_now(request: Request, hub: HubFacts) -> tuple[bool, str, str]:
    level = request.topology.required
    if level is Level.HUB or hub.domain_slots_now is None:
        return True, "may stand anywhere in the hub" if level is Level.HUB else "not published by this hub", ""
    missing = request.tasks - hub.domain_slots_now
    gpus = missing * request.needs.gpus
    return (
        missing <= 0,
        f"{request.tasks} tasks in one {level}; {hub.domain_best} takes {hub.domain_slots_now} now",
        f"with {gpus} more GPUs free in {hub.domain_best} it would start",
    )


def _power(request: Request, hub: HubFacts) -> tuple[bool, str, str]:
    if hub.power_kw_free is None or not request.needs.gpus:
        return True, "draws no GPU power" if not request.needs.gpus else "not published by this hub", ""
    return (
        hub.power_kw_free >= hub.task_kw,
        f"{hub.power_kw_free:.1f} kW of power and cooling to spare"
        + (f"; a task draws {hub.task_kw:.1f} kW" if hub.task_kw else ""),
        "wait until work ends or cooling recovers",
    )


# The order is part of the contract: residency first, so that no later rule ever sees a forbidden hub.
HARD_CHECKS: tuple[Check, ...] = (
    Check("residency", True, _residency),
    Check("gpu_model", True, _gpu_model),
    Check("node_shape", True, _node_shape),
    Check("size", True, _size),
    Check("domain", True, _domain),
    Check("process_limit", True, _process_limit),
    Check("accepting", False, _accepting),  # temporary rules from here on: the request waits for them
    Check("nodes_up", False, _nodes_up),
    Check("quota", False, _quota),
    Check("process_slots", False, _process_slots),
    Check("power_and_cooling", False, _power),
    Check("capacity", False, _capacity),
    Check("domain_now", False, _domain_now),
)


def outcomes(request: Request, hub: HubFacts) -> tuple[RuleOutcome, ...]:
    """Every rule with its answer, for explanations."""
    results = []
    for check in HARD_CHECKS:
        passed, detail, fix = check.judge(request, hub)
        results.append(RuleOutcome(rule=check.rule, passed=passed, detail=detail, nearest_fix="" if passed else fix))
    return tuple(results)


def first_rejection(request: Request, hub: HubFacts, *, permanent_only: bool = False) -> Rejection | None:
    """The first "no" in the written order, or None."""
    for check in HARD_CHECKS:
        if permanent_only and not check.permanent:
            continue
        passed, detail, fix = check.judge(request, hub)
        if not passed:
            return Rejection(hub.hub_id, check.rule, detail, fix)
    return None
