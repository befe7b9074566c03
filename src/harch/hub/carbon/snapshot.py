"""What will a hub's power be, step by step? Its present figures and its forecast, checked, as the planner wants them.

What another hub says of itself is taken only if it can be true. A hub of which nothing can be said is left out, with
the reason: unknown is never clean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import numpy as np

from harch.base.rejection import Rejection
from harch.carbon.planning.decisions import CarbonDecision, DecisionKind
from harch.carbon.planning.dispatch import MoveRules
from harch.carbon.planning.outlook import Aims, Floats, HubHours, Pool, PowerOutlook, RestsOn
from harch.carbon.planning.plan import Announced, plan_carbon
from harch.carbon.planning.slack import crowd_of
from harch.carbon.planning.work import FlexibleWork, WorkDemand
from harch.carbon.values import Signal
from harch.fleet.model import Fleet, Hub
from harch.hub.carbon.budgets import SpentEntry
from harch.hub.carbon.signals import BID_CURRENCY
from harch.hub.jobs.carbon_plan import ForecastBasis, HubPlan, Intent
from harch.hub.jobs.carbon_routing.candidates import CPU, HOUR_S, HubsKnown, Pools, running_work, waiting_work
from harch.hub.jobs.carbon_routing.choices import settled
from harch.hub.jobs.events import EventContext
from harch.hub.jobs.state import JobState
from harch.hub.views import PeerView
from harch.wire.carbon import ForecastHour, GridForecast, HubPower
from harch.wire.hubs import HubSummary
from harch.workloads.lifecycle import Workload

G_PER_KWH_MAX = 2000.0  # beyond any grid or plant
KW_MAX = 1e7
PRICE_MAX = 1e6  # per MWh; it may be negative
PUE_MAX = 5.0
PUBLISHED_HOLDS = timedelta(minutes=15)  # what a hub said of its power longer ago says nothing about now
FORECAST_HOLDS = timedelta(hours=6)
ONSITE_SD_SHARE = 0.3  # how far off own power usually is, hours ahead; assumed where nobody measured it
ONSITE_G_PER_KWH = 20.0
HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class HubOutlook:
    """One hub's hours, and on what they rest."""

    hours: HubHours
    basis: ForecastBasis


def hub_outlook(
    power: HubPower | None,
    forecast: GridForecast | None,
    *,
    hub_id: str,
    now: datetime,
    steps: int,
    step_s: float,
    busy_it_kw: float,
    plants: Sequence[Mapping[datetime, float]] = (),
) -> HubOutlook | Rejection:
    """`busy_it_kw` is drawn by work that the plan knows of; the rest of the load takes own power before any job does.

    `plants`: what each of its own will give, where that is known in finer steps than the forecast's.
    """
    if power is None:
        return _no(hub_id, "said", "it has not reported its power")
    age = now - power.at
    if not -PUBLISHED_HOLDS <= age <= PUBLISHED_HOLDS:
        return _no(hub_id, "stale", f"its power was reported {age.total_seconds():.0f} s ago")
    grid = power.figure(Signal.GRID_AVERAGE_LIFECYCLE)
    pue, loss = power.figure(Signal.PUE).value or 1.0, power.transmission_loss
    if grid.value is None or grid.at is None or not _within(grid.value, G_PER_KWH_MAX):
        return _no(hub_id, "number", "its grid intensity is unknown or invalid")
    if not (_within(power.onsite_kw, KW_MAX) and _within(power.load_kw, KW_MAX) and _within(loss, 0.5)):
        return _no(hub_id, "number", "its power or losses are impossible")
    if not 1.0 <= pue <= PUE_MAX:
        return _no(hub_id, "number", f"its PUE is {pue:g}")
    ahead = forecast if forecast is not None and abs(now - forecast.made_at) <= FORECAST_HOLDS else None
    hours = _usable(ahead.hours) if ahead is not None else {}
    moments = [now + timedelta(seconds=step_s * step) for step in range(steps)]
    grid_g = np.array([_hour_of(hours, at, grid.value) for at in moments])
    grid_g[0] = grid.value
    onsite = _plants(power, plants, moments) if plants else _onsite(power, hours, moments)
    base_kw = max(0.0, power.load_kw - busy_it_kw * pue)
    spare = np.maximum(onsite - base_kw, 0.0)
    own_g = power.figure(Signal.ONSITE_LIFECYCLE).value
    price = power.price_per_mwh if power.currency == BID_CURRENCY else None
    source = f"{grid.source} now" + (f", {ahead.model} ahead" if hours and ahead is not None else ", the same ahead")
    rests_on = RestsOn(source, evidence=grid.evidence or "estimated")
    plan_hours = HubHours(
        hub=hub_id,
        grid_g_per_kwh=grid_g,
        onsite_kw=spare,
        onsite_sd_kw=_unsure(spare),
        onsite_g_per_kwh=own_g if own_g is not None and _within(own_g, G_PER_KWH_MAX) else ONSITE_G_PER_KWH,
        pue=pue,
        transmission_loss=loss,
        price_per_mwh=np.full(steps, price) if price is not None and _within(abs(price), PRICE_MAX) else None,
        rests_on=rests_on,
    )
    return HubOutlook(plan_hours, ForecastBasis(f"{rests_on}; {grid.value:.0f} g/kWh now", grid.at))


