"""How does a program see the hubs, and take one out of use? Operations, and both namespaces of `client.hubs`."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

import msgspec

from harch.sdk.data import AsyncRun, Run
from harch.sdk.exchange import ApiRequest, Operation, RetryPolicy, decoded, exchange
from harch.sdk.types import Hub, HubClosure, Page

PER_PAGE_MAX = 100

HubList = list[Hub]  # inside the classes below, `list` is a method


@dataclass(frozen=True, slots=True)
class HubOperations:
    """One operation per question; see `exchange` for how they are driven."""

    retry: RetryPolicy

    def all(self) -> Operation[HubList]:
        found: HubList = []
        number = 0
        while True:
            number += 1
            params = {"page": str(number), "per_page": str(PER_PAGE_MAX)}
            page = decoded((yield from exchange(ApiRequest("GET", "/hubs", params), self.retry)), Page[Hub])
            found += page.items
            if not page.items or len(found) >= page.total:
                return found

    def closure(self, hub_id: str) -> Operation[HubClosure]:
        reply = yield from exchange(ApiRequest("GET", f"{_path(hub_id)}/closure"), self.retry)
        return decoded(reply, HubClosure)

    def change(self, hub_id: str, verb: str, why: str) -> Operation[HubClosure]:
        headers = {"content-type": "application/json"}
        body = msgspec.json.encode({"why": why})
        request = ApiRequest("POST", f"{_path(hub_id)}/{verb}", headers=headers, body=body)
        return decoded((yield from exchange(request, self.retry)), HubClosure)


class Hubs:
    """`client.hubs`. Changes need the role `operator`, and are asked of the hub that they are about."""

    def __init__(self, run: Run, ops: HubOperations) -> None:
        self._run, self._ops = run, ops

    def list(self) -> HubList:
        """Every hub as the asked one sees it, with the age of what it knows."""
        return self._run(self._ops.all())

    def closure(self, hub_id: str) -> HubClosure:
        """Whether it takes work, and how much it still has."""
        return self._run(self._ops.closure(hub_id))

    def cordon(self, hub_id: str, *, why: str = "") -> HubClosure:
        """It starts nothing new; what runs goes on."""
        return self._run(self._ops.change(hub_id, "cordon", why))

    def drain(self, hub_id: str, *, why: str = "") -> HubClosure:
        """It starts nothing new, and what runs goes elsewhere."""
        return self._run(self._ops.change(hub_id, "drain", why))

    def retire(self, hub_id: str, *, why: str = "") -> HubClosure:
        """It leaves the federation for good, once nothing is left."""
        return self._run(self._ops.change(hub_id, "retire", why))

    def open(self, hub_id: str, *, why: str = "") -> HubClosure:
        """It takes work again."""
        return self._run(self._ops.change(hub_id, "open", why))


class AsyncHubs:
    """`client.hubs` of the asynchronous client. The methods are those of `Hubs`."""

    def __init__(self, run: AsyncRun, ops: HubOperations) -> None:
        self._run, self._ops = run, ops

    async def list(self) -> HubList:
        return await self._run(self._ops.all())

    async def closure(self, hub_id: str) -> HubClosure:
        return await self._run(self._ops.closure(hub_id))

    async def cordon(self, hub_id: str, *, why: str = "") -> HubClosure:
        return await self._run(self._ops.change(hub_id, "cordon", why))

    async def drain(self, hub_id: str, *, why: str = "") -> HubClosure:
        return await self._run(self._ops.change(hub_id, "drain", why))

    async def retire(self, hub_id: str, *, why: str = "") -> HubClosure:
        return await self._run(self._ops.change(hub_id, "retire", why))

    async def open(self, hub_id: str, *, why: str = "") -> HubClosure:
        return await self._run(self._ops.change(hub_id, "open", why))


def _path(hub_id: str) -> str:
    return f"/hubs/{quote(hub_id, safe='')}"
