"""How does the planner see a workload? Where it may run, on what, how long, and how long it may still wait. Pure."""

# harch: pure

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta

from harch.carbon.planning.outlook import Pool
from harch.carbon.planning.settings import AppliesTo, PlanSettings
from harch.carbon.planning.slack import SCARCE_MARGIN_S, scarcity
from harch.carbon.planning.work import FlexibleWork
from harch.hub.jobs.admission import published_facts
from harch.hub.jobs.events import EventContext
from harch.hub.jobs.state import JobState, may_leave
from harch.placement.checks import first_rejection
from harch.workloads.lifecycle import State, Workload
from harch.workloads.spec import RestartPolicy, Resumes, SchedulingClass, WorkloadSpec

CPU = "cpu"  # the pool of work without GPUs; counted in cores
HOUR_S = 3600.0
ASSUMED_S = HOUR_S  # of work that does not say how long it runs
LEFT_S_MIN = 1.0
# Work enters the queue so long before its promise, by GPUs: a gang may have to wait for its nodes.
MARGINS_S = ((0, 1.5 * 3600.0), (8, 4 * 3600.0), (16, 6 * 3600.0))
MARGIN_SHARE_MAX = 0.25  # of all the time that it may wait; twice that where such GPUs are scarce
RUN_S_MIN = 900.0  # what has only just started is left alone

Pools = Mapping[tuple[str, str], Pool]


def is_planned(spec: WorkloadSpec, settings: PlanSettings) -> bool:
    """Whether the plan may put it off or send it elsewhere. Urgent work starts at once, at home if there is room."""
    applies = settings.planning.applies_to
    if applies is AppliesTo.NONE or spec.carbon.aware is False or spec.turn_class is not SchedulingClass.TRAINING:
        return False
    return applies is AppliesTo.ALL or spec.carbon.wants_plan or spec.carbon.has_limit


def is_limited(workload: Workload, settings: PlanSettings) -> bool:
    return workload.spec.carbon.has_limit or settings.limits(workload.tenant)


def start_by(workload: Workload) -> datetime | None:
    """The promise: what it has done already is no delay. None: it does not wait for power at all."""
    spec, preferences = workload.spec, workload.spec.carbon
    if not preferences.may_wait or spec.turn_class is not SchedulingClass.TRAINING:
        return None
    ends: list[datetime] = []
    if preferences.slack_s:
        ends.append(workload.created_at + timedelta(seconds=preferences.slack_s))
    if preferences.finish_by is not None and spec.expected_s is not None:
        ends.append(preferences.finish_by - timedelta(seconds=spec.expected_s))
    if spec.gang.start_within_s is not None:
        ends.append(workload.created_at + timedelta(seconds=spec.gang.start_within_s))
    ran_s = workload.carbon.ran_s if workload.carbon is not None else 0.0
    return max(min(ends), workload.created_at) + timedelta(seconds=ran_s)


def release_at(workload: Workload, promise: datetime, *, scarce: float = 0.0) -> datetime:
    """When it joins the queue, whatever the power. `scarce`: how hard its GPUs are to get, from 0 to 1."""
    whole_s = max((promise - workload.created_at).total_seconds(), 0.0)
    gpus = workload.spec.gpus_total
    margin_s = max(margin_s for least, margin_s in MARGINS_S if gpus >= least) + scarce * SCARCE_MARGIN_S
    return promise - timedelta(seconds=min(margin_s, MARGIN_SHARE_MAX * (1 + scarce) * whole_s))


def scarce_for(state: JobState, workload: Workload, pools: Pools, hubs: frozenset[str]) -> float:
    """Of GPUs of its kind at all hubs that may run it."""
    if workload.spec.gpus_total <= 1:
        return 0.0
    model, gpus = size_of(state, workload.spec, pools)
    return scarcity(gpus, sum(pools[hub, model].gpus for hub in hubs if (hub, model) in pools))


KNOWN_MAX = 4096
HubsKnown = dict[object, frozenset[str]]


def hubs_for(state: JobState, workload: Workload, known: HubsKnown | None = None) -> frozenset[str]:
    """Sovereignty first: of hubs that may not run it, nothing else is even looked at. `known`: of work like it."""
    if known is None:
        return _hubs_for(state, workload)
    spec, shape = workload.spec, state.request(workload).shape
    key = (shape, workload.data_ids, workload.home_fits, may_leave(spec), spec.stop_grace_s)
    if key not in known:
        if len(known) >= KNOWN_MAX:
            known.clear()
        known[key] = _hubs_for(state, workload)
    return known[key]


def _hubs_for(state: JobState, workload: Workload) -> frozenset[str]:
    lending, spec = state.lending, workload.spec
    home = {state.hub.id} if workload.home_fits else set()
    if not may_leave(spec) or not lending.enabled or not lending.terms.covers_grace(spec):
        return frozenset(home)
    ready = [
        hub_id
        for hub_id, peer in lending.peers.items()
        if peer.reachable and peer.summary is not None and peer.summary.status == "ready"
    ]
    request = state.request(workload)
    for hub_id in state.guard.before_offer(workload, ready).eligible:
        peer = lending.peers[hub_id]
        if peer.summary is not None:
            facts = published_facts(peer.summary, peer, request)
            if first_rejection(request, facts, permanent_only=True) is None:
                home.add(hub_id)
    return frozenset(home)


