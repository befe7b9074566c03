"""What do people ask of a hub, and what follows? Submit, replace, relabel, stop, pause, resume.

Each rule raises before it changes anything, or goes through to its end.
"""

from __future__ import annotations

from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.execution.protocol import PauseTask, ResumeTask, TaskKey
from harch.federation.offers import OrderKind
from harch.hub import happenings as h
from harch.hub.audit import drafts
from harch.hub.desk import Desk, may_leave, wrong_state
from harch.hub.registry import request_digest
from harch.hub.routing.choices import choose
from harch.hub.routing.telling import describe
from harch.placement.request import Request
from harch.workloads.lifecycle import State, Workload
from harch.workloads.spec import WorkloadSpec

PENDING_MAX = 100_000


def submit(desk: Desk, event: h.Submitted) -> None:
    """Queues the workload under the id it was given. A repeated submission changes nothing and has no effects."""
    if desk.registry.earlier_submission(event, desk.now) is not None:
        return
    if len(desk.scheduler.queue) + len(desk.carbon.held) >= PENDING_MAX:
        raise HarchError("E0401", f"{PENDING_MAX} workloads wait already", hint="try again later", retry_after_s=10)
    data_ids, hubs_allowed = _admitted_data(desk, event.spec, event.tenant)
    request = Request.of(event.workload_id, event.spec, tenant=event.tenant, hubs_allowed=hubs_allowed)
    home_fits = _fits_home(desk, event.spec, request)
    over_quota = desk.scheduler.queue.rejection_to_wait(request)
    if over_quota is not None:
        raise HarchError("E0401", over_quota.detail, hint=over_quota.nearest_fix, meta={"rule": over_quota.rule})
    desk.registry.forget_old(desk.now)
    workload = Workload(
        id=event.workload_id,
        tenant=event.tenant,
        owner_hub=desk.hub.id,
        spec=event.spec,
        created_at=desk.now,
        updated_at=desk.now,
        annotations=event.annotations,
        data_ids=data_ids,
        home_fits=home_fits,
        trace=event.trace,
    )
    workload.carbon = choose(desk, workload)  # the last check: it may refuse, and nothing has changed yet
    desk.registry.add(workload)
    desk.guard.watch(workload)
    desk.enqueue(workload)
    desk.changed(workload, "workload.submitted", f"submitted: {request.describe()}")
    if workload.carbon is not None and (workload.carbon.held or workload.carbon.hub_id != desk.hub.id):
        kind = "workload.deferred" if workload.carbon.held else "workload.routed"
        desk.changed(workload, kind, describe(workload.carbon))
    desk.audit(drafts.admitted(workload, desk.hub.country, actor=event.actor, policy_version=desk.policy_version))
    if event.spec.labels:
        desk.emit(h.SaveLabels(workload))
    if event.idempotency_key is not None:
        entry = h.IdempotencyEntry(
            tenant=event.tenant,
            key=event.idempotency_key,
            workload_id=workload.id,
            digest=request_digest(event.spec, event.annotations),
            created_at=desk.now,
        )
        desk.registry.remember_keys([entry])
        desk.emit(h.SaveIdempotencyKey(entry))


def replace_spec(desk: Desk, event: h.SpecReplaced) -> None:
    workload = desk.unfinished(event.workload_id)
    if workload.is_placed or workload.leased or workload.guest:
        raise wrong_state(workload, "its specification changes only while it waits at home")
    data_ids, hubs_allowed = _admitted_data(desk, event.spec, workload.tenant)
    request = Request.of(workload.id, event.spec, hubs_allowed=hubs_allowed)
    home_fits = _fits_home(desk, event.spec, request)
    kept = (workload.spec, workload.data_ids, workload.home_fits)
    workload.spec, workload.data_ids, workload.home_fits = event.spec, data_ids, home_fits
    try:
        choice = choose(desk, workload)
        desk.registry.rename(workload, event.spec)
    except HarchError:
        workload.spec, workload.data_ids, workload.home_fits = kept
        raise
    desk.scheduler.withdraw(workload.id)
    desk.carbon.forget(workload.id)
    desk.faults.forget(workload.id)  # as it is now it has not failed
    workload.carbon = choice
    workload.annotations = event.annotations
    desk.guard.watch(workload)
    if workload.state is State.PENDING:
        desk.enqueue(workload)
    desk.changed(workload, "workload.changed", "specification replaced")
    desk.audit(drafts.admitted(workload, desk.hub.country, actor=event.actor, policy_version=desk.policy_version))
    desk.emit(h.SaveLabels(workload))


