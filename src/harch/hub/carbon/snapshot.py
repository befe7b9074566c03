"""What does a plan rest on? Everything that the hub knows at one moment, as plain values; and the plan made of them.

`take` runs on the event loop and only reads. `make_plan` is pure, takes its time, and runs in a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from harch.base.rejection import Rejection
from harch.carbon.planning.crowding import crowd_of
from harch.carbon.planning.decisions import Decision, Verb
from harch.carbon.planning.moves import MoveRules
from harch.carbon.planning.outlook import Aims, Outlook, Pool
from harch.carbon.planning.plan import Announced, plan_carbon
from harch.carbon.planning.work import Demand, FlexibleWork
from harch.fleet.model import Fleet, Hub
from harch.hub.carbon.hub_hours import HubOutlook, hub_outlook
from harch.hub.carbon.shared_budgets import SpentSaid
from harch.hub.carbon.views import GridForecast, HubPower
from harch.hub.desk import Desk
from harch.hub.routing.choices import settled
from harch.hub.routing.memory import HubPlan, Intent
from harch.hub.routing.works import CPU, HubsKnown, Pools, running_work, waiting_work
from harch.hub.views import HubSummary, PeerView
from harch.workloads.lifecycle import Workload

STEPS = 48
JOBS_MAX = 5000  # held and running each; those whose wait ends first
INTENTS_MAX = 64
UNKNOWN_S = 4 * 3600.0  # what is left of running work that does not say
CROWD_GPUS_MIN = 32  # the rule about crowds is one of large pools


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The arguments of a plan."""

    at: datetime
    step_s: float
    hubs: tuple[HubOutlook, ...]
    pools: tuple[Pool, ...]
    waiting: tuple[FlexibleWork, ...]
    running: tuple[FlexibleWork, ...]
    announced: tuple[Announced, ...]
    attempts: Mapping[str, int]
    g_per_usd: float = 0.0
    moves: bool = True
    tenant_g_left: Mapping[str, float] | None = None
    all_g_left: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Told:
    """What is known of the power of all hubs: figures now, forecasts, and what each means to start elsewhere."""

    powers: Mapping[str, HubPower]
    forecasts: Mapping[str, GridForecast]
    intents: Mapping[str, tuple[Intent, ...]]
    plants: tuple[Mapping[datetime, float], ...] = ()  # of this hub, foretold
    spent: Mapping[str, SpentSaid] = field(default_factory=dict)  # of tenants' budgets, by other hubs


def take(desk: Desk, fleet: Fleet, peers: Iterable[PeerView], told: Told, *, now: datetime) -> Snapshot:
    """Reads the hub's memory; changes nothing."""
    planning = desk.carbon.settings.planning
    given = (desk.registry.workloads[workload_id] for workload_id in desk.spill.given)
    lent = [workload for workload in given if workload.started_at is not None][:JOBS_MAX]
    hubs: list[HubOutlook] = []
    pools: dict[tuple[str, str], Pool] = {}
    running: list[FlexibleWork] = []
    notes: list[str] = []
    for peer in peers:
        place = fleet.hub(peer.hub_id)
        if peer.summary is None or place is None or not peer.reachable:
            notes.append(f"{peer.hub_id} is not planned with: {peer.error or 'nothing is known of it'}")
            continue
        own_pools = _pools(place, peer.summary)
        busy_kw = sum((total - free) * own_pools[model].kw_per_gpu for model, total, free in _counts(peer.summary))
        outlook = hub_outlook(
            told.powers.get(peer.hub_id),
            told.forecasts.get(peer.hub_id),
            hub_id=peer.hub_id,
            now=now,
            steps=STEPS,
            step_s=planning.step_s,
            busy_it_kw=busy_kw,
            plants=told.plants if peer.own else (),
        )
        if isinstance(outlook, Rejection):
            notes.append(f"{peer.hub_id} is not planned with ({outlook.rule}): {outlook.detail}")
            continue
        hubs.append(outlook)
        step_h = planning.step_s / 3600
        for pool in own_pools.values():
            pools[pool.key] = replace_pool(pool, step_h)
        held = _held_here(desk) if peer.own else _lent_there(lent, peer.hub_id)
        running += _others(desk, peer.summary, held, planning.step_s)
    known: HubsKnown = {}
    attempts: dict[str, int] = {}
    running += _own_running(desk, pools, lent, attempts, now)
    return Snapshot(
        at=now,
        step_s=planning.step_s,
        hubs=tuple(hubs),
        pools=tuple(pools.values()),
        waiting=tuple(
            waiting_work(desk, workload, pools, planned=True, now=now, known=known) for workload in _held_back(desk)
        ),
        running=tuple(running),
        announced=_announced(told.intents, desk.hub.id, now, planning.step_s),
        attempts=attempts,
        g_per_usd=planning.g_per_usd,
        moves=planning.moves_per_hour > 0,
        notes=tuple(notes),
    )


