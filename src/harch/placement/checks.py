"""May this request go to that hub? Hard checks in a written order; each "no" is a value with its nearest fix."""

# harch: pure

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from harch.base.counting import counted
from harch.base.rejection import Rejection, RuleOutcome
from harch.placement.facts import HubFacts
from harch.placement.request import PlacementRequest
from harch.workloads.spec import Level


@dataclass(frozen=True, slots=True)
class Check:
    """`permanent`: waiting will not help, so admission refuses instead of queueing.

    `margin`: what a rule compares, needed and available; it says how near the rule is to the other answer.
    """

    rule: str
    permanent: bool
    judge: Callable[[PlacementRequest, HubFacts], tuple[bool, str, str]]  # passed, detail, nearest fix
    margin: Callable[[PlacementRequest, HubFacts], tuple[float, float] | None] | None = None


def _residency(request: PlacementRequest, hub: HubFacts) -> tuple[bool, str, str]:
    """Its own word and that of the tags on its data, which are already compiled to hubs: both must say yes."""
    hubs, allowed = request.hubs_allowed, request.countries_allowed
    if hubs is not None and hub.hub_id not in hubs:
        listed = ", ".join(hubs) or "no hub"
        fix = f"choose {' or '.join(hubs)}" if hubs else "contact the owner of the data"
        return False, f"its data tags do not permit {hub.hub_id}; allowed: {listed}", fix
    if not allowed:
        return True, "no country excluded", ""
    listed = ", ".join(allowed)
    return (
        hub.country in allowed,
        f"is in {hub.country}; allowed: {listed}",
        f"choose a hub in {listed}" if hub.country not in allowed else "",
    )


def _accepting(request: PlacementRequest, hub: HubFacts) -> tuple[bool, str, str]:
    return hub.accepts_work, hub.status_detail or "accepts work", "wait, or choose another hub"


def _gpu_model(request: PlacementRequest, hub: HubFacts) -> tuple[bool, str, str]:
    needs = request.needs
    if not needs.gpus:
        return True, "requests no GPU", ""
    suitable = hub.suitable(request)
    has = ", ".join(f"{m.total} x {m.model} ({m.memory_gb} GB)" for m in hub.models)
    wanted = " or ".join(needs.models_wanted) or "any model"
    if needs.gpu_memory_gb_needed:
        wanted += f" of >= {needs.gpu_memory_gb_needed:g} GB"
    if needs.gpu_memory_gb is not None and not hub.counts_gpu_memory:
        return False, "runs an earlier version that does not support `gpu_memory_gb`", "choose another hub"
    return bool(suitable), f"wants {wanted}; has {has}", "request one of these models"


def _node_shape(request: PlacementRequest, hub: HubFacts) -> tuple[bool, str, str]:
    needs = request.needs
    suitable = hub.suitable(request)
    most = max((m.gpus_per_node_max for m in suitable), default=0) if needs.gpus else 0
    fits = needs.gpus <= most and needs.cpus <= hub.cpus_per_node_max and needs.memory_gb <= hub.memory_gb_per_node_max
    wants, has = "", ""
    if needs.storage_gb and hub.storage_gb_per_node_max is not None:
        fits = fits and needs.storage_gb <= hub.storage_gb_per_node_max
        wants, has = f", {needs.storage_gb:g} GB of storage", f", {hub.storage_gb_per_node_max:g} GB of storage"
    if needs.gpus > most:
        fix = (
            f"split it into tasks of at most {counted(most, 'GPU')}" if most else "choose a hub that has suitable GPUs"
        )
    else:
        fix = "request less per task"
    return (
        fits and hub.slots_empty > 0,
        f"a task needs {counted(needs.gpus, 'GPU')}, {counted(needs.cpus, 'CPU')}, "
        f"{needs.memory_gb:g} GB{wants}; the largest node has "
        f"{counted(most, 'suitable GPU')}, {counted(hub.cpus_per_node_max, 'CPU')}, "
        f"{hub.memory_gb_per_node_max:g} GB{has}",
        fix,
    )


def _size(request: PlacementRequest, hub: HubFacts) -> tuple[bool, str, str]:
    return (
        request.tasks_min <= hub.slots_empty,
        f"{_tasks(request)}; the empty hub fits {hub.slots_empty}",
        f"request at most {counted(hub.slots_empty, 'task')}, or choose a larger hub"
        if hub.slots_empty
        else "choose another hub",
    )


def _tasks(request: PlacementRequest) -> str:
    return counted(request.tasks, "task") + (
        f", at least {request.tasks_min}" if request.tasks_min < request.tasks else ""
    )