def _usable(hours: Sequence[ForecastHour]) -> dict[datetime, ForecastHour]:
    return {
        hour.at: hour
        for hour in hours
        if _within(hour.g_per_kwh, G_PER_KWH_MAX) and (hour.onsite_kw is None or _within(hour.onsite_kw, KW_MAX))
    }


def _hour_of(hours: Mapping[datetime, ForecastHour], moment: datetime, otherwise: float) -> float:
    hour = hours.get(_full_hour(moment))
    return hour.g_per_kwh if hour is not None else otherwise


def _onsite(power: HubPower, hours: Mapping[datetime, ForecastHour], moments: Sequence[datetime]) -> Floats:
    """What plants will give; where no forecast tells it, nothing: own power that may not come is not counted on."""
    found = (hours.get(_full_hour(moment)) for moment in moments)
    values = np.array([hour.onsite_kw or 0.0 if hour is not None else 0.0 for hour in found])
    values[0] = power.onsite_kw
    return values


def _plants(power: HubPower, plants: Sequence[Mapping[datetime, float]], moments: Sequence[datetime]) -> Floats:
    """Each foretold value holds until the next one of its plant, an hour at most; before the first, it is as now."""
    total, begins = np.zeros(len(moments)), len(moments)
    at_s = np.array([moment.timestamp() for moment in moments])
    for plant in plants:
        times = sorted(at for at, kw in plant.items() if _within(kw, KW_MAX))
        if not times:
            continue
        times_s = np.array([at.timestamp() for at in times])
        last = np.searchsorted(times_s, at_s, side="right") - 1
        holds = (last >= 0) & (at_s - times_s[last] < HOUR.total_seconds())
        total += np.where(holds, np.array([plant[at] for at in times])[last], 0.0)
        begins = min(begins, int(np.argmax(last >= 0)) if (last >= 0).any() else len(moments))
    total[:begins] = power.onsite_kw
    total[0] = power.onsite_kw
    return total


def _unsure(spare: Floats) -> Floats:
    """The present is known; the rest as far off as forecasts of wind and sun usually are."""
    sd = ONSITE_SD_SHARE * spare
    sd[0] = 0.0
    return sd


def _full_hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


def _within(value: float, high: float) -> bool:
    return math.isfinite(value) and 0.0 <= value <= high


def _no(hub_id: str, rule: str, detail: str) -> Rejection:
    return Rejection(hub_id, rule, detail, nearest_fix="`harch carbon now` shows what each hub knows of its power")


# What does a plan rest on? Everything that the hub knows at one moment, as plain values; and the plan made of them.


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
class KnownPower:
    """What is known of the power of all hubs: figures now, forecasts, and what each means to start elsewhere."""

    powers: Mapping[str, HubPower]
    forecasts: Mapping[str, GridForecast]
    intents: Mapping[str, tuple[Intent, ...]]
    plants: tuple[Mapping[datetime, float], ...] = ()  # of this hub, foretold
    spent: Mapping[str, SpentEntry] = field(default_factory=dict)  # of tenants' budgets, by other hubs


