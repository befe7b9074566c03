"""Why does it run there, why does it wait? Every hub and every rule, for one workload."""

# harch: pure

from __future__ import annotations

from harch.base.rejection import RuleOutcome
from harch.hub.jobs.admission import published_facts
from harch.hub.jobs.carbon_routing.explanations import describe, sentences
from harch.hub.jobs.events import EventContext
from harch.hub.jobs.machine import JobMachine
from harch.hub.jobs.state import JobState
from harch.hub.views import PeerReach, PeerView
from harch.placement.checks import is_never, outcomes
from harch.placement.explanation import Explanation, Verdict
from harch.placement.facts import live_facts
from harch.placement.placer import sizes
from harch.placement.request import PlacementRequest
from harch.placement.room import Room
from harch.placement.scheduler import Scheduler
from harch.wire.explanations import HubExplanation
from harch.workloads.lifecycle import State, Workload


def explain(
    machine: JobMachine,
    context: EventContext,
    request: PlacementRequest,
    peers: list[PeerView],
    workload: Workload | None,
    *,
    may_leave: bool = False,
) -> Explanation:
    """`workload` None: a dry run of something not submitted. `may_leave`: other hubs may run it."""
    state = machine.state
    if workload is not None and workload.id in state.set_aside and workload.state is State.PENDING:
        # Nothing is judged here: what made a round fail would make the answer fail.
        return Explanation(
            subject=request.id, verdict=Verdict.MUST_WAIT, sentence=_set_aside(state, context, workload), hubs=()
        )
    own = _own_hub(machine, context, request, workload)
    others = [_peer_hub(peer, request) for peer in peers if not peer.own and peer.reach is not PeerReach.RETIRED]
    verdict, sentence = _verdict(state, context, own, others, workload)
    if verdict is Verdict.NEVER_FITS and may_leave and state.lending.enabled:
        verdict, sentence = _elsewhere(state, request, others, sentence)
    runner = workload.runner_hub if workload else ""
    tasks = (workload.runner_placement if runner else workload.placement) if workload else ()
    decided = workload if workload is not None and workload.is_placed else None
    return Explanation(
        subject=request.id,
        verdict=verdict,
        sentence=sentence,
        hubs=(own, *others),
        turn=_turn(state, context, request),
        kept_free=_kept_free(state, context, request),
        decision=decided.placement_score if decided else {},
        predicted_slowdown=decided.predicted_slowdown if decided else None,
        runner_hub=runner,
        power=sentences(workload.carbon, context.now) if workload is not None and workload.carbon is not None else (),
        placement=tasks,
    )


def _elsewhere(
    state: JobState, request: PlacementRequest, others: list[HubExplanation], home: str
) -> tuple[Verdict, str]:
    """For what its home can never run: other hubs are asked for it."""
    if any(hub.eligible for hub in others):
        return Verdict.FITS_NOW, f"{home}; it goes to the best of them"
    if state.admission.fits_only_elsewhere(request, state.agents.process_slots):
        return Verdict.MUST_WAIT, f"{home}; it would wait until another hub has room"
    return Verdict.NEVER_FITS, home


def _turn(state: JobState, context: EventContext, request: PlacementRequest) -> str:
    position = state.scheduler.queue.position(request.id, context.now_s)
    return position.describe() if position is not None else ""


def _kept_free(state: JobState, context: EventContext, request: PlacementRequest) -> str:
    """Its own reservation, else those of others that stand in its way."""
    reservations = state.scheduler.reservations
    own = tuple(kept for kept in reservations if kept.request.id == request.id)
    waits = request.id in state.scheduler.queue
    return "; ".join(kept.describe(context.now_s) for kept in own or (reservations if waits else ()))


