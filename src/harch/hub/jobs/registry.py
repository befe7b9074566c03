"""Which workloads does the hub hold in memory, and is this submission one that it already has?"""

# harch: pure

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from datetime import timedelta
from hashlib import sha256

import msgspec

from harch.base.elapsed import elapsed
from harch.base.errors import HarchError
from harch.hub.jobs.events import EventContext, Submitted
from harch.hub.store.records import IdempotencyEntry
from harch.workloads.lifecycle import Workload
from harch.workloads.spec import WorkloadSpec, fingerprint

RETRY_WINDOW = timedelta(minutes=10)
IDEMPOTENCY_WINDOW = timedelta(hours=24)
IDEMPOTENCY_KEYS_MAX = 100_000
FINISHED_MAX = 200_000  # finished workloads kept in memory for the retry window; the store keeps all


def request_digest(spec: WorkloadSpec, annotations: dict[str, str]) -> str:
    """Annotations count: the public clients' own fields live there."""
    return sha256(fingerprint(spec) + msgspec.json.encode(annotations, order="sorted")).hexdigest()


class Registry:
    """Unfinished workloads, those finished a moment ago, their names, and the idempotency keys of a day."""

    def __init__(self) -> None:
        self.workloads: dict[str, Workload] = {}
        self._by_name: dict[tuple[str, str], str] = {}
        self._finished: deque[str] = deque()
        self._keys: OrderedDict[tuple[str, str], IdempotencyEntry] = OrderedDict()

    def add(self, workload: Workload) -> None:
        self.workloads[workload.id] = workload
        self._by_name[workload.tenant, workload.spec.name] = workload.id
        if workload.state.is_final:
            self._finished.append(workload.id)

    def add_borrowed(self, workload: Workload) -> None:
        """Another hub's work: it has no name here, and is forgotten when that hub has its end."""
        self.workloads[workload.id] = workload

    def finished(self, workload: Workload) -> None:
        self._finished.append(workload.id)

    def rename(self, workload: Workload, *, earlier: str) -> None:
        """A waiting workload has another specification, and its earlier name is free. Raises if its new one is not."""
        name = workload.spec.name
        holder = self._same_name(workload.tenant, name)
        if holder is not None and holder.id != workload.id and not holder.state.is_final:
            raise _name_taken(name, holder)
        self._by_name.pop((workload.tenant, earlier), None)
        self._by_name[workload.tenant, name] = workload.id

    def remember_keys(self, entries: Iterable[IdempotencyEntry]) -> None:
        for entry in entries:
            self._keys[entry.tenant, entry.key] = entry
            if len(self._keys) > IDEMPOTENCY_KEYS_MAX:
                self._keys.popitem(last=False)

    def earlier_submission(self, event: Submitted, context: EventContext) -> str | None:
        """The id of the workload that this submission repeats, or None. Raises if it contradicts an earlier one.

        Windows are of real time, whatever the clock was set to.
        """
        now, adopted = context.now, context.adopted
        if event.idempotency_key is not None:
            entry = self._keys.get((event.tenant, event.idempotency_key))
            if entry is not None and elapsed(entry.created_at, now, adopted) < IDEMPOTENCY_WINDOW:
                if entry.digest != request_digest(event.spec, event.annotations):
                    raise HarchError(
                        "E0206",
                        "this Idempotency-Key was used for another request",
                        hint="use a new key for a new request",
                        meta={"workload_id": entry.workload_id},
                    )
                return entry.workload_id
        holder = self._same_name(event.tenant, event.spec.name)
        if holder is None or (holder.state.is_final and event.idempotency_key is not None):
            return None  # with a key, the caller tells retries from new work; a finished name is free again
        same = holder.spec == event.spec and holder.annotations == event.annotations
        if same and elapsed(holder.created_at, now, adopted) < RETRY_WINDOW:
            return holder.id
        if holder.state.is_final:
            return None
        raise _name_taken(event.spec.name, holder)

    def forget_old(self, context: EventContext) -> None:
        """Drops finished workloads that no retry can mean any more."""
        while self._finished:
            workload = self.workloads.get(self._finished[0])
            if workload is not None:
                age = elapsed(workload.created_at, context.now, context.adopted)
                if age < RETRY_WINDOW and len(self._finished) <= FINISHED_MAX:
                    return
                del self.workloads[workload.id]
                name = (workload.tenant, workload.spec.name)
                if self._by_name.get(name) == workload.id:
                    del self._by_name[name]
            self._finished.popleft()

    def _same_name(self, tenant: str, name: str) -> Workload | None:
        workload_id = self._by_name.get((tenant, name))
        return self.workloads.get(workload_id) if workload_id is not None else None


def _name_taken(name: str, holder: Workload) -> HarchError:
    return HarchError(
        "E0302",
        f"the name `{name}` belongs to workload {holder.id}, which is {holder.state} and was specified otherwise "
        "or too long ago to be a retry",
        hint=f"choose another name, or `harch stop {holder.id}` first",
        field="name",
        meta={"workload_id": holder.id},
    )