def make_plan(snapshot: Snapshot) -> HubPlan | None:
    """None if no hub's power is known. The same snapshot gives the same plan."""
    if not snapshot.hubs:
        return None
    outlook = Outlook(tuple(one.hours for one in snapshot.hubs), snapshot.pools, Aims(g_per_money=snapshot.g_per_usd))
    waiting = _less_slack(snapshot)
    in_hours = 3600 / snapshot.step_s
    rules = MoveRules(again_h=0.2 * in_hours, hours_left_min=in_hours) if snapshot.moves else None
    made = plan_carbon(outlook, Demand(waiting), snapshot.running, moves=rules, announced=snapshot.announced)
    works = {work.id: work for work in waiting}
    decisions = {
        one.work_id: settled(one, works[one.work_id], made.book) if one.work_id in works else one
        for one in made.decisions
    }
    return HubPlan(
        at=snapshot.at,
        book=made.book,
        step_s=snapshot.step_s,
        decisions=decisions,
        attempts=snapshot.attempts,
        figures={one.hours.hub: one.figures for one in snapshot.hubs},
        tenant_g_left=snapshot.tenant_g_left or {},
        all_g_left=snapshot.all_g_left,
        announced=_intents(decisions, works, snapshot),
        notes=(*snapshot.notes, *made.notes),
    )


def replace_pool(pool: Pool, step_h: float) -> Pool:
    """The planner multiplies power by steps, so power is energy per step here."""
    return replace(pool, kw_per_gpu=pool.kw_per_gpu * step_h)


def _pools(hub: Hub, summary: HubSummary) -> dict[str, Pool]:
    """By model; and the cores of work without GPUs, of which only those count that are free."""
    pools = {}
    for counted in summary.models:
        nodes = [node for node in hub.nodes if node.gpu_model.name == counted.model]
        gpus = sum(len(node.gpus) for node in nodes)
        kw = sum(node.power_w_max for node in nodes) / 1000 / gpus if gpus else 1.0
        pools[counted.model] = Pool(hub.id, counted.model, counted.total, kw)
    cpus = sum(node.cpus for node in hub.nodes)
    host_kw = sum(node.host_power_w for node in hub.nodes) / 1000 / cpus if cpus else 0.0
    pools[CPU] = Pool(hub.id, CPU, int(summary.cpus_free), max(host_kw, 1e-6))
    return pools


def _counts(summary: HubSummary) -> list[tuple[str, int, int]]:
    return [(one.model, one.total, one.free) for one in summary.models]


def _held_here(desk: Desk) -> dict[str, float]:
    """GPUs of own work that runs here, by model: it is planned job by job."""
    held: dict[str, float] = {}
    for workload in _placed(desk):
        model = _model_of(desk, workload)
        share = desk.scheduler.room.kind(workload.spec.resources).gpu_milli / 1000
        held[model] = held.get(model, 0.0) + sum(len(task.gpu_ids) for task in workload.placement) * share
    return held


def _lent_there(lent: Iterable[Workload], hub_id: str) -> dict[str, float]:
    held: dict[str, float] = {}
    for workload in lent:
        models = workload.spec.resources.models_wanted
        if workload.runner_hub == hub_id and models:
            held[models[0]] = held.get(models[0], 0.0) + workload.spec.gpus_total
    return held


def _others(desk: Desk, summary: HubSummary, own: Mapping[str, float], step_s: float) -> list[FlexibleWork]:
    """What is not free and not known job by job, as one lump for each model, which stays for hours."""
    lumps = []
    for model, total, free in _counts(summary):
        busy = total - free - own.get(model, 0.0)
        if busy > 0:
            lumps.append(_lump(f"busy {summary.hub_id} {model}", summary.hub_id, model, busy, UNKNOWN_S / step_s))
    return lumps