def _own_hub(
    machine: JobMachine, context: EventContext, request: PlacementRequest, workload: Workload | None
) -> HubExplanation:
    """Judged as the next round leaves the hub: what it gives to others is not there, and what it keeps neither."""
    state = machine.state
    decided = workload is not None and (workload.is_placed or workload.state.is_final)
    books = state.scheduler if decided else machine.next_round(context.now_s).after
    placed = request.id in books.running and workload is not None
    queue = books.queue
    quota = None if placed else queue.quota_rejection(request, sizes(request, context.now_s)[-1])
    limit = None if placed else queue.quota_rejection_for_ever(request)
    facts = live_facts(
        country=state.hub.country,
        accepts_work=not state.closed,
        status_detail=f"this hub is {state.closed.name.lower()}" if state.closed else "",
        room=_as_if_not_placed(books, request) if placed else books.room,
        process_slots_total=state.agents.process_slots,
        request=request,
        now_s=context.now_s,
        reservations=() if placed else books.binding(request, context.now_s),
        turn=_passed_over(books, request),
        quota_rejection=quota.detail if quota else "",
        quota_limit=limit.detail if limit else "",
    )
    rules = outcomes(request, facts)
    eligible = all(rule.passed for rule in rules)
    return HubExplanation(
        hub_id=state.hub.id,
        country=state.hub.country,
        eligible=eligible,
        source="live",
        age_s=0.0,
        rules=rules,
        never=is_never(rules),
        candidates=books.candidates(request, now_s=context.now_s, limit=5) if eligible and not placed else (),
    )


def _passed_over(books: Scheduler, request: PlacementRequest) -> str:
    """Why the round did not give it what it leaves free; empty if it does not wait."""
    if request.id not in books.queue:
        return ""
    first = books.queue.first_of_its_like(request.id)
    if first is not None:
        return f"{first} is served first: it requests the same, and waits"
    return "it would fit, and is considered again when anything changes"


def _as_if_not_placed(scheduler: Scheduler, request: PlacementRequest) -> Room:
    """The room that the decision about a placed workload would see now, had it not been taken."""
    room = scheduler.room.copy()
    running = scheduler.running[request.id]
    for slot in running.slots:
        room.give_back(running.request.needs, slot, exclusive=request.topology.exclusive)
    if request.runs_process:
        room.process_slots_free += len(running.slots)
    return room


def _peer_hub(peer: PeerView, request: PlacementRequest) -> HubExplanation:
    if peer.summary is None:
        silent = RuleOutcome(
            rule="reachable", passed=False, detail=peer.error or "has not answered yet", nearest_fix="start that hub"
        )
        return HubExplanation(
            hub_id=peer.hub_id, country="", eligible=False, source="unknown", age_s=None, rules=(silent,)
        )
    rules = outcomes(request, published_facts(peer.summary, peer, request))
    return HubExplanation(
        hub_id=peer.hub_id,
        country=peer.summary.country,
        eligible=peer.reachable and all(rule.passed for rule in rules),
        source="summary",
        age_s=peer.age_s,
        rules=rules,
        never=is_never(rules),
    )


