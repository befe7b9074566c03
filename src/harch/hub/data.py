"""What can be asked about data at a hub? The catalog behind the API: add, list, tag, lineage, where, authorities."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.base.ids import new_id
from harch.base.integers import Natural64
from harch.hub.audit import data_drafts
from harch.hub.audit.drafts import is_refusal
from harch.hub.content.service import HubContent
from harch.hub.content.upkeep import ContentUpkeep
from harch.hub.jobs import events as ev
from harch.hub.jobs.runtime import JobRuntime
from harch.hub.jobs.state import JobState
from harch.hub.store import rows
from harch.hub.store.database import Database
from harch.hub.store.records import CatalogEntry
from harch.sovereignty.declassification import Declassification
from harch.sovereignty.gates import OfferVerdict
from harch.sovereignty.jurisdictions import Jurisdictions
from harch.sovereignty.lineage import ancestors, descendants, too_loose, where_is
from harch.sovereignty.rules import explain_process, explain_rest
from harch.sovereignty.tags import DataKind, DataObject, Tag, parse_tag
from harch.wire.data import AuthorityView, DataLineage, DataView, DataWhere, HubRules
from harch.workloads.lifecycle import Workload
from harch.workloads.spec import Country, DataRef

AUTHORITIES_MAX = 64
PARENTS_MAX = 64
HUBS_MAX = 64
_KEY_BYTES = 32


class NewData(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What somebody registers. Without a tag nobody may use it; without `hubs` it is at the hub that is asked."""

    name: DataRef
    kind: DataKind = DataKind.DATASET
    tag: dict[str, object] | None = None
    hubs: Annotated[list[str], Meta(max_length=HUBS_MAX)] | None = None
    size_bytes: Natural64 = 0
    sha256: Annotated[str, Meta(pattern="^([0-9a-f]{64})?$")] = ""
    parents: Annotated[list[DataRef], Meta(max_length=PARENTS_MAX)] = []
    content: Annotated[str, Meta(pattern="^([0-9a-f]{64})?$")] = ""  # the digest of its files, uploaded before
    keep_days: Annotated[float, Meta(gt=0, le=3660)] | None = None  # None: until it is removed
    # Of code without a tag: where the work may run that it is for. It may be there, and at the hub that is asked.
    countries: Annotated[list[Country], Meta(max_length=250)] = []


def view_of(entry: CatalogEntry) -> DataView:
    data = entry.object
    return DataView(
        id=data.id,
        name=data.name,
        kind=data.kind,
        tenant=data.tenant,
        tag=None if data.tag is None else msgspec.to_builtins(data.tag),
        tag_revision=data.tag_revision,
        hubs=data.hubs,
        size_bytes=data.size_bytes,
        sha256=entry.sha256,
        parents=data.parents,
        made_by=entry.made_by,
        created_at=entry.created_at,
        updated_at=entry.updated_at,
        content=entry.content,
        expires_at=entry.expires_at,
    )