def _lump(name: str, hub: str, model: str, gpus: float, hours: float) -> FlexibleWork:
    return FlexibleWork(id=name, hubs=frozenset({hub}), model=model, gpus=gpus, hours_left=hours, running_at=hub)


def _own_running(
    desk: Desk, pools: Pools, lent: Iterable[Workload], attempts: dict[str, int], now: datetime
) -> list[FlexibleWork]:
    works = []
    for workload in [*_placed(desk), *lent]:
        if workload.guest or not workload.spec.resources.gpus:
            continue
        work = running_work(desk, workload, pools, now=now)
        if not workload.leased:
            work = replace(work, model=_model_of(desk, workload))
        if (work.running_at or "", work.model) in pools:
            attempts[workload.id] = workload.attempt
            works.append(work)
    return works


def _placed(desk: Desk) -> list[Workload]:
    """Own work with GPUs that runs at this hub."""
    found = (desk.registry.workloads.get(request_id) for request_id in desk.scheduler.running)
    own = [one for one in found if one is not None and not one.guest and one.placement and one.spec.resources.gpus]
    return own[:JOBS_MAX]


def _model_of(desk: Desk, workload: Workload) -> str:
    nodes = {node.id: node for node in desk.hub.nodes}
    return nodes[workload.placement[0].node_id].gpu_model.name


def _held_back(desk: Desk) -> list[Workload]:
    held = [desk.registry.workloads[workload_id] for workload_id in desk.carbon.held]
    return sorted(
        held,
        key=lambda one: (one.carbon.release_at if one.carbon and one.carbon.release_at else one.created_at, one.id),
    )[:JOBS_MAX]


def _announced(
    intents: Mapping[str, tuple[Intent, ...]], own: str, now: datetime, step_s: float
) -> tuple[Announced, ...]:
    """What others mean to start, in steps from now; what should have started is in the figures already."""
    found = []
    for hub_id in sorted(intents):
        for one in intents[hub_id][:INTENTS_MAX] if hub_id != own else ():
            step = int((one.at - now).total_seconds() // step_s)
            if 0 <= step < STEPS and 0 < one.gpus < 1e6 and 0 < one.hours < 1e4:
                found.append(Announced(one.hub_id, one.model, one.gpus, step, one.hours * 3600 / step_s))
    return tuple(found)


def _intents(
    decisions: Mapping[str, Decision], works: Mapping[str, FlexibleWork], snapshot: Snapshot
) -> tuple[Intent, ...]:
    """Summed by hub, model and step, the largest first."""
    sums: dict[tuple[str, str, int], tuple[float, float]] = {}
    for work_id, work in works.items():
        decision = decisions.get(work_id)
        if decision is None or decision.hub in (None, work.home) or decision.verb not in (Verb.START, Verb.WAIT):
            continue
        key = (decision.hub or "", work.model, decision.start_h)
        gpus, gpu_hours = sums.get(key, (0.0, 0.0))
        sums[key] = (gpus + work.gpus, gpu_hours + work.gpus * work.hours_left * snapshot.step_s / 3600)
    largest = sorted(sums.items(), key=lambda item: (-item[1][1], item[0]))[:INTENTS_MAX]
    return tuple(
        Intent(hub, model, snapshot.at + timedelta(seconds=step * snapshot.step_s), gpus, gpu_hours / gpus)
        for (hub, model, step), (gpus, gpu_hours) in largest
    )


def _less_slack(snapshot: Snapshot) -> tuple[FlexibleWork, ...]:
    """Where too much waits already, some of it waits no longer: what waits now must still fit in later."""
    gpus = {pool.key: pool.gpus for pool in snapshot.pools}
    due = crowd_of(snapshot.pools, Demand(snapshot.waiting), snapshot.running).due
    return tuple(
        replace(work, wait_h_max=0.0)
        if work.id in due
        and sum(gpus.get((hub, work.model), 0) for hub in work.hubs) >= CROWD_GPUS_MIN
        and work.model != CPU
        else work
        for work in snapshot.waiting
    )
