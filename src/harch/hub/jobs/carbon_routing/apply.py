"""How does a plan become starts, waits and moves? Events of the job machine: a new plan, and time that has passed."""

# harch: pure

from __future__ import annotations

from datetime import timedelta

from msgspec import ValidationError
from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.carbon.planning.decisions import CarbonDecision, DecisionKind
from harch.federation.offers import OrderKind
from harch.hub.jobs.carbon_plan import HubPlan
from harch.hub.jobs.carbon_routing.candidates import is_movable, waiting_work
from harch.hub.jobs.carbon_routing.choices import choice_of, choose, is_weighable, over_limit, weighed
from harch.hub.jobs.carbon_routing.explanations import describe
from harch.hub.jobs.events import CarbonPreferencesChanged
from harch.hub.jobs.transaction import Transaction
from harch.wire.carbon import CarbonChoice
from harch.workloads.lifecycle import State, Workload

SHIFT = timedelta(minutes=30)  # a planned start that moves by less is not worth a line of history, nor a write
RENEW_AFTER = timedelta(hours=1)  # then the figures behind an unchanged choice are renewed


def apply_plan(tx: Transaction, plan: HubPlan) -> None:
    """Held work starts or waits on by it; running work moves where that pays. What changed meanwhile is left alone."""
    tx.state.carbon.planned(plan, tx.boot_s)
    for workload_id, decision in plan.decisions.items():
        workload = tx.state.registry.workloads.get(workload_id)
        if workload is None or workload.borrowed or workload.state.is_final or workload.stop_as is not None:
            continue
        tx.subject = workload_id
        if workload_id in tx.state.carbon.held:
            _planned_again(tx, workload, decision, plan)
        elif decision.verb in (DecisionKind.MOVE, DecisionKind.SUSPEND):
            _interrupt(tx, workload, decision, plan)
    for workload_id in sorted(tx.state.carbon.held - plan.decisions.keys()):
        tx.subject = workload_id
        _weigh_late(tx, tx.state.registry.workloads[workload_id], plan)


def release_due(tx: Transaction) -> None:
    """Whoever has waited long enough: for its hour, for its promise, or for another hub's answer."""
    memory = tx.state.carbon
    for workload_id in memory.take_due(tx.now_s, tx.boot_s):
        tx.subject = workload_id
        workload = tx.state.registry.workloads.get(workload_id)
        offered, watched = workload_id in memory.routes, workload_id in memory.watched
        memory.forget(workload_id)
        if workload is None or workload.carbon is None or workload.state is not State.PENDING or workload.leased:
            continue
        if offered:
            workload.carbon = replace(workload.carbon, requested_there=True)
            tx.changed(workload)
            tx.enqueue(workload)
        elif watched:
            late = "it joined the queue in time, and nothing has come free for it"
            tx.changed(workload, "workload.promise_missed", f"{describe(workload.carbon)}; {late}")
        elif workload.carbon.held:
            release(tx, workload, _why_released(tx, workload.carbon))


def release(tx: Transaction, workload: Workload, why: str) -> None:
    """Into the queue, or to the other hub first. A limit that the newest plan cannot keep ends it instead."""
    choice = workload.carbon
    if choice is None:
        return
    tx.state.carbon.forget(workload.id)
    if choice.refused and tx.state.carbon.fresh_plan(tx.now, tx.boot_s) is not None:
        error = over_limit(workload, choice.refused)
        workload.error_message = f"{error.code} {error.message}"
        workload.carbon = replace(choice, held=False)
        tx.end(workload, State.FAILED, workload.error_message)
        return
    workload.carbon = replace(choice, held=False)
    tx.changed(workload, "workload.released", why)
    tx.enqueue(workload)


def _planned_again(tx: Transaction, workload: Workload, decision: CarbonDecision, plan: HubPlan) -> None:
    before = workload.carbon
    if before is None:
        return
    if decision.verb is DecisionKind.REFUSE:
        work = waiting_work(tx.state, tx.context, workload, plan.pools, planned=True)
        if not is_weighable(plan, work):  # its hubs are not in the plan: that is no reason to wait, nor to refuse
            release(tx, workload, f"the plan could not evaluate it: {decision.reason}")
        elif before.refused != decision.reason and before.start_by is not None:
            workload.carbon = replace(before, refused=decision.reason, decided_at=tx.now)
            tx.changed(workload, "workload.replanned", f"no hub and hour meets its limits: {decision.reason}")
        return
    # Where power will not change, nothing is waited for but room, and that is what a queue is for.
    starts = decision.verb is DecisionKind.START and (decision.room or decision.queues)
    if not starts and _is_as_before(tx, before, decision, plan):
        return
    choice = choice_of(tx.state, tx.context, workload, decision, plan)
    if starts:
        workload.carbon = choice
        release(tx, workload, f"starts now: {describe(choice)}")
        return
    if decision.verb is DecisionKind.START:  # nowhere is room for all of it: it keeps its place until its promise nears
        choice = replace(choice, held=True, action=str(DecisionKind.WAIT), start_at=before.release_at or tx.now)
    workload.carbon = choice
    shifted = before.start_at is None or choice.start_at is None or abs(choice.start_at - before.start_at) >= SHIFT
    news = shifted or choice.hub_id != before.hub_id or bool(before.refused)
    tx.changed(workload, "workload.replanned" if news else "", describe(choice))
    tx.state.carbon.hold(workload, choice, now=tx.now, boot_s=tx.boot_s)