def _domain(request: PlacementRequest, hub: HubFacts) -> tuple[bool, str, str]:
    level = request.topology.required
    if level is Level.HUB:
        return True, "may be anywhere in the hub", ""
    if hub.domain_slots_empty is None:
        return True, f"wants one {level}; not published by this hub", ""
    return (
        request.tasks_min <= hub.domain_slots_empty,
        f"{_tasks(request)} in one {level}; the largest {level} holds {hub.domain_slots_empty} when empty",
        f"request a larger domain than {level}, or fewer GPUs",
    )


def _power_limit(request: PlacementRequest, hub: HubFacts) -> tuple[bool, str, str]:
    return (
        not hub.power_limit,
        hub.power_limit or "the empty hub has enough power and cooling",
        "request fewer GPUs, or a larger domain",
    )


def _quota_limit(request: PlacementRequest, hub: HubFacts) -> tuple[bool, str, str]:
    return (
        not hub.quota_limit,
        hub.quota_limit or "within the quota of its tenant",
        "request less, or have the quota raised",
    )


def _process_limit(request: PlacementRequest, hub: HubFacts) -> tuple[bool, str, str]:
    needed = request.tasks_min if request.runs_process else 0
    if not needed or not hub.nodes_up:  # the limit is known only while agents are connected
        return True, "runs no process" if not needed else "unknown while no agent is connected", ""
    total = hub.process_slots_total
    return (
        needed <= total,
        f"{needed} processes; the agents of this hub run at most {total} at a time",
        f"use at most {total} tasks, or `modelled_duration_s` instead of a command",
    )


_OPEN = "an operator uncordons nodes: `harch node uncordon`"


def _nodes_up(request: PlacementRequest, hub: HubFacts) -> tuple[bool, str, str]:
    if hub.held_back and not hub.nodes_up:
        return False, f"no node accepts work; {hub.held_back}", _OPEN
    return hub.nodes_up > 0, f"{hub.nodes_up} nodes served by an agent", "start an agent: `harch agent serve`"


def _quota(request: PlacementRequest, hub: HubFacts) -> tuple[bool, str, str]:
    rejection = hub.quota_rejection
    return not rejection, rejection or "within quota", "wait for other work of this tenant to end, or raise its quota"


def _process_slots(request: PlacementRequest, hub: HubFacts) -> tuple[bool, str, str]:
    needed = hub.wanted(request) if request.runs_process else 0
    missing = needed - hub.process_slots_free
    return (
        missing <= 0,
        f"needs {needed} of {hub.process_slots_free} free process slots",
        f"starts when {missing} more running processes end",
    )


def _capacity(request: PlacementRequest, hub: HubFacts) -> tuple[bool, str, str]:
    needs = request.needs
    free = sum(m.free for m in hub.suitable(request))
    wanted = hub.wanted(request)
    missing = wanted - hub.slots_now
    per_task = f"{needs.gpus} free GPUs on one node" if needs.gpus else "free cpus, memory and storage on one node"
    tasks = "1 task" if wanted == 1 else f"{wanted} tasks"
    gpus = f" ({free} suitable GPU{'s' * (free != 1)} free)" if needs.gpus else ""
    detail = f"{tasks} wanted, {max(hub.slots_now, 0)} fit now{gpus}"
    fix = f"starts when {missing} x {per_task} come free"
    if missing > 0 and hub.held_back:
        detail = f"{detail}; {hub.held_back}"
        fix = f"{fix}, or {_OPEN}" if hub.held_back_slots else fix
    return missing <= 0, detail, fix


def _domain_now(request: PlacementRequest, hub: HubFacts) -> tuple[bool, str, str]:
    level = request.topology.required
    if level is Level.HUB or hub.domain_slots_now is None:
        return True, "may be anywhere in the hub" if level is Level.HUB else "not published by this hub", ""
    wanted = hub.wanted(request)
    missing = wanted - hub.domain_slots_now
    gpus = missing * request.needs.gpus
    return (
        missing <= 0,
        f"{wanted} tasks in one {level}; {hub.domain_best} takes {hub.domain_slots_now} now",
        f"with {gpus} more GPUs free in {hub.domain_best} it would start",
    )


def _power(request: PlacementRequest, hub: HubFacts) -> tuple[bool, str, str]:
    """All its tasks together: feeds and plants are shared."""
    if hub.power_short is None or not request.needs.gpus:
        return True, "draws no GPU power" if not request.needs.gpus else "not published by this hub", ""
    return (
        not hub.power_short,
        hub.power_short or "enough power and cooling",
        "starts when running work ends or cooling recovers",
    )