def take(
    state: JobState, context: EventContext, fleet: Fleet, peers: Iterable[PeerView], known: KnownPower
) -> Snapshot:
    """Reads the hub's memory; changes nothing."""
    now, planning = context.now, context.limits.carbon.planning
    given = (state.registry.workloads[workload_id] for workload_id in state.lending.given)
    lent = [workload for workload in given if workload.started_at is not None][:JOBS_MAX]
    hubs: list[HubOutlook] = []
    pools: dict[tuple[str, str], Pool] = {}
    running: list[FlexibleWork] = []
    notes: list[str] = []
    for peer in peers:
        place = fleet.hub(peer.hub_id)
        if peer.summary is None or place is None or not peer.reachable:
            notes.append(f"{peer.hub_id} is left out of the plan: {peer.error or 'no data about it'}")
            continue
        own_pools = _pools(place, peer.summary)
        busy_kw = sum((total - free) * own_pools[model].kw_per_gpu for model, total, free in _counts(peer.summary))
        outlook = hub_outlook(
            known.powers.get(peer.hub_id),
            known.forecasts.get(peer.hub_id),
            hub_id=peer.hub_id,
            now=now,
            steps=STEPS,
            step_s=planning.step_s,
            busy_it_kw=busy_kw,
            plants=known.plants if peer.own else (),
        )
        if isinstance(outlook, Rejection):
            notes.append(f"{peer.hub_id} is left out of the plan ({outlook.rule}): {outlook.detail}")
            continue
        hubs.append(outlook)
        pools.update((pool.key, pool) for pool in own_pools.values())
        held = _held_here(state) if peer.own else _lent_there(lent, peer.hub_id)
        running += _others(peer.summary, held)
    hubs_known: HubsKnown = {}
    attempts: dict[str, int] = {}
    running += _own_running(state, context, pools, lent, attempts)
    return Snapshot(
        at=now,
        step_s=planning.step_s,
        hubs=tuple(hubs),
        pools=tuple(pools.values()),
        waiting=tuple(
            waiting_work(state, context, workload, pools, planned=True, known=hubs_known)
            for workload in _held_back(state)
        ),
        running=tuple(running),
        announced=_announced(known.intents, state.hub.id, now, planning.step_s),
        attempts=attempts,
        g_per_usd=planning.g_per_usd,
        moves=planning.moves_per_hour > 0,
        notes=tuple(notes),
    )


def make_plan(snapshot: Snapshot) -> HubPlan | None:
    """None if no hub's power is known. The same snapshot gives the same plan."""
    if not snapshot.hubs:
        return None
    outlook = PowerOutlook(
        tuple(one.hours for one in snapshot.hubs),
        snapshot.pools,
        Aims(g_per_money=snapshot.g_per_usd),
        step_h=snapshot.step_s / HOUR_S,
    )
    waiting = _less_slack(snapshot)
    rules = MoveRules(hours_left_min=1.0) if snapshot.moves else None
    made = plan_carbon(outlook, WorkDemand(waiting), snapshot.running, moves=rules, announced=snapshot.announced)
    work_items = {work.id: work for work in waiting}
    decisions = {
        one.work_id: settled(one, work_items[one.work_id], made.book) if one.work_id in work_items else one
        for one in made.decisions
    }
    return HubPlan(
        at=snapshot.at,
        book=made.book,
        step_s=snapshot.step_s,
        decisions=decisions,
        attempts=snapshot.attempts,
        basis={one.hours.hub: one.basis for one in snapshot.hubs},
        tenant_g_left=snapshot.tenant_g_left or {},
        all_g_left=snapshot.all_g_left,
        announced=_intents(decisions, work_items, snapshot),
        notes=(*snapshot.notes, *made.notes),
    )


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


def _held_here(state: JobState) -> dict[str, float]:
    """GPUs of own work that runs here, by model: it is planned job by job."""
    held: dict[str, float] = {}
    for workload in _placed(state):
        model = _model_of(state, workload)
        share = state.scheduler.room.kind(workload.spec.resources).gpu_milli / 1000
        held[model] = held.get(model, 0.0) + sum(len(task.gpu_ids) for task in workload.placement) * share
    return held


def _lent_there(lent: Iterable[Workload], hub_id: str) -> dict[str, float]:
    held: dict[str, float] = {}
    for workload in lent:
        models = workload.spec.resources.models_wanted
        if workload.runner_hub == hub_id and models:
            held[models[0]] = held.get(models[0], 0.0) + workload.spec.gpus_total
    return held


