"""Here now, there now, or later? One decision of the plan, in the words that are kept with a workload. Pure.

Whatever goes wrong with a plan, work starts as if nobody planned, and its choice says so.
"""

from __future__ import annotations

import math
from datetime import timedelta

from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.carbon.planning.book import Book
from harch.carbon.planning.decisions import Decision, Option, Verb
from harch.carbon.planning.dispatch import decide
from harch.carbon.planning.work import FlexibleWork
from harch.hub.desk import Desk
from harch.hub.routing.memory import FIRST_PLAN_S, HubPlan
from harch.hub.routing.works import hubs_for, is_limited, is_planned, release_at, scarce_for, start_by, waiting_work
from harch.workloads.carbon import CarbonChoice, CarbonOption
from harch.workloads.lifecycle import Workload
from harch.workloads.spec import WorkloadSpec

GAIN_SHARE_MIN = 0.05  # of what starting at once at home emits; less is within the error of any forecast
NO_PLAN = "the hub has no plan: it starts as if nobody planned"
NOT_JUDGED = "its limit of grams could not be judged"


def choose(desk: Desk, workload: Workload) -> CarbonChoice | None:
    """For work that comes in. None: there is nothing to decide. Raises E0402 if a limit leaves no hub and hour."""
    memory = desk.carbon
    planned, limited = is_planned(workload.spec, memory.settings), is_limited(workload, memory.settings)
    if not planned and not limited:
        return None
    plan = memory.fresh_plan(desk.now, desk.boot_s)
    if plan is None:
        return _without_plan(desk, workload, planned=planned, limited=limited)
    # Tags of data may change at any time; what else decides is asked again before any offer.
    known = None if workload.data_ids else memory.hubs_known
    work = waiting_work(desk, workload, plan.pools, planned=planned, now=desk.now, known=known)
    decision = weighed(desk, plan, work)
    if decision is None:
        return at_once(desk, workload, "the plan could not weigh it")
    if decision.verb is Verb.REFUSE:
        if is_weighable(plan, work):
            raise over_limit(workload, decision.reason)
        return at_once(desk, workload, decision.reason)
    choice = choice_of(desk, workload, decision, plan)
    memory.reserve(workload.tenant, choice.reserved_g)
    return choice


def preview(desk: Desk, spec: WorkloadSpec, *, tenant: str, data_ids: tuple[str, ...]) -> CarbonChoice | None:
    """What would be decided for work that nobody has submitted. Raises E0402 as a submission would; changes nothing."""
    memory = desk.carbon
    workload = Workload(
        id=spec.name,
        tenant=tenant,
        owner_hub=desk.hub.id,
        spec=spec,
        created_at=desk.now,
        updated_at=desk.now,
        data_ids=data_ids,
    )
    reserved = dict(memory.reserved)
    choice = choose(desk, workload)
    memory.reserved = reserved
    plan, chosen = memory.plan, choice.chosen if choice is not None else None
    if plan is not None and choice is not None and chosen is not None:
        planned = is_planned(spec, memory.settings)
        work = waiting_work(desk, workload, plan.pools, planned=planned, now=desk.now, known=memory.hubs_known)
        step = round((chosen.start_at - plan.at).total_seconds() / plan.step_s)
        plan.book.enter(work, chosen.hub_id, step, sign=-1)
    return choice


def weighed(desk: Desk, plan: HubPlan, work: FlexibleWork) -> Decision | None:
    """The plan's word for one job; where that gains too little, at once at home. None: the plan is of no use."""
    book, budgets = plan.book, desk.carbon.budgets(work.tenant)
    left_g = budgets.left_g(work)
    try:
        decision = decide(work, book, budgets)
    except (ValueError, ArithmeticError, LookupError):  # a fault of the plan must not keep work from starting
        return None
    if decision.chosen is not None and not math.isfinite(decision.chosen.grams):
        return None
    return settled(decision, work, book, left_g)