def _is_as_before(tx: Transaction, before: CarbonChoice, decision: CarbonDecision, plan: HubPlan) -> bool:
    """The same hub at about the same time: most of what planning says of thousands of held jobs every few minutes."""
    if (
        decision.verb is not DecisionKind.WAIT
        or before.start_at is None
        or before.refused
        or before.hub_id != decision.hub
    ):
        return False
    shift = abs(plan.moment(decision.start_step) - before.start_at)
    return shift < min(SHIFT, timedelta(seconds=plan.step_s)) and tx.now - before.decided_at < RENEW_AFTER


def _weigh_late(tx: Transaction, workload: Workload, plan: HubPlan) -> None:
    """It came while the plan was made."""
    work = waiting_work(tx.state, tx.context, workload, plan.pools, planned=True)
    decision = weighed(tx.state, plan, work)
    if decision is None:
        release(tx, workload, "the plan could not evaluate it")
    else:
        _planned_again(tx, workload, decision, plan)


def _interrupt(tx: Transaction, workload: Workload, decision: CarbonDecision, plan: HubPlan) -> None:
    """Stops it in an orderly way; it goes on from what it saved, there or later."""
    memory, before = tx.state.carbon, workload.carbon
    if workload.started_at is None or plan.attempts.get(workload.id) != workload.attempt:
        return
    ran_s = tx.context.elapsed_s(workload.started_at)
    if not memory.may_move(
        tx.boot_s, moves_per_hour=tx.context.limits.carbon.planning.moves_per_hour
    ) or not is_movable(tx.context, workload, ran_s):
        return
    known = before or CarbonChoice(action="", decided_at=tx.now, hub_id=tx.state.hub.id)
    # First what it has done: the promise counts from that.
    workload.carbon = replace(known, ran_s=known.ran_s + ran_s, moves=known.moves + 1, moved_at=tx.now)
    choice = workload.carbon = choice_of(tx.state, tx.context, workload, decision, plan)
    memory.moved(tx.boot_s)
    why = f"{describe(choice)}; saves {decision.saves_g:,.0f} g (estimated), {decision.move_cost_g:,.0f} g for stopping"
    kind = "workload.suspending" if decision.verb is DecisionKind.SUSPEND else "workload.moving"
    if workload.leased:
        tx.changed(workload, kind, why)
        tx.order(workload, OrderKind.RETURN, why)
    else:
        tx.stop_for_others(workload, why, kind=kind)


def _why_released(tx: Transaction, choice: CarbonChoice) -> str:
    if choice.release_at is not None and tx.now >= choice.release_at:
        return "its promised start is near: it joins the queue, whatever the power"
    return f"its planned hour has come: {choice.action} at {choice.hub_id}"


# What if somebody changes what work wants of its power? It is weighed again if it waits, and left where it runs.


def change_preferences(tx: Transaction, event: CarbonPreferencesChanged) -> None:
    """Raises E0201 for wishes that its class excludes, E0402 if a limit leaves no hub and hour."""
    workload = tx.state.unfinished(event.workload_id)
    before = workload.spec
    try:
        workload.spec = replace(before, carbon=event.preferences)
    except (ValueError, ValidationError) as error:
        raise HarchError("E0201", str(error), hint="see docs/reference/workload.md", field="carbon") from None
    waits = workload.state is State.PENDING and not (workload.is_placed or workload.leased or workload.borrowed)
    if waits:
        try:
            choice = choose(tx.state, tx.context, workload)
        except HarchError:
            workload.spec = before
            raise
        tx.state.scheduler.withdraw(workload.id)
        tx.state.carbon.forget(workload.id)
        workload.carbon = choice
        tx.enqueue(workload)
    workload.annotations = {**workload.annotations, **event.annotations}
    outcome = f": {describe(workload.carbon)}" if waits and workload.carbon is not None else ""
    tx.changed(workload, "workload.changed", f"carbon preferences replaced{outcome}")