def _verdict(
    state: JobState, context: EventContext, own: HubExplanation, others: list[HubExplanation], workload: Workload | None
) -> tuple[Verdict, str]:
    name = state.hub.name
    if workload is not None and workload.state.is_final:
        ended = workload.error_message or "all tasks ended well"
        return Verdict.FINISHED, f"{workload.state} at {workload.runner_hub or name}: {ended}"
    if workload is not None and workload.leased:
        return Verdict.PLACED, _lent(state, context, workload)
    if workload is not None and workload.is_placed:
        stopping = f"; stopping: {workload.stop_reason}" if workload.stop_reason else ""
        again = f", attempt {workload.attempt}" if workload.attempt > 1 else ""
        return (
            Verdict.PLACED,
            f"{workload.state} at {name}{again}: {workload.placement_why}{stopping}",
        )
    if workload is not None and workload.state is State.PAUSED:
        return Verdict.MUST_WAIT, f"held back at {name}: `harch resume {workload.id}` lets it go on"
    if workload is not None and workload.carbon is not None and workload.id in state.carbon.held:
        return Verdict.MUST_WAIT, f"{name} plans: {describe(workload.carbon)}"
    if workload is not None and workload.id in state.carbon.routes:
        first_hubs = ", ".join(state.carbon.routes[workload.id].hubs)
        return Verdict.MUST_WAIT, f"{first_hubs} is tried first, for cleaner power; then {name}"
    waits_here = workload is not None and workload.home_fits and not own.never
    if waits_here and workload is not None and workload.id not in state.scheduler.queue:
        return Verdict.MUST_WAIT, f"is not in the queue of {name}: it cannot start before the hub has recovered it"
    failed = next((rule for rule in own.rules if not rule.passed), None)
    if failed is None:
        return Verdict.FITS_NOW, f"fits {name} now" + ("" if workload is None else " and is about to be placed")
    elsewhere = [hub.hub_id for hub in others if hub.eligible]
    also = _answers_of(state, workload) + (f"; it would fit now at {', '.join(elsewhere)}" if elsewhere else "")
    if workload is not None and not workload.home_fits:
        return (
            Verdict.MUST_WAIT,
            f"waits for another hub ({failed.rule}): {failed.detail}{also}",
        )
    if own.never:
        return Verdict.NEVER_FITS, f"{name} can never run it ({failed.rule}): {failed.detail}{also}"
    return (
        Verdict.MUST_WAIT,
        f"waits at {name} ({failed.rule}): {failed.detail}; {failed.nearest_fix}{also}",
    )


def _lent(state: JobState, context: EventContext, workload: Workload) -> str:
    lending, runner = state.lending, workload.runner_hub
    given = lending.given[workload.id]
    text = f"{workload.state} at {runner} under lease, epoch {workload.epoch}"
    if lending.unheard_s(workload, context.boot_s) is None:
        return f"{text}; {runner} last answered {given.silent_s(context.boot_s):.0f} s ago"
    left_s = max(0.0, given.confirmed_s + lending.terms.owner_waits_s(workload.lease_s) - context.boot_s)
    return (
        f"{text}, as far as is known: no message for {given.silent_s(context.boot_s):.0f} s; if that "
        f"lasts, its lease has surely ended in {left_s:.0f} s, and it is scheduled here again"
    )


def _set_aside(state: JobState, context: EventContext, workload: Workload) -> str:
    fault = state.faults.held(workload.id, context.boot_s)
    when = f"in {fault.until_s - context.boot_s:.0f} s" if fault is not None else "in a moment"
    why = f" ({fault.error}, {fault.times} times)" if fault is not None else ""
    return (
        f"set aside: {state.hub.name} failed while placing it{why}, a fault of HarchOS; it is retried {when}"
        ", and at once if its specification is replaced"
    )


def _answers_of(state: JobState, workload: Workload | None) -> str:
    """What other hubs said, or why they were not asked."""
    answers = state.lending.answers.get(workload.id, {}) if workload is not None else {}
    return "".join(f"; {hub_id}: {why}" if hub_id else f"; {why}" for hub_id, why in answers.items())


def pending_reason(state: JobState, workload: Workload, now_s: float) -> str:
    """Why it waits, in a few words, for lists; empty if it does not. Cheap: no round is tried for it."""
    if workload.state is not State.PENDING or workload.leased or workload.borrowed:
        return ""
    if workload.id in state.set_aside:
        return "set aside: the hub failed while placing it"
    if workload.id in state.carbon.held:
        return "held for cleaner power"
    if workload.id in state.carbon.routes:
        return f"offered to {', '.join(state.carbon.routes[workload.id].hubs)} first, for cleaner power"
    if not workload.home_fits:
        return "waits for another hub"
    queue = state.scheduler.queue
    request = queue.waiting(workload.id)
    if request is None:
        return ""
    if state.closed:
        return f"{state.hub.name} is {state.closed.name.lower()}"
    over_quota = queue.quota_rejection(request, sizes(request, now_s)[-1])
    if over_quota is not None:
        return over_quota.detail
    return "waits for its turn" if queue.is_behind_its_like(workload.id) else "waits for free resources"
