"""Which data does this hub know of? The catalog: objects by id and by name, with their tags; in memory, like the work.

The store holds every entry, so that a restart finds all of them again. Something without a tag may be in the catalog,
and nobody may use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from msgspec import Struct

from harch.base.errors import HarchError
from harch.sovereignty.tags import DataObject

OBJECTS_MAX = 200_000


class CatalogEntry(Struct, frozen=True, kw_only=True):
    """A data object with what the rules need not know of it."""

    object: DataObject
    created_at: datetime
    updated_at: datetime
    sha256: str = ""
    made_by: str = ""  # the workload that produced it; empty if somebody registered it
    home: str = ""  # the hub whose catalog has it; empty if this one has. Kept here for work of that hub only.


class Catalog:
    """All entries of one hub. Only the job machine writes to it."""

    def __init__(self) -> None:
        self.entries: dict[str, CatalogEntry] = {}
        self.objects: dict[str, DataObject] = {}  # the same by id, as lineage wants them
        self._by_name: dict[tuple[str, str], str] = {}

    def put(self, entry: CatalogEntry) -> None:
        """Adds or replaces. A name means what somebody registered under it, else the newest product of that name."""
        data = entry.object
        self.entries[data.id] = entry
        self.objects[data.id] = data
        holder = self.named(data.name, tenant=data.tenant)
        if not entry.home and (holder is None or holder.made_by):
            self._by_name[data.tenant, data.name] = data.id

    def restore(self, entries: Iterable[CatalogEntry]) -> None:
        for entry in sorted(entries, key=lambda entry: (entry.created_at, entry.object.id)):
            self.put(entry)

    def named(self, name: str, *, tenant: str) -> CatalogEntry | None:
        object_id = self._by_name.get((tenant, name))
        return self.entries[object_id] if object_id is not None else None

    def find(self, ref: str, *, tenant: str) -> CatalogEntry | None:
        """By id or name, and only what is this tenant's: that others have something is not told either."""
        entry = self.entries.get(ref)
        if entry is not None:
            return entry if entry.object.tenant == tenant else None
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
            if tenant is None or entry.object.tenant == tenant:
                yield entry

    def check_room(self) -> None:
        if len(self.entries) >= OBJECTS_MAX:
            raise HarchError(
                "E0401", f"the catalog holds {OBJECTS_MAX} data objects, its limit", hint="use another hub's catalog"
            )
