"""Which data does this hub know of? The catalog: objects by id and by name, with their tags; in memory, like the work.

The store holds every entry, so that a restart finds all of them again. Something without a tag may be in the catalog,
and nobody may use it.
"""

# harch: pure

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from harch.base.errors import HarchError, InvariantBroken
from harch.base.rejection import Rejection, rejected
from harch.execution.protocol import ContentUse, TaskContent
from harch.hub.store.records import CatalogEntry
from harch.sovereignty.compiled import Rules
from harch.sovereignty.gates import (
    AccessRequest,
    OfferVerdict,
    RunningWork,
    Violation,
    admit,
    audit_running,
    before_offer,
    eligible_mask,
)
from harch.sovereignty.lineage import derive_tag
from harch.sovereignty.rules import explain_rest
from harch.sovereignty.tags import DataKind, DataObject
from harch.workloads.lifecycle import Workload
from harch.workloads.spec import WorkloadSpec

OBJECTS_MAX = 200_000


class Catalog:
    """All entries of one hub. Only the job machine writes to it."""

    def __init__(self) -> None:
        self.entries: dict[str, CatalogEntry] = {}
        self.objects: dict[str, DataObject] = {}  # the same by id, as lineage wants them
        self._by_name: dict[tuple[str, str], str] = {}
        self._children: Counter[str] = Counter()  # how many objects were derived from each

    def put(self, entry: CatalogEntry) -> None:
        """Adds or replaces. A name means what somebody registered under it, else the newest product of that name."""
        data = entry.object
        if data.id not in self.entries:
            self._children.update(data.parents)
        self.entries[data.id] = entry
        self.objects[data.id] = data
        holder = self.named(data.name, tenant=data.tenant)
        if not entry.home and entry.removed_at is None and (holder is None or holder.made_by):
            self._by_name[data.tenant, data.name] = data.id

    def remove(self, data_id: str) -> None:
        """Its name means the newest product of that name again, if there is one."""
        entry = self.entries.pop(data_id)
        del self.objects[data_id]
        self._children.subtract(entry.object.parents)
        name = (entry.object.tenant, entry.object.name)
        if self._by_name.get(name) != data_id:
            return
        del self._by_name[name]
        for other in self.entries.values():
            if not other.home and other.removed_at is None and (other.object.tenant, other.object.name) == name:
                self._by_name[name] = other.object.id

    def has_children(self, data_id: str) -> bool:
        """Whether something that is still known was derived from it."""
        return self._children[data_id] > 0

    def restore(self, entries: Iterable[CatalogEntry]) -> None:
        for entry in sorted(entries, key=lambda entry: (entry.created_at, entry.object.id)):
            self.put(entry)

    def named(self, name: str, *, tenant: str) -> CatalogEntry | None:
        object_id = self._by_name.get((tenant, name))
        return self.entries[object_id] if object_id is not None else None

    def find(self, ref: str, *, tenant: str) -> CatalogEntry | None:
        """By id or name, and only what is this tenant's: that others have something is not disclosed either."""
        entry = self.entries.get(ref)
        if entry is not None:
            return entry if entry.object.tenant == tenant and entry.removed_at is None else None
        return self.named(ref, tenant=tenant)

    def get(self, ref: str, *, tenant: str | None) -> CatalogEntry:
        """`tenant` None, for operators: any tenant's, by id, else the first of that name. Raises E0906."""
        if tenant is not None:
            found = self.find(ref, tenant=tenant)
        else:
            found = self.entries.get(ref) or next(
                (self.entries[object_id] for (_, name), object_id in self._by_name.items() if name == ref), None
            )
        if found is None:
            raise HarchError("E0906", f"no data object `{ref[:128]}` at this hub", hint="`harch data ls` lists them")
        return found

    def of(self, tenant: str | None) -> Iterator[CatalogEntry]:
        """Newest first."""
        for entry in reversed(self.entries.values()):
            if tenant in (None, entry.object.tenant) and entry.removed_at is None:
                yield entry

    def check_room(self) -> None:
        if len(self.entries) >= OBJECTS_MAX:
            raise HarchError(
                "E0401", f"the catalog holds {OBJECTS_MAX} data objects, its limit", hint="use another hub's catalog"
            )


# Do the tags of data bind this hub's work? The four gates, asked of the rules with what the catalog knows.


REASONS_LISTED_MAX = 12


