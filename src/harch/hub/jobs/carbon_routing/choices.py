"""Here now, there now, or later? One decision of the plan, in the words that are kept with a workload. Pure.

Whatever goes wrong with a plan, work starts as if nobody planned, and its choice says so.
"""

# harch: pure

from __future__ import annotations

import math
from datetime import timedelta

from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.carbon.planning.capacity import CapacityLedger
from harch.carbon.planning.decisions import CarbonDecision, DecisionKind, HubOption
from harch.carbon.planning.dispatch import decide
from harch.carbon.planning.work import FlexibleWork
from harch.hub.jobs.carbon_plan import FIRST_PLAN_S, HubPlan
from harch.hub.jobs.carbon_routing.candidates import (
    hubs_for,
    is_limited,
    is_planned,
    release_at,
    scarce_for,
    start_by,
    waiting_work,
)
from harch.hub.jobs.events import EventContext
from harch.hub.jobs.state import JobState
from harch.wire.carbon import CarbonChoice, CarbonOption
from harch.workloads.lifecycle import Workload
from harch.workloads.spec import WorkloadSpec

GAIN_SHARE_MIN = 0.05  # of what starting at once at home emits; less is within the error of any forecast
NO_PLAN = "the hub has no plan: it starts without one"
NOT_JUDGED = "its limit of grams could not be judged"


def choose(state: JobState, context: EventContext, workload: Workload) -> CarbonChoice | None:
    """For work that comes in. None: there is nothing to decide. Raises E0402 if a limit leaves no hub and hour."""
    memory = state.carbon
    settings = context.limits.carbon
    planned, limited = is_planned(workload.spec, settings), is_limited(workload, settings)
    if not planned and not limited:
        return None
    plan = memory.fresh_plan(context.now, context.boot_s)
    if plan is None:
        return _without_plan(state, context, workload, planned=planned, limited=limited)
    # Tags of data may change at any time; what else decides is asked again before any offer.
    known = None if workload.data_ids else memory.hubs_known
    work = waiting_work(state, context, workload, plan.pools, planned=planned, known=known)
    decision = weighed(state, plan, work)
    if decision is None:
        return at_once(state, context, workload, "the plan could not evaluate it")
    if decision.verb is DecisionKind.REFUSE:
        if is_weighable(plan, work):
            raise over_limit(workload, decision.reason)
        return at_once(state, context, workload, decision.reason)
    choice = choice_of(state, context, workload, decision, plan)
    if settings.has_budgets:
        memory.reserve(workload.tenant, choice.reserved_g)
    return choice


def preview(
    state: JobState, context: EventContext, spec: WorkloadSpec, *, tenant: str, data_ids: tuple[str, ...]
) -> CarbonChoice | None:
    """What would be decided for work that nobody has submitted. Raises E0402 as a submission would; changes nothing."""
    memory = state.carbon
    workload = Workload(
        id=spec.name,
        tenant=tenant,
        owner_hub=state.hub.id,
        spec=spec,
        created_at=context.now,
        updated_at=context.now,
        data_ids=data_ids,
    )
    reserved = dict(memory.reserved)
    choice = choose(state, context, workload)
    memory.reserved = reserved
    plan, chosen = memory.plan, choice.chosen if choice is not None else None
    if plan is not None and choice is not None and chosen is not None:
        planned = is_planned(spec, context.limits.carbon)
        work = waiting_work(state, context, workload, plan.pools, planned=planned, known=memory.hubs_known)
        step = round((chosen.start_at - plan.at).total_seconds() / plan.step_s)
        plan.book.enter(work, chosen.hub_id, step, sign=-1)
    return choice


def weighed(state: JobState, plan: HubPlan, work: FlexibleWork) -> CarbonDecision | None:
    """The plan's word for one job; where that gains too little, at once at home. None: the plan is of no use."""
    book, budgets = plan.book, state.carbon.budgets(work.tenant)
    left_g = budgets.left_g(work)
    try:
        decision = decide(work, book, budgets)
    except (ValueError, ArithmeticError, LookupError):  # a fault of the plan must not keep work from starting
        return None
    if decision.chosen is not None and not math.isfinite(decision.chosen.grams):
        return None
    return settled(decision, work, book, left_g)


def settled(
    decision: CarbonDecision, work: FlexibleWork, book: CapacityLedger, left_g: float = math.inf
) -> CarbonDecision:
    """The decision, or at once at home where that costs hardly more and keeps the limits too."""
    chosen, home = decision.chosen, decision.at_once
    if (
        chosen is None
        or home is None
        or decision.verb not in (DecisionKind.START, DecisionKind.WAIT)
        or chosen[:2] == home[:2]
    ):
        return decision
    ceiling = math.inf if work.g_per_kwh_max is None else work.g_per_kwh_max
    left_g = min(left_g, math.inf if work.g_max is None else work.g_max)
    may_stay = work.home in work.hubs and home.grams <= left_g and home.g_per_kwh <= ceiling
    if not may_stay or home.cost_g - chosen.cost_g >= GAIN_SHARE_MIN * abs(home.cost_g):
        return decision
    book.enter(work, chosen.hub, chosen.start_step, sign=-1)
    book.enter(work, home.hub, home.start_step)
    return _at_home(decision, home)


