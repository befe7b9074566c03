"""What happens to data at a hub, and what follows for its work? Registered, tagged anew, produced, misplaced.

Each rule raises before it changes anything, or goes through to its end.
"""

# harch: pure

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.base.rejection import Rejection, rejected
from harch.execution.protocol import PauseTask, TaskKey
from harch.federation.offers import OrderKind
from harch.hub.audit import data_drafts
from harch.hub.jobs import effects as fx
from harch.hub.jobs import events as ev
from harch.hub.jobs.transaction import Transaction
from harch.hub.store.records import CatalogEntry
from harch.sovereignty.declassification import retag as with_tag
from harch.sovereignty.gates import Violation, audit_resting
from harch.sovereignty.lineage import derive_output, derive_tag
from harch.sovereignty.rules import explain_rest
from harch.sovereignty.tags import DataKind, DataObject, loosens
from harch.workloads.lifecycle import State, Workload
from harch.workloads.spec import WorkloadType

LOST_LENGTH_MAX = 500
_MAKES_CHECKPOINTS = (WorkloadType.TRAINING, WorkloadType.FINE_TUNING)


def add(tx: Transaction, event: ev.DataAdded) -> None:
    """Takes an object into the catalog. Raises E0910, E0305, E0906, E0907 or E0908."""
    data, catalog = event.entry.object, tx.state.catalog
    catalog.check_room()
    holder = catalog.named(data.name, tenant=data.tenant)
    if holder is not None:
        raise HarchError(
            "E0910",
            f"the name `{data.name}` belongs to {holder.object.id}",
            hint="choose another name; `harch data tag` changes the tag of what is there",
            field="name",
            meta={"data": [holder.object.id]},
        )
    _check_copies(tx, data)
    parents = [catalog.get(parent, tenant=data.tenant).object.tag for parent in data.parents]
    if parents and data.tag is not None and loosens(derive_tag(parents), data.tag):
        raise HarchError(
            "E0908",
            f"the tag of {data.name} permits more than those of its sources",
            hint="give it a tag within all of theirs; an authority can loosen it afterwards",
            field="tag",
        )
    _put(tx, event.entry)
    tx.record_data("data.added", data, f"{data.kind} {data.name}, {_described(data)}")
    tx.audit(data_drafts.added(data, tx.state.countries_of(data.hubs), actor=event.actor))


def retag(tx: Transaction, event: ev.DataRetagged) -> None:
    """Tightens for anybody, loosens for a signed declassification; what runs on it is looked at in the same moment."""
    entry = tx.state.catalog.get(event.object_id, tenant=None)
    before = entry.object
    after = with_tag(
        before,
        event.tag,
        authorities=event.authorities,
        now=tx.now,
        declassification=event.declassification,
    )
    loosened = loosens(before.tag, event.tag)
    _put(tx, replace(entry, object=after, updated_at=tx.now))
    word = "declassified" if loosened else "tagged"
    tx.record_data(f"data.{word}", after, f"{word} {after.name}, revision {after.tag_revision}: {_described(after)}")
    statement = event.declassification if loosened else None
    countries = tx.state.countries_of(after.hubs)
    tx.audit(data_drafts.tagged(after, countries, actor=event.actor, declassification=statement))
    for violation in audit_resting(tx.state.guard.rules, (after,), ()):
        tx.record_data(
            "sovereignty.violation", after, f"a copy at {violation.hub} may not rest there: {_first(violation)}"
        )
        tx.audit(data_drafts.violated(after, violation, tx.state.countries_of((violation.hub,))))
    sweep(tx)


def sweep(tx: Transaction) -> None:
    """Gate 4: what runs, or waits, against the tags of its data is paused at once, then cancelled and scrubbed."""
    for violation in tx.state.guard.violations():
        tx.subject = violation.subject
        workload = tx.state.registry.workloads[violation.subject]
        reason = f"E0907 its data may no longer be read here: {_first(violation)}"
        rules = [f"{rejection.subject}: {rejection.rule}: {rejection.detail}" for rejection in violation.rejections]
        workload.scrub = True
        workload.error_message = reason
        facts: dict[str, object] = {"data": list(workload.data_ids), "rules": rules}
        tx.changed(workload)
        tx.emit(fx.Record("sovereignty.violation", workload.id, workload.tenant, reason, facts))
        tx.audit(data_drafts.work_violated(workload, violation, tx.state.hub.country))
        if workload.leased:
            workload.stop_reason, workload.stop_as = reason, State.CANCELLED
            tx.order(workload, OrderKind.STOP, reason, scrub=True)
        elif workload.is_placed:
            _freeze(tx, workload, reason)
            workload.stop_reason, workload.stop_as = reason, State.CANCELLED
            tx.stop_tasks(workload)
        else:
            tx.state.scheduler.withdraw(workload.id)
            tx.end(workload, State.CANCELLED, reason)


