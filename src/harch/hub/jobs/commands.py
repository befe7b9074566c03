"""What do people ask of a hub, and what follows? Submit, replace, relabel, stop, pause, resume, restart.

Each rule raises before it changes anything, or goes through to its end.
"""

# harch: pure

from __future__ import annotations

from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.content.image_reference import parse_image
from harch.execution.protocol import PauseTask, ResumeTask, TaskKey
from harch.federation.offers import OrderKind
from harch.hub.audit import drafts
from harch.hub.jobs import effects as fx
from harch.hub.jobs import events as ev
from harch.hub.jobs.carbon_routing.choices import choose
from harch.hub.jobs.carbon_routing.explanations import describe
from harch.hub.jobs.registry import request_digest
from harch.hub.jobs.state import may_leave, wrong_state
from harch.hub.jobs.transaction import Transaction
from harch.hub.store.records import IdempotencyEntry
from harch.placement.request import PlacementRequest
from harch.workloads.lifecycle import State, Workload
from harch.workloads.spec import WorkloadSpec


def submit(tx: Transaction, event: ev.Submitted) -> None:
    """Queues the workload under the id it was given. A repeated submission changes nothing and has no effects."""
    state = tx.state
    if state.registry.earlier_submission(event, tx.context) is not None:
        return
    if len(state.scheduler.queue) + len(state.carbon.held) >= tx.context.limits.pending_max:
        waiting = f"{tx.context.limits.pending_max} workloads are already pending"
        raise HarchError("E0401", waiting, hint="try again later", retry_after_s=10)
    data_ids, hubs_allowed = _admitted_data(tx, event.spec, event.tenant)
    _check_nodes(tx, event.spec)
    request = PlacementRequest.of(
        event.workload_id, event.spec, tenant=event.tenant, submitted_s=tx.now_s, hubs_allowed=hubs_allowed
    )
    home_fits = _fits_home(tx, event.spec, request)
    _check_quota(tx, request)
    state.registry.forget_old(tx.context)
    workload = Workload(
        id=event.workload_id,
        tenant=event.tenant,
        owner_hub=state.hub.id,
        spec=event.spec,
        created_at=tx.now,
        updated_at=tx.now,
        annotations=event.annotations,
        data_ids=data_ids,
        home_fits=home_fits,
        trace=event.trace,
    )
    # The last check: it may refuse, and nothing has changed yet.
    workload.carbon = choose(state, tx.context, workload)
    state.registry.add(workload)
    state.guard.watch(workload)
    tx.enqueue(workload, request)
    tx.changed(workload, "workload.submitted", f"submitted: {request.describe()}")
    if workload.carbon is not None and (workload.carbon.held or workload.carbon.hub_id != state.hub.id):
        kind = "workload.deferred" if workload.carbon.held else "workload.routed"
        tx.changed(workload, kind, describe(workload.carbon))
    tx.audit(drafts.admitted(workload, state.hub.country, actor=event.actor, policy_version=tx.policy_version))
    if event.spec.labels:
        tx.emit(fx.SaveLabels(workload))
    if event.idempotency_key is not None:
        entry = IdempotencyEntry(
            tenant=event.tenant,
            key=event.idempotency_key,
            workload_id=workload.id,
            digest=request_digest(event.spec, event.annotations),
            created_at=tx.now,
        )
        state.registry.remember_keys([entry])
        tx.emit(fx.SaveIdempotencyKey(entry))