class HubData:
    """One hub's catalog. `tenant` None means all tenants, for operators."""

    def __init__(
        self,
        *,
        hub_id: str,
        jurisdictions: Jurisdictions,
        database: Database,
        jobs: JobRuntime,
        clock: Clock,
        content: HubContent,
        upkeep: ContentUpkeep,
    ) -> None:
        self._hub_id, self._jurisdictions, self._jobs, self._clock = hub_id, jurisdictions, jobs, clock
        self._content, self._upkeep = content, upkeep
        self._authorities = database.authorities()

    # Objects

    async def add(self, new: NewData, *, tenant: str, actor: str) -> DataView:
        """Registers an object; it is on disk when this returns. Equal code with an equal tag is one object."""
        now = self._clock.now()
        tag = None if new.tag is None else parse_tag(new.tag, self._jurisdictions)
        is_code = new.kind is DataKind.CODE
        if is_code and tag is None:
            own = [self._state.hub.country] if new.countries else []
            tag = self._state.guard.rules.open_tag([*new.countries, *own])
        if is_code and (known := self._same_code(new.content, tag, tenant)) is not None:
            await self._jobs.handle(ev.DataKept(known.object.id, now + self._content.code_kept))
            return self.find(known.object.id, tenant=None)
        name, keep = self._name_of(new, tenant), None if new.keep_days is None else timedelta(days=new.keep_days)
        if is_code:
            keep = self._content.code_kept
        data = DataObject(
            id=new_id("data", now=now),
            kind=new.kind,
            name=name,
            tenant=tenant,
            tag=tag,
            hubs=tuple(dict.fromkeys(new.hubs)) if new.hubs is not None else (self._hub_id,),
            size_bytes=new.size_bytes,
            parents=tuple(self._state.catalog.get(ref, tenant=tenant).object.id for ref in new.parents),
        )
        expires_at = now + keep if keep is not None else None
        entry = CatalogEntry(
            object=data,
            created_at=now,
            updated_at=now,
            sha256=new.sha256,
            content=new.content,
            expires_at=expires_at,
        )
        if not new.content:
            await self._handle(ev.DataAdded(entry, actor), name, tenant, actor, ())
            return view_of(entry)
        self._check_has_files(new, data)
        size_bytes = await self._content.hold(data.id, new.content, tenant=tenant)
        entry = replace(entry, object=replace(data, size_bytes=size_bytes))
        try:
            await self._handle(ev.DataAdded(entry, actor), name, tenant, actor, ())
        except HarchError:
            await self._content.release(data.id, tenant=tenant)
            raise
        return view_of(entry)

    async def remove(self, ref: str, *, tenant: str | None, actor: str) -> DataView:
        """Forgets it; its files at this hub go with it. Raises E0906, and E0304 while unfinished work reads it."""
        found = self.find(ref, tenant=tenant)
        await self._jobs.handle(ev.DataRemoved(found.id, actor))
        if found.content:
            await self._content.release(found.id, tenant=found.tenant)
            self._upkeep.notify(found.hubs)
        return found

    def _check_has_files(self, new: NewData, data: DataObject) -> None:
        """What HarchOS holds is at the hub that holds it, whatever somebody declares."""
        if data.hubs != (self._hub_id,):
            raise HarchError(
                "E0201",
                f"its files are uploaded to {self._hub_id}, so that is where it is",
                hint="leave `hubs` out",
                field="hubs",
            )

    def _same_code(self, digest: str, tag: Tag | None, tenant: str) -> CatalogEntry | None:
        if not digest:
            raise HarchError("E0201", "code consists of files", hint="upload them first", field="content")
        return next(
            (
                entry
                for entry in self._state.catalog.of(tenant)
                if entry.object.kind is DataKind.CODE
                and entry.content == digest
                and entry.object.tag == tag
                and not entry.home
            ),
            None,
        )

    def _name_of(self, new: NewData, tenant: str) -> str:
        """Nobody chooses names for code, so none is in the way: with another tag it gets a name of its own."""
        if new.kind is not DataKind.CODE or self._state.catalog.named(new.name, tenant=tenant) is None:
            return new.name
        return f"{new.name}-{secrets.token_hex(3)}"

    def find(self, ref: str, *, tenant: str | None) -> DataView:
        return view_of(self._state.catalog.get(ref, tenant=tenant))

    def listed(self, *, tenant: str | None, kind: DataKind | None, name: str | None) -> list[DataView]:
        return [
            view_of(entry)
            for entry in self._state.catalog.of(tenant)
            if (kind is None or entry.object.kind is kind) and (name is None or entry.object.name == name)
        ]

    async def retag(
        self,
        ref: str,
        raw_tag: dict[str, object],
        declassification: Declassification | None,
        *,
        tenant: str | None,
        actor: str,
    ) -> DataView:
        """Tightening is free; loosening raises E0908 or E0909 without a valid declassification."""
        data = self.find(ref, tenant=tenant)
        tag = parse_tag(raw_tag, self._jurisdictions)
        event = ev.DataRetagged(data.id, tag, declassification, dict(self._authorities), actor)
        await self._handle(event, data.id, data.tenant, actor, (data.id,))
        self._upkeep.soon()  # files that may not rest here any more go now
        self._upkeep.notify(data.hubs)
        return self.find(data.id, tenant=None)

    def lineage(self, ref: str, *, tenant: str | None) -> DataLineage:
        catalog = self._state.catalog
        subject = self.find(ref, tenant=tenant)
        above, below = ancestors(catalog.objects, subject.id), descendants(catalog.objects, subject.id)
        family = {subject.id, *above, *below}
        return DataLineage(
            subject=subject,
            ancestors=[view_of(catalog.entries[object_id]) for object_id in above if object_id in catalog.entries],
            descendants=[view_of(catalog.entries[object_id]) for object_id in below],
            missing=[object_id for object_id in above if object_id not in catalog.entries],
            too_loose=[object_id for object_id in too_loose(catalog.objects) if object_id in family],
        )

    def where(self, ref: str, *, tenant: str | None) -> DataWhere:
        state = self._state
        data = state.catalog.get(ref, tenant=tenant).object
        return DataWhere(
            subject=self.find(data.id, tenant=None),
            copies=list(where_is(state.catalog.objects, data.id)),
            readers=state.guard.readers_of(data.id),
            hubs=[self._hub_rules(data, hub) for hub in state.guard.rules.bits],
        )

    def _hub_rules(self, data: DataObject, hub: str) -> HubRules:
        rules = self._state.guard.rules
        site = rules.terrain.site(hub)
        process, rest = explain_process(data.tag, site), explain_rest(data.tag, site)
        return HubRules(
            hub=hub,
            country=(site.country or "") if site is not None else "",
            # Compiled and slow rules must agree; where they do not, it is no.
            may_process=rules.may_process(data.tag, hub) and all(outcome.passed for outcome in process),
            may_rest=rules.may_rest(data.tag, hub) and all(outcome.passed for outcome in rest),
            process=process,
            rest=rest,
        )

    # Gate 2

    async def before_offer(self, workload: Workload, candidates: Iterable[str]) -> OfferVerdict:
        """Which of these hubs may hear of the work; ask before anything about it leaves this hub. Audited."""
        verdict = self._state.guard.before_offer(workload, candidates)
        if workload.data_ids or verdict.rejections:
            state = self._state
            draft = data_drafts.offered(
                workload, verdict, state.hub.country, policy_version=self._jobs.context().policy_version
            )
            await self._jobs.write([], [draft])
        return verdict

    # Authorities

    def authority_keys(self) -> dict[str, bytes]:
        return dict(self._authorities)

    def authorities(self) -> list[AuthorityView]:
        return [AuthorityView(name=name, public_key=key.hex()) for name, key in sorted(self._authorities.items())]

    async def add_authority(self, name: str, public_key: str, *, actor: str) -> AuthorityView:
        """From now on, what this key signs under this name loosens tags here."""
        try:
            key = bytes.fromhex(public_key)
        except ValueError:
            key = b""
        if len(key) != _KEY_BYTES:
            raise HarchError(
                "E0201", "this is not an Ed25519 public key", hint="give 64 hexadecimal digits", field="public_key"
            )
        if name not in self._authorities and len(self._authorities) >= AUTHORITIES_MAX:
            raise HarchError("E0401", f"{AUTHORITIES_MAX} authorities are known already", hint="remove one first")
        draft = data_drafts.authority_changed(name, key.hex(), actor=actor)
        await self._jobs.write([rows.save_authority(name, key, self._clock.now())], [draft])
        self._authorities[name] = key
        return AuthorityView(name=name, public_key=key.hex())

    async def remove_authority(self, name: str, *, actor: str) -> None:
        if name not in self._authorities:
            raise HarchError("E0911", f"no authority named `{name[:64]}`", hint="`harch data authority ls`")
        await self._jobs.write([rows.drop_authority(name)], [data_drafts.authority_changed(name, "", actor=actor)])
        del self._authorities[name]

    async def _handle(self, event: ev.Event, subject: str, tenant: str, actor: str, data: tuple[str, ...]) -> None:
        """The machine raises before anything changed, so a no is written here, before anybody hears it."""
        try:
            await self._jobs.handle(event)
        except HarchError as error:
            if is_refusal(error):
                country = self._state.hub.country
                version = self._jobs.context().policy_version
                draft = data_drafts.refused(
                    subject, error, country=country, tenant=tenant, actor=actor, policy_version=version, data=data
                )
                await self._jobs.write([], [draft])
            raise

    @property
    def _state(self) -> JobState:
        return self._jobs.machine.state