def settled(decision: Decision, work: FlexibleWork, book: Book, left_g: float = math.inf) -> Decision:
    """The decision, or at once at home where that costs hardly more and keeps the limits too."""
    chosen, home = decision.chosen, decision.at_once
    if chosen is None or home is None or decision.verb not in (Verb.START, Verb.WAIT) or chosen[:2] == home[:2]:
        return decision
    ceiling = math.inf if work.g_per_kwh_max is None else work.g_per_kwh_max
    left_g = min(left_g, math.inf if work.g_max is None else work.g_max)
    may_stay = work.home in work.hubs and home.grams <= left_g and home.g_per_kwh <= ceiling
    if not may_stay or home.cost_g - chosen.cost_g >= GAIN_SHARE_MIN * abs(home.cost_g):
        return decision
    book.enter(work, chosen.hub, chosen.start_h, sign=-1)
    book.enter(work, home.hub, home.start_h)
    return _at_home(decision, home)


def is_weighable(plan: HubPlan, work: FlexibleWork) -> bool:
    """Whether the plan knows any hub for it; if not, its silence is no refusal."""
    return any(hub in work.hubs and model == work.model for hub, model in plan.pools)


def choice_of(desk: Desk, workload: Workload, decision: Decision, plan: HubPlan) -> CarbonChoice:
    """Of a decision that names a hub."""
    promise = start_by(workload)
    waits = decision.verb in (Verb.WAIT, Verb.SUSPEND)
    latest = None
    if promise is not None:
        known = None if workload.data_ids else desk.carbon.hubs_known
        scarce = scarce_for(desk, workload, plan.pools, hubs_for(desk, workload, known))
        latest = release_at(workload, promise, scarce=scarce)
    start_at = plan.moment(decision.start_h) if waits else desk.now
    before = workload.carbon or CarbonChoice(action="", decided_at=desk.now, hub_id="")
    return replace(
        before,
        action=str(decision.verb),
        decided_at=desk.now,
        hub_id=decision.hub or desk.hub.id,
        reason=decision.reason,
        held=waits,
        start_at=start_at if latest is None else min(start_at, max(latest, desk.now)),
        start_by=promise,
        release_at=latest,
        chosen=_option(decision.chosen, plan),
        at_once=_option(decision.at_once, plan),
        options=tuple(option for one in decision.options if (option := _option(one, plan)) is not None),
        move_cost_g=decision.move_cost_g,
        reserved_g=decision.chosen.grams if decision.chosen is not None else 0.0,
        refused="",
        asked_there=False,
    )


def at_once(desk: Desk, workload: Workload, why: str) -> CarbonChoice:
    """As if nobody planned."""
    before = workload.carbon or CarbonChoice(action="", decided_at=desk.now, hub_id="")
    return replace(
        before,
        action=str(Verb.START),
        decided_at=desk.now,
        hub_id=desk.hub.id,
        reason=why,
        held=False,
        start_at=desk.now,
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
    return HarchError("E0402", f"no hub and hour keeps its limits: {why}", hint=hint, field="carbon")


def _without_plan(desk: Desk, workload: Workload, *, planned: bool, limited: bool) -> CarbonChoice:
    """The first plan is moments away when a hub has just started; if none comes, nobody waits for it."""
    promise = start_by(workload) if planned else None
    started = at_once(desk, workload, f"{NO_PLAN}; {NOT_JUDGED}" if limited else NO_PLAN)
    if promise is None or desk.carbon.plan is not None:
        return started
    latest = min(release_at(workload, promise), desk.now + timedelta(seconds=FIRST_PLAN_S))
    if latest <= desk.now:
        return started
    return replace(
        started, action=str(Verb.WAIT), held=True, start_at=latest, release_at=latest, reason="waits for the first plan"
    )


def _at_home(decision: Decision, home: Option) -> Decision:
    reason = "elsewhere or later would save less than forecasts err by"
    return Decision(
        decision.work_id,
        Verb.START,
        home.hub,
        home.start_h,
        decision.starts_by_h,
        home,
        home,
        decision.options,
        reason=reason,
    )


def _option(option: Option | None, plan: HubPlan) -> CarbonOption | None:
    if option is None:
        return None
    figures = plan.figures.get(option.hub)
    return CarbonOption(
        hub_id=option.hub,
        start_at=plan.moment(option.start_h),
        grams=round(option.grams, 3),
        kwh=round(option.kwh, 6),
        cost_g=round(option.cost_g, 3),
        rests_on=figures.rests_on if figures is not None else "",
        figures_at=figures.at if figures is not None else None,
    )