def _admitted_data(desk: Desk, spec: WorkloadSpec, tenant: str) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Ids of the data that it reads, and the hubs that their tags permit. Before every other check of the work."""
    if not spec.data:
        return (), None
    ask = desk.guard.ask(spec.name, spec, tenant=tenant)
    ids = desk.guard.admit(spec, ask, tenant=tenant, elsewhere_too=_may_leave(desk, spec))
    return ids, desk.guard.hubs_allowed(ask)


def _fits_home(desk: Desk, spec: WorkloadSpec, request: Request) -> bool:
    """False: only another hub can run it, and one can. Raises if none can."""
    slots = desk.agents.process_slots
    if _may_leave(desk, spec) and desk.admission.fits_only_elsewhere(request, slots):
        return False
    desk.admission.check(request, slots)
    return True


def _may_leave(desk: Desk, spec: WorkloadSpec) -> bool:
    return desk.spill.enabled and may_leave(spec)


def relabel(desk: Desk, event: h.Relabelled) -> None:
    workload = desk.known(event.workload_id)
    workload.spec = replace(workload.spec, labels=event.labels)
    desk.changed(workload, "workload.changed", "labels replaced")
    desk.emit(h.SaveLabels(workload))


def stop(desk: Desk, event: h.StopAsked) -> None:
    """Waiting work ends at once; running work gets its grace and ends when its last task has."""
    workload = desk.known(event.workload_id)
    if workload.state.is_final and not event.hide and workload.state is not State.CANCELLED:
        raise wrong_state(workload, "it has already ended")
    if event.hide and not workload.hidden:
        workload.hidden = True
        desk.changed(workload, "workload.deleted", "deleted")
    if workload.state.is_final or workload.stop_as not in (None, State.PENDING):
        return
    if workload.stop_as is State.PENDING:  # it stops for others already, or to go on later: now it will not go on
        workload.stop_reason, workload.stop_as = event.reason, State.CANCELLED
        desk.changed(workload, "workload.stopping", event.reason)
        return
    workload.stop_reason, workload.stop_as = event.reason, State.CANCELLED
    if workload.leased:
        desk.changed(workload, "workload.stopping", f"{event.reason}; {workload.runner_hub} is told")
        desk.order(workload, OrderKind.STOP, event.reason)
    elif workload.is_placed:
        desk.changed(workload, "workload.stopping", event.reason)
        desk.stop_tasks(workload)
    else:
        desk.scheduler.withdraw(workload.id)
        desk.end(workload, State.CANCELLED, event.reason)


def pause(desk: Desk, workload: Workload) -> None:
    """A task that is still starting is paused when its agent says that it runs."""
    if workload.state is State.PAUSED:
        return
    if workload.stop_reason:
        raise wrong_state(workload, "it is being stopped")
    running = workload.ranks_running
    if workload.leased:
        desk.move(workload, State.PAUSED, f"{workload.runner_hub} is told to pause it")
        desk.order(workload, OrderKind.PAUSE)
        return
    desk.scheduler.withdraw(workload.id)
    desk.carbon.forget(workload.id)
    desk.move(workload, State.PAUSED, "paused; it keeps its GPUs" if workload.is_placed else "held back")
    for task in workload.placement:
        if task.rank in running:
            desk.to_agent(task, PauseTask(TaskKey(workload.id, workload.attempt, task.rank)))


def resume(desk: Desk, workload: Workload) -> None:
    if workload.state is State.RUNNING:
        return
    if workload.state is not State.PAUSED:
        raise wrong_state(workload, "only paused work is resumed")
    if workload.scrub:
        raise wrong_state(workload, "the tags of its data no longer permit it here")
    if workload.leased:
        started = workload.started_at is not None
        desk.move(
            workload, State.RUNNING if started else State.SCHEDULED, f"{workload.runner_hub} is told to resume it"
        )
        desk.order(workload, OrderKind.RESUME)
        return
    if not workload.is_placed:
        desk.enqueue(workload)
        desk.move(workload, State.PENDING, "waits again")
        return
    started = len(workload.ranks_running) == len(workload.placement)
    desk.move(workload, State.RUNNING if started else State.SCHEDULED, "resumed")
    for task in workload.placement:
        desk.to_agent(task, ResumeTask(TaskKey(workload.id, workload.attempt, task.rank)))