class Guard:
    """The gates of one hub."""

    def __init__(self, rules: Rules, hub_id: str, catalog: Catalog) -> None:
        self.rules, self.catalog = rules, catalog
        self._hub_id = hub_id
        self._readers: dict[str, Workload] = {}  # unfinished work that names data

    # Who is watched

    def watch(self, workload: Workload) -> None:
        if workload.data_ids:
            self._readers[workload.id] = workload
        else:
            self._readers.pop(workload.id, None)

    def unwatch(self, workload: Workload) -> None:
        self._readers.pop(workload.id, None)

    @property
    def has_readers(self) -> bool:
        return bool(self._readers)

    def readers_of(self, data_id: str) -> list[str]:
        """Unfinished work that names it."""
        return [workload.id for workload in self._readers.values() if data_id in workload.data_ids]

    # Gate 1

    def reads_request(self, subject: str, spec: WorkloadSpec, *, tenant: str) -> AccessRequest:
        """What a specification means, before it is admitted: names are looked up now."""
        reads: dict[str, DataObject] = {}
        missing: list[str] = []
        for ref in spec.reads:
            entry = self.catalog.find(ref, tenant=tenant)
            if entry is None:
                missing.append(ref)
            else:
                reads[entry.object.id] = entry.object
        return AccessRequest(
            id=subject,
            countries_allowed=spec.countries_allowed,
            reads=tuple(reads.values()),
            not_found=tuple(missing),
        )

    def admit(
        self, spec: WorkloadSpec, reads_request: AccessRequest, *, tenant: str, elsewhere_too: bool = False
    ) -> tuple[str, ...]:
        """The ids of what it reads. Raises E0907 with every rule that says no, and the hubs that may run it.

        `elsewhere_too`: another hub will do, if its data may be read there.
        """
        verdict = admit(self.rules, reads_request, self._hub_id)
        reasons = verdict.rejections
        if not reasons and (spec.outputs or spec.artifacts) and reads_request.reads:
            reasons = self._against_outputs(reads_request)
        if (reasons or not verdict.allowed) and not (elsewhere_too and self._others(reads_request)):
            raise self._refusal(reads_request, reasons)
        self._check_uses(spec, tenant)
        self.check_names(spec, tenant=tenant)
        return tuple(data.id for data in reads_request.reads)

    def check_names(self, spec: WorkloadSpec, *, tenant: str) -> None:
        """What it makes must not take the name of something that was registered. Raises E0910."""
        for field, name in (
            *(("outputs", name) for name in spec.outputs),
            *(("artifacts", artifact.name) for artifact in spec.artifacts),
        ):
            holder = self.catalog.named(name, tenant=tenant)
            if holder is not None and not holder.made_by:
                raise HarchError(
                    "E0910",
                    f"the name `{name}` belongs to data that was registered: {holder.object.id}",
                    hint="choose another name for what it makes",
                    field=field,
                    meta={"data": [holder.object.id]},
                )

    def _check_uses(self, spec: WorkloadSpec, tenant: str) -> None:
        """Code is what was uploaded as code, an image what was registered as one: nodes treat them differently."""
        for field, ref, kind in (("code", spec.code, DataKind.CODE), ("image", spec.image_data, DataKind.IMAGE)):
            entry = self.catalog.find(ref, tenant=tenant) if ref is not None else None
            if entry is None:
                continue
            if entry.object.kind is not kind or not entry.content:
                what = f"is a {entry.object.kind}" if entry.content else "has no content here"
                raise HarchError(
                    "E0201",
                    f"`{entry.object.name}` {what}; `{field}` needs content of kind `{kind}`",
                    hint=f"`harch data add NAME --kind {kind} --files DIR` uploads it",
                    field=field,
                )
        for ref in spec.data:
            entry = self.catalog.find(ref, tenant=tenant)
            if entry is not None and entry.object.kind is DataKind.CODE:
                raise HarchError("E0201", f"`{ref}` is code, not data", hint="name it as `code`", field="data")

    def hubs_allowed(self, reads_request: AccessRequest) -> tuple[str, ...]:
        """For the first hard check of placement."""
        mask = eligible_mask(self.rules, reads_request)
        return tuple(hub for hub, number in self.rules.bits.items() if mask >> number & 1)

    def _others(self, reads_request: AccessRequest) -> list[str]:
        return [hub for hub in self.hubs_allowed(reads_request) if hub != self._hub_id]

    def _against_outputs(self, reads_request: AccessRequest) -> tuple[Rejection, ...]:
        """What it makes stays at the hub, so that must be allowed too."""
        tag = derive_tag(data.tag for data in reads_request.reads)
        return rejected(f"outputs at {self._hub_id}", explain_rest(tag, self.rules.terrain.site(self._hub_id)))

    def _refusal(self, reads_request: AccessRequest, reasons: tuple[Rejection, ...]) -> HarchError:
        hubs = self._others(reads_request)
        lines = [f"{reason.subject}: {reason.rule}: {reason.detail}" for reason in reasons[:REASONS_LISTED_MAX]]
        message = f"{self._hub_id} may not run this:" + (
            f" {lines[0]}" if len(lines) == 1 else "\n  ".join(["", *lines])
        )
        if len(reasons) > len(lines):
            message += f"\n  and {len(reasons) - len(lines)} more"
        where = f"its data may be read at {', '.join(hubs)}: `harch run --hub {hubs[0]} …`" if hubs else ""
        fixes = "; ".join(dict.fromkeys(reason.nearest_fix for reason in reasons if reason.nearest_fix))
        return HarchError(
            "E0907",
            message,
            hint=where or fixes or "`harch data where NAME` shows every hub and every rule",
            field="data",
            meta={
                "hub": self._hub_id,
                "data": [data.id for data in reads_request.reads],
                "hubs_allowed": hubs,
                "problems": [
                    {
                        "where": reason.subject,
                        "rule": reason.rule,
                        "what": reason.detail,
                        "fix": reason.nearest_fix,
                    }
                    for reason in reasons
                ],
            },
        )

    # Gates 2 to 4: of work that has been admitted

    def reads_of(self, workload: Workload) -> AccessRequest:
        """By id, because a name may mean something else by now. What has left the catalog is not found."""
        objects = self.catalog.objects
        return AccessRequest(
            id=workload.id,
            countries_allowed=workload.spec.countries_allowed,
            reads=tuple(objects[data_id] for data_id in workload.data_ids if data_id in objects),
            not_found=tuple(data_id for data_id in workload.data_ids if data_id not in objects),
        )

    def before_offer(self, workload: Workload, candidates: Iterable[str]) -> OfferVerdict:
        """Which other hubs may hear of it."""
        return before_offer(self.rules, self.reads_of(workload), candidates)

    def before_start(self, workload: Workload) -> tuple[DataObject, ...]:
        """What the agent learns of its data, to check again. That it may not be read here must never be found now."""
        reads_request = self.reads_of(workload)
        if reads_request.not_found or not all(
            self.rules.may_process(data.tag, self._hub_id) for data in reads_request.reads
        ):
            raise InvariantBroken("tags", workload.id, self._hub_id)
        return tuple(replace(data, hubs=(), parents=()) for data in reads_request.reads)

    def contents_of(self, workload: Workload) -> tuple[TaskContent, ...]:
        """The trees that must be on its node before it starts."""
        entries = (self.catalog.entries.get(data_id) for data_id in workload.data_ids)
        return tuple(
            TaskContent(entry.object.id, entry.object.name, entry.content, _use_of(entry.object.kind))
            for entry in entries
            if entry is not None and entry.content
        )

    def leaves_what_may_not_rest(self, workload: Workload) -> bool:
        """It may be read here and not be kept: what the work leaves behind is deleted when it ends."""
        return not all(self.may_rest_here(data) for data in self.reads_of(workload).reads)

    def violations(self) -> tuple[Violation, ...]:
        """Of all unfinished work that names data and is not on its way out because of that already."""
        return audit_running(
            self.rules, (self._seen(workload) for workload in self._readers.values() if not workload.scrub)
        )

    def _seen(self, workload: Workload) -> RunningWork:
        """Where it is. What waits for another hub may be read there, if anywhere."""
        reads_request = self.reads_of(workload)
        if workload.leased:
            return RunningWork(access=reads_request, hub=workload.runner_hub)
        others = () if workload.home_fits or workload.is_placed else self._others(reads_request)
        return RunningWork(access=reads_request, hub=others[0] if others else self._hub_id)

    def may_rest_here(self, data: DataObject) -> bool:
        return self.rules.may_rest(data.tag, self._hub_id)


def _use_of(kind: DataKind) -> ContentUse:
    return {DataKind.CODE: ContentUse.CODE, DataKind.IMAGE: ContentUse.IMAGE}.get(kind, ContentUse.DATA)