def remove(tx: Transaction, event: ev.DataRemoved) -> None:
    """Forgets an object; its content here goes with it. What was derived from it stays. Raises E0906 or E0304."""
    entry = tx.state.catalog.get(event.object_id, tenant=None)
    readers = tx.state.guard.readers_of(event.object_id)
    if readers:
        raise HarchError(
            "E0304",
            f"{entry.object.name} is read by {readers[0]}" + (f" and {len(readers) - 1} more" if readers[1:] else ""),
            hint="stop that work first, or wait until it has ended",
        )
    data = entry.object
    _forget(tx, entry)
    tx.record_data("data.removed", data, f"{data.kind} {data.name} removed: {event.why}")
    tx.audit(data_drafts.removed(data, tx.state.countries_of(data.hubs), actor=event.actor, why=event.why))


def _forget(tx: Transaction, entry: CatalogEntry) -> None:
    """What something else was derived from leaves its tag behind, so that the lineage of that can still be judged."""
    catalog, data = tx.state.catalog, entry.object
    catalog.remove(data.id)
    if catalog.has_children(data.id):
        _put(tx, replace(entry, object=replace(data, hubs=()), content="", expires_at=None, removed_at=tx.now))
        return
    tx.emit(fx.DropData(data.id))
    for parent in data.parents:  # it may have been the last that a removed one was kept for
        above = catalog.entries.get(parent)
        if above is not None and above.removed_at is not None and not catalog.has_children(parent):
            _forget(tx, above)


def keep(tx: Transaction, event: ev.DataKept) -> None:
    """Something uses it again: its retention begins anew."""
    entry = tx.state.catalog.get(event.object_id, tenant=None)
    _put(tx, replace(entry, expires_at=event.until, updated_at=tx.now))


def moved(tx: Transaction, event: ev.DataMoved) -> None:
    """A copy has come to a hub, or is gone from it. Whether it may be there was decided before a byte was sent."""
    entry = tx.state.catalog.entries.get(event.object_id)
    if entry is None:
        return
    hubs = tuple(hub for hub in entry.object.hubs if hub != event.hub) + ((event.hub,) if event.present else ())
    if set(hubs) != set(entry.object.hubs):
        _put(tx, replace(entry, object=replace(entry.object, hubs=hubs), updated_at=tx.now))
        word = "has a copy at" if event.present else "has no copy any more at"
        tx.record_data("data.moved", entry.object, f"{entry.object.name} {word} {event.hub}")


def copies_reported(tx: Transaction, event: ev.CopiesReported) -> None:
    """Only about what is that hub's. What was removed there is forgotten here as soon as no work reads it."""
    catalog = tx.state.catalog
    for data in event.changed:
        entry = catalog.entries.get(data.id)
        if entry is None or entry.home != event.home or entry.object.tag_revision >= data.tag_revision:
            continue
        after = replace(entry.object, tag=data.tag, tag_revision=data.tag_revision)
        _put(tx, replace(entry, object=after, updated_at=tx.now))
        tx.record_data("data.tagged", after, f"tagged {after.name} at {event.home}: {_described(after)}")
        tx.audit(
            data_drafts.tagged(
                after, tx.state.countries_of((tx.state.hub.id,)), actor=event.home, declassification=None
            )
        )
    for data_id in event.removed:
        entry = catalog.entries.get(data_id)
        if entry is not None and entry.home == event.home and not tx.state.guard.readers_of(data_id):
            _forget(tx, entry)
            tx.record_data("data.removed", entry.object, f"{entry.object.name} was removed at {event.home}")
    sweep(tx)