def replace_spec(tx: Transaction, event: ev.SpecReplaced) -> None:
    state = tx.state
    workload = state.unfinished(event.workload_id)
    if workload.is_placed or workload.leased or workload.borrowed:
        raise wrong_state(workload, "its specification can change only while it is pending at its own hub")
    data_ids, hubs_allowed = _admitted_data(tx, event.spec, workload.tenant)
    _check_nodes(tx, event.spec)
    request = PlacementRequest.of(workload.id, event.spec, tenant=workload.tenant, hubs_allowed=hubs_allowed)
    home_fits = _fits_home(tx, event.spec, request)
    _check_quota(tx, request, replaces=tx.state.request(workload))
    kept = (workload.spec, workload.data_ids, workload.home_fits)
    workload.spec, workload.data_ids, workload.home_fits = event.spec, data_ids, home_fits
    try:
        choice = choose(state, tx.context, workload)
        state.registry.rename(workload, earlier=kept[0].name)
    except HarchError:
        workload.spec, workload.data_ids, workload.home_fits = kept
        raise
    state.scheduler.withdraw(workload.id)
    state.carbon.forget(workload.id)
    state.faults.forget(workload.id)  # as it is now it has not failed
    workload.carbon = choice
    workload.annotations = event.annotations
    state.guard.watch(workload)
    if workload.state is State.PENDING:
        tx.enqueue(workload)
    tx.changed(workload, "workload.changed", "specification replaced")
    tx.audit(drafts.admitted(workload, state.hub.country, actor=event.actor, policy_version=tx.policy_version))
    tx.emit(fx.SaveName(workload))
    tx.emit(fx.SaveLabels(workload))


