"""How does a plan become starts, waits and moves? Events of the job machine: a new plan, and time that has passed."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from harch.carbon.planning.decisions import Decision, Verb
from harch.federation.offers import OrderKind
from harch.hub.desk import Desk
from harch.hub.routing.choices import choice_of, is_weighable, over_limit, weighed
from harch.hub.routing.memory import HubPlan
from harch.hub.routing.telling import describe
from harch.hub.routing.works import is_movable, waiting_work
from harch.workloads.carbon import CarbonChoice
from harch.workloads.lifecycle import State, Workload

SHIFT = timedelta(minutes=30)  # a planned start that moves by less is not worth a line of history, nor a write
TOLD_AGAIN = timedelta(hours=1)  # then the figures behind an unchanged choice are renewed


def plan_came(desk: Desk, plan: HubPlan) -> None:
    """Held work starts or waits on by it; running work moves where that pays. What changed meanwhile is left alone."""
    desk.carbon.planned(plan, desk.boot_s)
    for workload_id, decision in plan.decisions.items():
        workload = desk.registry.workloads.get(workload_id)
        if workload is None or workload.guest or workload.state.is_final or workload.stop_as is not None:
            continue
        desk.subject = workload_id
        if workload_id in desk.carbon.held:
            _planned_again(desk, workload, decision, plan)
        elif decision.verb in (Verb.MOVE, Verb.SUSPEND):
            _interrupt(desk, workload, decision, plan)
    for workload_id in sorted(desk.carbon.held - plan.decisions.keys()):
        desk.subject = workload_id
        _weigh_late(desk, desk.registry.workloads[workload_id], plan)


def time_passed(desk: Desk) -> None:
    """Whoever has waited long enough: for its hour, for its promise, or for another hub's answer."""
    memory = desk.carbon
    for workload_id in memory.take_due(desk.now_s, desk.boot_s):
        desk.subject = workload_id
        workload = desk.registry.workloads.get(workload_id)
        asked, watched = workload_id in memory.routes, workload_id in memory.watched
        memory.forget(workload_id)
        if workload is None or workload.carbon is None or workload.state is not State.PENDING or workload.leased:
            continue
        if asked:
            workload.carbon = replace(workload.carbon, asked_there=True)
            desk.changed(workload)
            desk.enqueue(workload)
        elif watched:
            late = "it joined the queue in time, and nothing has come free for it"
            desk.changed(workload, "workload.promise_missed", f"{describe(workload.carbon)}; {late}")
        elif workload.carbon.held:
            release(desk, workload, _why_released(desk, workload.carbon))


def release(desk: Desk, workload: Workload, why: str) -> None:
    """Into the queue, or to the other hub first. A limit that the newest plan cannot keep ends it instead."""
    choice = workload.carbon
    if choice is None:
        return
    desk.carbon.forget(workload.id)
    if choice.refused and desk.carbon.fresh_plan(desk.now, desk.boot_s) is not None:
        error = over_limit(workload, choice.refused)
        workload.error_message = f"{error.code} {error.message}"
        workload.carbon = replace(choice, held=False)
        desk.end(workload, State.FAILED, workload.error_message)
        return
    workload.carbon = replace(choice, held=False)
    desk.changed(workload, "workload.released", why)
    desk.enqueue(workload)


def _planned_again(desk: Desk, workload: Workload, decision: Decision, plan: HubPlan) -> None:
    before = workload.carbon
    if before is None:
        return
    if decision.verb is Verb.REFUSE:
        work = waiting_work(desk, workload, plan.pools, planned=True, now=desk.now)
        if not is_weighable(plan, work):  # its hubs are not in the plan: that is no reason to wait, nor to refuse
            release(desk, workload, f"the plan could not weigh it: {decision.reason}")
        elif before.refused != decision.reason and before.start_by is not None:
            workload.carbon = replace(before, refused=decision.reason, decided_at=desk.now)
            desk.changed(workload, "workload.replanned", f"no hub and hour keeps its limits: {decision.reason}")
        return
    # Where power will not change, nothing is waited for but room, and that is what a queue is for.
    starts = decision.verb is Verb.START and (decision.room or decision.queues)
    if not starts and _is_as_before(desk, before, decision, plan):
        return
    choice = choice_of(desk, workload, decision, plan)
    if starts:
        workload.carbon = choice
        release(desk, workload, f"starts now: {describe(choice)}")
        return
    if decision.verb is Verb.START:  # nowhere is room for all of it: it keeps its place until its promise nears
        choice = replace(choice, held=True, action=str(Verb.WAIT), start_at=before.release_at or desk.now)
    workload.carbon = choice
    shifted = before.start_at is None or choice.start_at is None or abs(choice.start_at - before.start_at) >= SHIFT
    news = shifted or choice.hub_id != before.hub_id or bool(before.refused)
    desk.changed(workload, "workload.replanned" if news else "", describe(choice))
    desk.carbon.hold(workload, choice, now=desk.now, boot_s=desk.boot_s)


def _is_as_before(desk: Desk, before: CarbonChoice, decision: Decision, plan: HubPlan) -> bool:
    """The same hub at about the same time: most of what thousands of held jobs are told every few minutes."""
    if decision.verb is not Verb.WAIT or before.start_at is None or before.refused or before.hub_id != decision.hub:
        return False
    shift = abs(plan.moment(decision.start_h) - before.start_at)
    return shift < min(SHIFT, timedelta(seconds=plan.step_s)) and desk.now - before.decided_at < TOLD_AGAIN


def _weigh_late(desk: Desk, workload: Workload, plan: HubPlan) -> None:
    """It came while the plan was made."""
    work = waiting_work(desk, workload, plan.pools, planned=True, now=desk.now)
    decision = weighed(desk, plan, work)
    if decision is None:
        release(desk, workload, "the plan could not weigh it")
    else:
        _planned_again(desk, workload, decision, plan)


def _interrupt(desk: Desk, workload: Workload, decision: Decision, plan: HubPlan) -> None:
    """Stops it in an orderly way; it goes on from what it saved, there or later."""
    memory, before = desk.carbon, workload.carbon
    if workload.started_at is None or plan.attempts.get(workload.id) != workload.attempt:
        return
    ran_s = desk.elapsed_s(workload.started_at)
    if not memory.may_move(desk.boot_s) or not is_movable(desk, workload, ran_s):
        return
    known = before or CarbonChoice(action="", decided_at=desk.now, hub_id=desk.hub.id)
    # First what it has done: the promise counts from that.
    workload.carbon = replace(known, ran_s=known.ran_s + ran_s, moves=known.moves + 1, moved_at=desk.now)
    choice = workload.carbon = choice_of(desk, workload, decision, plan)
    memory.moved(desk.boot_s)
    why = f"{describe(choice)}; saves {decision.saves_g:,.0f} g (estimated), {decision.move_cost_g:,.0f} g for stopping"
    kind = "workload.suspending" if decision.verb is Verb.SUSPEND else "workload.moving"
    if workload.leased:
        desk.changed(workload, kind, why)
        desk.order(workload, OrderKind.RETURN, why)
    else:
        desk.stop_for_others(workload, why, kind=kind)


def _why_released(desk: Desk, choice: CarbonChoice) -> str:
    if choice.release_at is not None and desk.now >= choice.release_at:
        return "its promise nears: it joins the queue, whatever the power"
    return f"its hour has come: {choice.action} at {choice.hub_id}"