def _others(summary: HubSummary, own: Mapping[str, float]) -> list[FlexibleWork]:
    """What is not free and not known job by job, as one lump for each model, which stays for hours."""
    lumps = []
    for model, total, free in _counts(summary):
        busy = total - free - own.get(model, 0.0)
        if busy > 0:
            lumps.append(_lump(f"busy {summary.hub_id} {model}", summary.hub_id, model, busy, UNKNOWN_S / HOUR_S))
    return lumps


def _lump(name: str, hub: str, model: str, gpus: float, hours: float) -> FlexibleWork:
    return FlexibleWork(id=name, hubs=frozenset({hub}), model=model, gpus=gpus, hours_left=hours, running_at=hub)


def _own_running(
    state: JobState, context: EventContext, pools: Pools, lent: Iterable[Workload], attempts: dict[str, int]
) -> list[FlexibleWork]:
    work_items = []
    for workload in [*_placed(state), *lent]:
        if workload.borrowed or not workload.spec.resources.gpus:
            continue
        work = running_work(state, context, workload, pools)
        if not workload.leased:
            work = replace(work, model=_model_of(state, workload))
        if (work.running_at or "", work.model) in pools:
            attempts[workload.id] = workload.attempt
            work_items.append(work)
    return work_items


def _placed(state: JobState) -> list[Workload]:
    """Own work with GPUs that runs at this hub."""
    found = (state.registry.workloads.get(request_id) for request_id in state.scheduler.running)
    own = [one for one in found if one is not None and not one.borrowed and one.placement and one.spec.resources.gpus]
    return own[:JOBS_MAX]


def _model_of(state: JobState, workload: Workload) -> str:
    nodes = {node.id: node for node in state.hub.nodes}
    return nodes[workload.placement[0].node_id].gpu_model.name


def _held_back(state: JobState) -> list[Workload]:
    held = [state.registry.workloads[workload_id] for workload_id in state.carbon.held]
    return sorted(
        held,
        key=lambda one: (one.carbon.release_at if one.carbon and one.carbon.release_at else one.created_at, one.id),
    )[:JOBS_MAX]


def _announced(
    intents: Mapping[str, tuple[Intent, ...]], own: str, now: datetime, step_s: float
) -> tuple[Announced, ...]:
    """What others mean to start, by step from now; what should have started is in the figures already."""
    found = []
    for hub_id in sorted(intents):
        for one in intents[hub_id][:INTENTS_MAX] if hub_id != own else ():
            step = int((one.at - now).total_seconds() // step_s)
            if 0 <= step < STEPS and 0 < one.gpus < 1e6 and 0 < one.hours < 1e4:
                found.append(Announced(one.hub_id, one.model, one.gpus, step, one.hours))
    return tuple(found)


def _intents(
    decisions: Mapping[str, CarbonDecision], work_items: Mapping[str, FlexibleWork], snapshot: Snapshot
) -> tuple[Intent, ...]:
    """Summed by hub, model and step, the largest first."""
    sums: dict[tuple[str, str, int], tuple[float, float]] = {}
    for work_id, work in work_items.items():
        decision = decisions.get(work_id)
        if (
            decision is None
            or decision.hub in (None, work.home)
            or decision.verb not in (DecisionKind.START, DecisionKind.WAIT)
        ):
            continue
        key = (decision.hub or "", work.model, decision.start_step)
        gpus, gpu_hours = sums.get(key, (0.0, 0.0))
        sums[key] = (gpus + work.gpus, gpu_hours + work.gpus * work.hours_left)
    largest = sorted(sums.items(), key=lambda item: (-item[1][1], item[0]))[:INTENTS_MAX]
    return tuple(
        Intent(hub, model, snapshot.at + timedelta(seconds=step * snapshot.step_s), gpus, gpu_hours / gpus)
        for (hub, model, step), (gpus, gpu_hours) in largest
    )


def _less_slack(snapshot: Snapshot) -> tuple[FlexibleWork, ...]:
    """Where too much waits already, some of it waits no longer: what waits now must still fit in later."""
    gpus = {pool.key: pool.gpus for pool in snapshot.pools}
    due = crowd_of(snapshot.pools, WorkDemand(snapshot.waiting), snapshot.running).due
    return tuple(
        replace(work, wait_h_max=0.0)
        if work.id in due
        and sum(gpus.get((hub, work.model), 0) for hub in work.hubs) >= CROWD_GPUS_MIN
        and work.model != CPU
        else work
        for work in snapshot.waiting
    )