def _kept_free(request: PlacementRequest, hub: HubFacts) -> tuple[bool, str, str]:
    return (
        not hub.kept_free,
        hub.kept_free or "nothing that it needs is reserved for others",
        "starts after them; sooner if it ends before (set `max_duration_s`)",
    )


def _layout(request: PlacementRequest, hub: HubFacts) -> tuple[bool, str, str]:
    """What the decision itself says, for what no single figure shows."""
    others = (_process_slots, _power, _capacity, _domain_now, _kept_free)
    explained = hub.fits is not False or any(not judge(request, hub)[0] for judge in others)
    return explained, "its tasks fit together" if explained else "no layout fits all its tasks together", _WAIT


def _turn(request: PlacementRequest, hub: HubFacts) -> tuple[bool, str, str]:
    return not hub.turn, hub.turn or "nothing ahead of it blocks it", _WAIT


_WAIT = "starts when running work ends"


def _size_margin(request: PlacementRequest, hub: HubFacts) -> tuple[float, float] | None:
    return (request.tasks_min, hub.slots_empty) if _is_counted(request, hub) else None


def _is_counted(request: PlacementRequest, hub: HubFacts) -> bool:
    """A peer publishes GPUs alone: of tasks without any it is taken to fit what is wanted, neither more nor less."""
    return bool(request.needs.gpus) or hub.source != "summary"


def _process_limit_margin(request: PlacementRequest, hub: HubFacts) -> tuple[float, float] | None:
    return (request.tasks_min, hub.process_slots_total) if request.runs_process and hub.nodes_up else None


def _process_slots_margin(request: PlacementRequest, hub: HubFacts) -> tuple[float, float] | None:
    return (hub.wanted(request), hub.process_slots_free) if request.runs_process else None


def _capacity_margin(request: PlacementRequest, hub: HubFacts) -> tuple[float, float] | None:
    """In tasks: GPUs that are free one by one on many nodes are no room for a task that needs eight."""
    return (hub.wanted(request), max(hub.slots_now, 0)) if _is_counted(request, hub) else None


def _domain_now_margin(request: PlacementRequest, hub: HubFacts) -> tuple[float, float] | None:
    if request.topology.required is Level.HUB or hub.domain_slots_now is None:
        return None
    return hub.wanted(request), hub.domain_slots_now


# The order is part of the contract: residency first, so that no later rule ever sees a forbidden hub.
HARD_CHECKS: tuple[Check, ...] = (
    Check("residency", True, _residency),
    Check("gpu_model", True, _gpu_model),
    Check("node_shape", True, _node_shape),
    Check("size", True, _size, _size_margin),
    Check("domain", True, _domain),
    Check("power_limit", True, _power_limit),
    Check("process_limit", True, _process_limit, _process_limit_margin),
    Check("quota_limit", True, _quota_limit),
    Check("accepting", False, _accepting),  # temporary rules from here on: the request waits for them
    Check("nodes_up", False, _nodes_up),
    Check("quota", False, _quota),
    Check("process_slots", False, _process_slots, _process_slots_margin),
    Check("power_and_cooling", False, _power),
    Check("capacity", False, _capacity, _capacity_margin),
    Check("domain_now", False, _domain_now, _domain_now_margin),
    Check("kept_free", False, _kept_free),  # it would fit, were it alone
    Check("layout", False, _layout),
    Check("turn", False, _turn),  # last: everything else says yes
)

_PERMANENT = frozenset(check.rule for check in HARD_CHECKS if check.permanent)


def is_never(outcomes: Iterable[RuleOutcome]) -> bool:
    """Does a rule say no that waiting will not cure?"""
    return any(not outcome.passed and outcome.rule in _PERMANENT for outcome in outcomes)


def outcomes(request: PlacementRequest, hub: HubFacts) -> tuple[RuleOutcome, ...]:
    """Every rule with its answer, for explanations."""
    results = []
    for check in HARD_CHECKS:
        passed, detail, fix = check.judge(request, hub)
        needed, available = (check.margin(request, hub) if check.margin is not None else None) or (None, None)
        results.append(
            RuleOutcome(
                rule=check.rule,
                passed=passed,
                detail=detail,
                nearest_fix="" if passed else fix,
                needed=needed,
                available=available,
            )
        )
    return tuple(results)


def first_rejection(request: PlacementRequest, hub: HubFacts, *, permanent_only: bool = False) -> Rejection | None:
    """The first "no" in the written order, or None."""
    for check in HARD_CHECKS:
        if permanent_only and not check.permanent:
            continue
        passed, detail, fix = check.judge(request, hub)
        if not passed:
            return Rejection(hub.hub_id, check.rule, detail, fix)
    return None