def is_weighable(plan: HubPlan, work: FlexibleWork) -> bool:
    """Whether the plan knows any hub for it; if not, its silence is no refusal."""
    return any(hub in work.hubs and model == work.model for hub, model in plan.pools)


def choice_of(
    state: JobState, context: EventContext, workload: Workload, decision: CarbonDecision, plan: HubPlan
) -> CarbonChoice:
    """Of a decision that names a hub."""
    promise = start_by(workload)
    waits = decision.verb in (DecisionKind.WAIT, DecisionKind.SUSPEND)
    latest = None
    if promise is not None:
        known = None if workload.data_ids else state.carbon.hubs_known
        scarce = scarce_for(state, workload, plan.pools, hubs_for(state, workload, known))
        latest = release_at(workload, promise, scarce=scarce)
    start_at = plan.moment(decision.start_step) if waits else context.now
    before = workload.carbon or CarbonChoice(action="", decided_at=context.now, hub_id="")
    return replace(
        before,
        action=str(decision.verb),
        decided_at=context.now,
        hub_id=decision.hub or state.hub.id,
        reason=decision.reason,
        held=waits,
        start_at=start_at if latest is None else min(start_at, max(latest, context.now)),
        start_by=promise,
        release_at=latest,
        chosen=_option(decision.chosen, plan),
        at_once=_option(decision.at_once, plan),
        options=tuple(option for one in decision.options if (option := _option(one, plan)) is not None),
        move_cost_g=decision.move_cost_g,
        reserved_g=decision.chosen.grams if decision.chosen is not None else 0.0,
        refused="",
        requested_there=False,
    )


def at_once(state: JobState, context: EventContext, workload: Workload, why: str) -> CarbonChoice:
    """As if nobody planned."""
    before = workload.carbon or CarbonChoice(action="", decided_at=context.now, hub_id="")
    return replace(
        before,
        action=str(DecisionKind.START),
        decided_at=context.now,
        hub_id=state.hub.id,
        reason=why,
        held=False,
        start_at=context.now,
        start_by=start_by(workload),
    )


def over_limit(workload: Workload, why: str) -> HarchError:
    ceiling = "ceiling" in why
    hint = (
        "raise `carbon.g_per_kwh_max`, or give it more slack: `harch carbon forecast` shows cleaner hours"
        if ceiling
        else f"`harch carbon report --tenant {workload.tenant}` shows what was spent; budgets are per month (UTC), and"
        " an operator sets them in carbon.toml"
    )
    if workload.spec.carbon.g_max is not None and not ceiling:
        hint = "raise `carbon.g_max`, state a shorter `carbon.duration_s`, or give it slack for cleaner hours"
    return HarchError("E0402", f"no hub and hour meets its limits: {why}", hint=hint, field="carbon")


def _without_plan(
    state: JobState, context: EventContext, workload: Workload, *, planned: bool, limited: bool
) -> CarbonChoice:
    """The first plan is moments away when a hub has just started; if none comes, nobody waits for it."""
    promise = start_by(workload) if planned else None
    started = at_once(state, context, workload, f"{NO_PLAN}; {NOT_JUDGED}" if limited else NO_PLAN)
    if promise is None or state.carbon.plan is not None:
        return started
    latest = min(release_at(workload, promise), context.now + timedelta(seconds=FIRST_PLAN_S))
    if latest <= context.now:
        return started
    return replace(
        started,
        action=str(DecisionKind.WAIT),
        held=True,
        start_at=latest,
        release_at=latest,
        reason="waits for the first plan",
    )


def _at_home(decision: CarbonDecision, home: HubOption) -> CarbonDecision:
    reason = "elsewhere or later would save less than the forecast error"
    return CarbonDecision(
        decision.work_id,
        DecisionKind.START,
        home.hub,
        home.start_step,
        decision.starts_by_h,
        home,
        home,
        decision.options,
        reason=reason,
    )


def _option(option: HubOption | None, plan: HubPlan) -> CarbonOption | None:
    if option is None:
        return None
    basis = plan.basis.get(option.hub)
    return CarbonOption(
        hub_id=option.hub,
        start_at=plan.moment(option.start_step),
        grams=round(option.grams, 3),
        kwh=round(option.kwh, 6),
        cost_g=round(option.cost_g, 3),
        rests_on=basis.rests_on if basis is not None else "",
        data_at=basis.at if basis is not None else None,
    )