def _admitted_data(tx: Transaction, spec: WorkloadSpec, tenant: str) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Ids of the data that it reads, and the hubs that their tags permit. Before every other check of the work."""
    if not spec.reads:
        if spec.artifacts:
            tx.state.guard.check_names(spec, tenant=tenant)
        return (), None
    reads_request = tx.state.guard.reads_request(spec.name, spec, tenant=tenant)
    ids = tx.state.guard.admit(spec, reads_request, tenant=tenant, elsewhere_too=_may_leave(tx, spec))
    return ids, tx.state.guard.hubs_allowed(reads_request)


def _check_nodes(tx: Transaction, spec: WorkloadSpec) -> None:
    """Raises E1121 or E1131 if no node here can prepare what it runs in: known now, so nobody waits for it in vain."""
    if not spec.runs_process:
        return
    for wanted, feature, code in ((spec.environment, "environments", "E1121"), (spec.image, "images", "E1131")):
        why = tx.state.agents.why_none_has(feature) if wanted is not None else ""
        if why:
            hint = "install what is missing on the nodes, and restart their agents; `harch doctor` checks a machine"
            raise HarchError(
                code, f"no node of {tx.state.hub.name} can do this: {why}", hint=hint, field=feature.rstrip("s")
            )
    if spec.image is not None and spec.image_data is None:
        parse_image(spec.image)
    version = spec.environment.python if spec.environment is not None else None
    pythons = tx.state.agents.pythons()
    if version is not None and pythons and not any(_is_of(version, one) for one in pythons):
        has = ", ".join(sorted(pythons))
        raise HarchError(
            "E1122",
            f"no node of {tx.state.hub.name} has Python {version}; they have {has}",
            hint="request one of these, or install it on the nodes and restart their agents",
            field="environment.python",
        )


def _is_of(wanted: str, installed: str) -> bool:
    """3.12 is any 3.12.x."""
    return installed == wanted or installed.startswith(f"{wanted}.")


def _fits_home(tx: Transaction, spec: WorkloadSpec, request: PlacementRequest) -> bool:
    """False: only another hub can run it, and one can. Raises if none can."""
    slots = tx.state.agents.process_slots
    if _may_leave(tx, spec) and tx.state.admission.fits_only_elsewhere(request, slots):
        return False
    tx.state.admission.check(request, slots)
    return True


def _check_quota(tx: Transaction, request: PlacementRequest, replaces: PlacementRequest | None = None) -> None:
    """Raises E0401 if its tenant may not let it wait here, or may never hold it."""
    over_quota = tx.state.scheduler.queue.rejection_to_wait(request, replaces)
    if over_quota is not None:
        raise HarchError("E0401", over_quota.detail, hint=over_quota.nearest_fix, meta={"rule": over_quota.rule})


def _may_leave(tx: Transaction, spec: WorkloadSpec) -> bool:
    return tx.state.lending.enabled and may_leave(spec)


def relabel(tx: Transaction, event: ev.Relabelled) -> None:
    workload = tx.state.known(event.workload_id)
    workload.spec = replace(workload.spec, labels=event.labels)
    tx.changed(workload, "workload.changed", "labels replaced")
    tx.emit(fx.SaveLabels(workload))


def stop(tx: Transaction, event: ev.StopRequested) -> None:
    """Waiting work ends at once; running work gets its grace and ends when its last task has."""
    workload = tx.state.known(event.workload_id)
    if workload.state.is_final and not event.hide and workload.state is not State.CANCELLED:
        raise wrong_state(workload, "it has already ended")
    if event.hide and not workload.hidden:
        workload.hidden = True
        tx.changed(workload, "workload.deleted", "deleted")
    if workload.state.is_final or workload.stop_as not in (None, State.PENDING):
        return
    if workload.stop_as is State.PENDING:  # it stops for others already, or to go on later: now it will not go on
        workload.stop_reason, workload.stop_as = event.reason, State.CANCELLED
        tx.changed(workload, "workload.stopping", event.reason)
        if workload.leased:
            tx.order(workload, OrderKind.STOP, event.reason)
        return
    workload.stop_reason, workload.stop_as = event.reason, State.CANCELLED
    if workload.leased:
        tx.changed(workload, "workload.stopping", f"{event.reason}; {workload.runner_hub} is notified")
        tx.order(workload, OrderKind.STOP, event.reason)
    elif workload.is_placed:
        tx.changed(workload, "workload.stopping", event.reason)
        tx.stop_tasks(workload)
    else:
        tx.state.scheduler.withdraw(workload.id)
        tx.end(workload, State.CANCELLED, event.reason)


def pause(tx: Transaction, workload: Workload) -> None:
    """A task that is still starting is paused when its agent says that it runs."""
    if workload.state is State.PAUSED:
        return
    if workload.stop_reason:
        raise wrong_state(workload, "it is being stopped")
    running = workload.ranks_running
    if workload.leased:
        tx.move(workload, State.PAUSED, f"{workload.runner_hub} is ordered to pause it")
        tx.order(workload, OrderKind.PAUSE)
        return
    tx.state.scheduler.withdraw(workload.id)
    tx.state.carbon.forget(workload.id)
    tx.move(workload, State.PAUSED, "paused; it keeps its GPUs" if workload.is_placed else "held back")
    for task in workload.placement:
        if task.rank in running:
            tx.to_agent(task, PauseTask(TaskKey(workload.id, workload.attempt, task.rank)))


def resume(tx: Transaction, workload: Workload) -> None:
    if workload.state is State.RUNNING:
        return
    if workload.state is not State.PAUSED:
        raise wrong_state(workload, "only paused work can be resumed")
    if workload.scrub:
        raise wrong_state(workload, "the tags of its data no longer permit it here")
    if workload.leased:
        started = workload.started_at is not None
        tx.move(
            workload, State.RUNNING if started else State.SCHEDULED, f"{workload.runner_hub} is ordered to resume it"
        )
        tx.order(workload, OrderKind.RESUME)
        return
    if not workload.is_placed:
        tx.enqueue(workload)
        tx.move(workload, State.PENDING, "pending again")
        return
    started = len(workload.ranks_running) == len(workload.placement)
    tx.move(workload, State.RUNNING if started else State.SCHEDULED, "resumed")
    for task in workload.placement:
        tx.to_agent(task, ResumeTask(TaskKey(workload.id, workload.attempt, task.rank)))


def restart(tx: Transaction, workload: Workload, reason: str) -> None:
    """What runs is stopped with its grace and waits for GPUs again, as the next attempt under the same id."""
    if workload.stop_as is State.PENDING:
        return
    if workload.stop_reason:
        raise wrong_state(workload, "it is being stopped")
    if workload.state is State.PAUSED:
        raise wrong_state(workload, "only running work can be restarted; resume it first")
    if workload.leased:
        workload.stop_reason, workload.stop_as = reason, State.PENDING
        tx.changed(workload, "workload.restarting", f"{reason}; {workload.runner_hub} is ordered to return it")
        tx.order(workload, OrderKind.RETURN, reason)
    elif workload.is_placed:
        tx.stop_for_others(workload, reason, kind="workload.restarting")
    else:
        raise wrong_state(workload, "it has not started yet")
