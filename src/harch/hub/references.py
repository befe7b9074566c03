"""Does what somebody asks about exist? Names become ids, and what nothing here has ever mentioned is an error.

A report about something that was misspelt would be empty, and an empty report reads as an all-clear. So every question
that takes a reference resolves it here first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from harch.base.errors import HarchError
from harch.hub.jobs.runtime import JobRuntime
from harch.hub.store.database import Database
from harch.workloads.lifecycle import Workload

FindWorkload = Callable[..., Awaitable[Workload]]


class HubReferences:
    """`tenant` None: an operator asks, for all tenants. What belongs to others is as unknown as what is not there."""

    def __init__(self, database: Database, jobs: JobRuntime, find: FindWorkload) -> None:
        self._database, self._jobs, self._find = database, jobs, find

    async def workload(self, ref: str, *, tenant: str | None) -> str:
        """The id of a workload, of this hub or of another one that left its marks here. Raises E0301."""
        try:
            return (await self._find(ref, tenant=tenant)).id
        except HarchError:
            if await self._exists("carbon_ledger", "job", ref, tenant):
                return ref
            raise

    async def data(self, ref: str, *, tenant: str | None) -> str:
        """The id of a data object that the catalog has, or that the records mention. Raises E0906."""
        try:
            return self._jobs.machine.state.catalog.get(ref, tenant=tenant).object.id
        except HarchError:
            if tenant is None and await self._exists("audit_data", "data_id", ref):
                return ref
            raise

    async def subject(self, ref: str, *, tenant: str | None) -> str:
        """What events and audit entries call it: any id that they have, or the id of a name. Raises E0351."""
        if await self._exists("events", "subject", ref, tenant):
            return ref
        if tenant is None and await self._exists("audit", "subject", ref):
            return ref
        for find in (self.workload, self.data):
            try:
                return await find(ref, tenant=tenant)
            except HarchError:
                continue
        raise HarchError(
            "E0351",
            f"nothing in this hub's records is named `{ref[:128]}`",
            hint="`harch ps --all-states`, `harch data ls` and `harch node ls` show what there is",
            field="subject",
        )

    async def tenant(self, name: str) -> str:
        """For operators. Raises E0350."""
        if any(entry.object.tenant == name for entry in self._jobs.machine.state.catalog.entries.values()):
            return name
        for table in ("workloads", "api_keys", "secrets"):
            if await self._exists(table, "tenant", name):
                return name
        raise HarchError(
            "E0350",
            f"no tenant `{name[:64]}` at this hub",
            hint="GET /v1/auth/keys shows the tenants that have keys",
            field="tenant",
        )

    async def _exists(self, table: str, column: str, value: str, tenant: str | None = None) -> bool:
        scope, values = ("", ()) if tenant is None else (" AND tenant IN (?, '')", (tenant,))
        found = await asyncio.to_thread(
            self._database.query,
            f"SELECT 1 FROM {table} WHERE {column} = ?{scope} LIMIT 1",  # noqa: S608 - names are ours
            (value, *values),
        )
        return bool(found)