def produced(tx: Transaction, workload: Workload) -> None:
    """The outputs of work that has ended well: each carries the meet of what was read, as it is tagged now."""
    reads = tx.state.guard.reads_of(workload).reads
    kind = DataKind.CHECKPOINT if workload.spec.type in _MAKES_CHECKPOINTS else DataKind.DATASET
    home = workload.owner_hub if workload.borrowed else ""
    for data_id, name in zip(output_ids(workload), workload.spec.outputs, strict=True):
        data = derive_output(
            reads,
            id=data_id,
            kind=kind,
            name=name,
            tenant=workload.tenant,
            hub=tx.state.hub.id,
        )
        if not tx.state.guard.may_rest_here(data):  # tightened while it ran: what it wrote has been scrubbed
            data = replace(data, hubs=())
        _put(tx, CatalogEntry(object=data, created_at=tx.now, updated_at=tx.now, made_by=workload.id, home=home))
        tx.record_data("data.produced", data, f"{data.kind} {name} by {workload.id}: {_described(data)}")
        tx.audit(data_drafts.derived(data, workload, tx.state.hub.country))
    made = {artifact.name: artifact for artifact in workload.artifacts}
    for number, wanted in enumerate(workload.spec.artifacts):
        artifact = made.get(wanted.name)
        if artifact is None:  # the agent has said why
            continue
        data = derive_output(
            reads,
            id=artifact_id(workload, number),
            kind=DataKind.ARTIFACT,
            name=wanted.name,
            tenant=workload.tenant,
            hub=tx.state.hub.id,
            size_bytes=artifact.size_bytes,
            declared=None if reads else tx.state.guard.rules.open_tag(workload.spec.countries_allowed),
        )
        if not tx.state.guard.may_rest_here(data):
            lose_artifact(tx, workload, f"{wanted.name}: its tag does not let it rest here")
            continue
        expires_at = tx.now + timedelta(days=wanted.keep_days)
        entry = CatalogEntry(
            object=data,
            created_at=tx.now,
            updated_at=tx.now,
            made_by=workload.id,
            home=home,
            content=artifact.digest,
            expires_at=expires_at,
        )
        _put(tx, entry)
        tx.record_data("data.produced", data, f"artifact {wanted.name} by {workload.id}: {_described(data)}")
        tx.audit(data_drafts.derived(data, workload, tx.state.hub.country))


def lose_artifact(tx: Transaction, workload: Workload, what: str) -> None:
    """Said where people look: the work itself has not failed."""
    workload.artifacts_lost += (what[:LOST_LENGTH_MAX],)
    tx.changed(workload, "workload.artifact_lost", f"artifact {what[:LOST_LENGTH_MAX]}")


def artifact_id(workload: Workload, number: int) -> str:
    """Known before it is registered: its content is held under this id from the moment that its agent reports it."""
    return f"data_{workload.id.removeprefix('wl_')}-a{number + 1}"


def output_ids(workload: Workload) -> list[str]:
    """It ends well once, so these are never used again."""
    stem = workload.id.removeprefix("wl_")
    return [f"data_{stem}-{number}" for number in range(1, len(workload.spec.outputs) + 1)]


def _freeze(tx: Transaction, workload: Workload, why: str) -> None:
    if workload.state is not State.PAUSED:
        tx.move(workload, State.PAUSED, why)
    for task in workload.placement:
        if task.rank not in workload.ranks_ended:
            tx.to_agent(task, PauseTask(TaskKey(workload.id, workload.attempt, task.rank)))


def _check_copies(tx: Transaction, data: DataObject) -> None:
    """A copy is declared only at hubs of the fleet, and where its tag lets it rest."""
    found: list[Rejection] = []
    for hub in data.hubs:
        site = tx.state.guard.rules.terrain.site(hub)
        if site is None:
            raise HarchError("E0305", f"no hub named `{hub[:64]}`", hint="`harch hubs` lists them", field="hubs")
        if data.tag is not None:
            found += rejected(f"{data.name} at {hub}", explain_rest(data.tag, site))
    if found:
        lines = [f"{reason.subject}: {reason.rule}: {reason.detail}" for reason in found]
        raise HarchError(
            "E0907",
            "its tag does not let it rest there: " + "; ".join(lines),
            hint="; ".join(dict.fromkeys(reason.nearest_fix for reason in found)),
            field="hubs",
            meta={
                "problems": [
                    {"where": reason.subject, "rule": reason.rule, "what": reason.detail, "fix": reason.nearest_fix}
                    for reason in found
                ]
            },
        )


def _put(tx: Transaction, entry: CatalogEntry) -> None:
    tx.state.catalog.put(entry)
    tx.emit(fx.SaveData(entry))


def _described(data: DataObject) -> str:
    if data.tag is None:
        return "untagged: cannot be used"
    reading, resting = ", ".join(data.tag.process_in), ", ".join(data.tag.rest_in)
    return f"may be processed in {reading or 'no country'}, rest in {resting or 'no country'}"


def _first(violation: Violation) -> str:
    first = violation.rejections[0]
    more = f" (and {len(violation.rejections) - 1} more)" if len(violation.rejections) > 1 else ""
    return f"{first.subject}: {first.rule}: {first.detail}{more}"