def size_of(state: JobState, spec: WorkloadSpec, pools: Pools) -> tuple[str, float]:
    """The pool that it draws from, and how much: GPUs of one model, or cores where it takes no GPU.

    Work that takes any model is weighed as the one that most hubs have: a hub without it would not be looked at.
    """
    needs = spec.resources
    if not needs.gpus:
        return CPU, needs.cpus * spec.tasks
    memory_gb = {gpu.model.name: gpu.model.memory_gb for node in state.hub.nodes for gpu in node.gpus}
    here = {model: pool.gpus for (hub, model), pool in pools.items() if hub == state.hub.id and model != CPU}
    hubs_with = Counter(model for _, model in pools)
    wanted = needs.models_wanted or sorted(here, key=lambda model: (-hubs_with[model], -here[model], model))
    fits = [model for model in wanted if memory_gb.get(model, 0) >= needs.gpu_memory_gb_needed and model in here]
    elsewhere = [model for model in wanted if any(key[1] == model for key in pools)]
    model = (fits or elsewhere or list(wanted) or [CPU])[0]
    each_milli = needs.gpu_milli_of(memory_gb[model]) if model in memory_gb else needs.gpu_milli
    return model, spec.gpus_total * each_milli / 1000


def waiting_work(
    state: JobState,
    context: EventContext,
    workload: Workload,
    pools: Pools,
    *,
    planned: bool,
    known: HubsKnown | None = None,
) -> FlexibleWork:
    """Before it runs. `planned` False: only its limits count, for a start at home at once."""
    promise = start_by(workload) if planned else None
    hubs = hubs_for(state, workload, known) if planned else frozenset({state.hub.id})
    wait_s = 0.0
    if promise is not None:
        scarce = scarce_for(state, workload, pools, hubs)
        wait_s = (release_at(workload, promise, scarce=scarce) - context.now).total_seconds()
    return _flexible(state, context, workload, pools, hubs, max(wait_s, 0.0))


def running_work(state: JobState, context: EventContext, workload: Workload, pools: Pools) -> FlexibleWork:
    """Own work that runs, here or at a peer; movable only if it says that it goes on from what it saved."""
    here = workload.runner_hub if workload.leased else state.hub.id
    started_at = workload.started_at
    ran_s = context.elapsed_s(started_at) if started_at is not None else 0.0
    may_move = is_movable(context, workload, ran_s)
    hubs, wait_s = frozenset({here}), 0.0
    if may_move:
        promise = start_by(workload)
        if workload.spec.carbon.resumes is Resumes.ANYWHERE:
            hubs = hubs_for(state, workload) | hubs
        if promise is not None:
            scarce = scarce_for(state, workload, pools, hubs)
            wait_s = max((release_at(workload, promise, scarce=scarce) - context.now).total_seconds() + ran_s, 0.0)
    return _flexible(state, context, workload, pools, hubs, wait_s, running_at=here, ran_s=ran_s, movable=may_move)


def is_movable(context: EventContext, workload: Workload, ran_s: float) -> bool:
    spec, settings = workload.spec, context.limits.carbon
    if spec.carbon.resumes is Resumes.NO or spec.restart is RestartPolicy.NEVER or not spec.preemptible:
        return False
    if not is_planned(spec, settings) or spec.expected_s is None:
        return False
    if workload.state is not State.RUNNING or workload.stop_as is not None or ran_s < RUN_S_MIN:
        return False
    moved_at = workload.carbon.moved_at if workload.carbon is not None else None
    again_s = settings.planning.move_again_after_s
    return moved_at is None or context.elapsed_s(moved_at) >= again_s


def _flexible(
    state: JobState,
    context: EventContext,
    workload: Workload,
    pools: Pools,
    hubs: frozenset[str],
    wait_s: float,
    *,
    running_at: str | None = None,
    ran_s: float = 0.0,
    movable: bool = False,
) -> FlexibleWork:
    spec, choice = workload.spec, workload.carbon
    model, amount = size_of(state, spec, pools)
    done_s = ran_s + (choice.ran_s if choice is not None else 0.0)
    left_s = ASSUMED_S if spec.expected_s is None else max(spec.expected_s - done_s, LEFT_S_MIN)
    return FlexibleWork(
        id=workload.id,
        hubs=hubs,
        model=model,
        gpus=amount,
        hours_left=left_s / HOUR_S,
        wait_h_max=wait_s / HOUR_S,
        tenant=workload.tenant,
        home=state.hub.id,
        running_at=running_at,
        movable=movable,
        checkpoint_gb=spec.carbon.checkpoint_gb,
        g_max=spec.carbon.g_max,
        g_per_kwh_max=spec.carbon.g_per_kwh_max,
    )
