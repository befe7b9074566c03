"""How does a program work with data and its tags? Types, operations, and both namespaces of `client.data`.

Tags are plain mappings, as docs/reference/tags.md describes them: their rules are the hub's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar
from urllib.parse import quote

import msgspec

from harch.sdk.exchange import ApiRequest, Operation, RetryPolicy, decoded, exchange
from harch.wire.data import AuthorityView as Authority
from harch.wire.data import Copy, HubRules
from harch.wire.data import DataLineage as Lineage
from harch.wire.data import DataView as DataObject
from harch.wire.data import DataWhere as Where
from harch.wire.pages import Page

__all__ = [
    "PER_PAGE_MAX",
    "AsyncData",
    "AsyncRun",
    "Authority",
    "AuthorityList",
    "Copy",
    "Data",
    "DataObject",
    "DataOperations",
    "HubRules",
    "Lineage",
    "ObjectList",
    "Run",
    "Where",
    "new_data",
]

PER_PAGE_MAX = 100

T = TypeVar("T")

ObjectList = list[DataObject]
AuthorityList = list[Authority]


@dataclass(frozen=True, slots=True)
class DataOperations:
    """One operation per question; see `exchange` for how they are driven."""

    policy: RetryPolicy

    def add(self, body: Mapping[str, object]) -> Operation[DataObject]:
        return self._send("POST", "/data", body, DataObject)

    def get(self, ref: str) -> Operation[DataObject]:
        return self._get(_object(ref), DataObject)

    def all(self, kind: str | None, name: str | None = None) -> Operation[ObjectList]:
        found: list[DataObject] = []
        page = 0
        while True:
            page += 1
            params = {"page": str(page), "per_page": str(PER_PAGE_MAX)}
            params |= {key: word for key, word in (("kind", kind), ("name", name)) if word}
            part = decoded((yield from exchange(ApiRequest("GET", "/data", params), self.policy)), Page[DataObject])
            found += part.items
            if not part.items or len(found) >= part.total:
                return found

    def retag(
        self, ref: str, tag: Mapping[str, object], declassification: Mapping[str, object] | None
    ) -> Operation[DataObject]:
        body: dict[str, object] = {"tag": tag}
        if declassification is not None:
            body["declassification"] = declassification
        return self._send("PUT", f"{_object(ref)}/tag", body, DataObject)

    def remove(self, ref: str) -> Operation[None]:
        yield from exchange(ApiRequest("DELETE", _object(ref)), self.policy)

    def lineage(self, ref: str) -> Operation[Lineage]:
        return self._get(f"{_object(ref)}/lineage", Lineage)

    def where(self, ref: str) -> Operation[Where]:
        return self._get(f"{_object(ref)}/where", Where)

    def authorities(self) -> Operation[AuthorityList]:
        page = yield from self._get("/authorities", Page[Authority], {"per_page": str(PER_PAGE_MAX)})
        return page.items

    def add_authority(self, name: str, public_key: str) -> Operation[Authority]:
        return self._send("PUT", f"/authorities/{quote(name, safe='')}", {"public_key": public_key}, Authority)

    def remove_authority(self, name: str) -> Operation[None]:
        yield from exchange(ApiRequest("DELETE", f"/authorities/{quote(name, safe='')}"), self.policy)

    def _get(self, path: str, type_: type[T], params: Mapping[str, str] | None = None) -> Operation[T]:
        return decoded((yield from exchange(ApiRequest("GET", path, params or {}), self.policy)), type_)

    def _send(self, method: str, path: str, body: Mapping[str, object], type_: type[T]) -> Operation[T]:
        request = ApiRequest(method, path, headers={"content-type": "application/json"}, body=msgspec.json.encode(body))
        return decoded((yield from exchange(request, self.policy)), type_)


class Run(Protocol):
    def __call__(self, operation: Operation[T]) -> T: ...


class AsyncRun(Protocol):
    async def __call__(self, operation: Operation[T]) -> T: ...


class Data:
    """`client.data`. A `ref` is an id or a name."""

    def __init__(self, run: Run, ops: DataOperations) -> None:
        self._run, self._ops = run, ops

    def add(
        self,
        name: str,
        *,
        kind: str = "dataset",
        tag: Mapping[str, object] | None = None,
        hubs: Sequence[str] | None = None,
        size_bytes: int = 0,
        sha256: str = "",
        parents: Sequence[str] = (),
        content: str = "",
        keep_days: float | None = None,
        countries: Sequence[str] = (),
    ) -> DataObject:
        """Registers data. Without a tag nobody may use it; without `hubs` it is at the hub that is asked.

        `content`: the digest of files that were uploaded before. The hub keeps them for `keep_days`; None: until they
        are removed. `countries`: of code without a tag, where the work may run that it is for; empty: anywhere.
        """
        body = new_data(name, kind, tag, hubs, size_bytes, sha256, parents, content, keep_days, countries)
        return self._run(self._ops.add(body))

    def get(self, ref: str) -> DataObject:
        return self._run(self._ops.get(ref))

    def list(self, *, kind: str | None = None, name: str | None = None) -> ObjectList:
        """Newest first; several can have the same name: of other tenants, or made by work again and again."""
        return self._run(self._ops.all(kind, name))

    def retag(
        self, ref: str, tag: Mapping[str, object], *, declassification: Mapping[str, object] | None = None
    ) -> DataObject:
        """Tightens; to loosen, give a signed declassification."""
        return self._run(self._ops.retag(ref, tag, declassification))

    def remove(self, ref: str) -> None:
        """Forgets it, and its content if the hub keeps that. Refused while work reads it."""
        self._run(self._ops.remove(ref))

    def lineage(self, ref: str) -> Lineage:
        return self._run(self._ops.lineage(ref))

    def where(self, ref: str) -> Where:
        return self._run(self._ops.where(ref))

    def authorities(self) -> AuthorityList:
        return self._run(self._ops.authorities())

    def add_authority(self, name: str, public_key: str) -> Authority:
        return self._run(self._ops.add_authority(name, public_key))

    def remove_authority(self, name: str) -> None:
        self._run(self._ops.remove_authority(name))


class AsyncData:
    """`client.data` of the asynchronous client. The methods are those of `Data`."""

    def __init__(self, run: AsyncRun, ops: DataOperations) -> None:
        self._run, self._ops = run, ops

    async def add(
        self,
        name: str,
        *,
        kind: str = "dataset",
        tag: Mapping[str, object] | None = None,
        hubs: Sequence[str] | None = None,
        size_bytes: int = 0,
        sha256: str = "",
        parents: Sequence[str] = (),
        content: str = "",
        keep_days: float | None = None,
        countries: Sequence[str] = (),
    ) -> DataObject:
        body = new_data(name, kind, tag, hubs, size_bytes, sha256, parents, content, keep_days, countries)
        return await self._run(self._ops.add(body))

    async def get(self, ref: str) -> DataObject:
        return await self._run(self._ops.get(ref))

    async def list(self, *, kind: str | None = None, name: str | None = None) -> ObjectList:
        return await self._run(self._ops.all(kind, name))

    async def retag(
        self, ref: str, tag: Mapping[str, object], *, declassification: Mapping[str, object] | None = None
    ) -> DataObject:
        return await self._run(self._ops.retag(ref, tag, declassification))

    async def remove(self, ref: str) -> None:
        await self._run(self._ops.remove(ref))

    async def lineage(self, ref: str) -> Lineage:
        return await self._run(self._ops.lineage(ref))

    async def where(self, ref: str) -> Where:
        return await self._run(self._ops.where(ref))

    async def authorities(self) -> AuthorityList:
        return await self._run(self._ops.authorities())

    async def add_authority(self, name: str, public_key: str) -> Authority:
        return await self._run(self._ops.add_authority(name, public_key))

    async def remove_authority(self, name: str) -> None:
        await self._run(self._ops.remove_authority(name))


def new_data(
    name: str,
    kind: str,
    tag: Mapping[str, object] | None,
    hubs: Sequence[str] | None,
    size_bytes: int,
    sha256: str,
    parents: Sequence[str],
    content: str = "",
    keep_days: float | None = None,
    countries: Sequence[str] = (),
) -> dict[str, object]:
    """The body of a registration; what is not given stays out, so that the hub's defaults hold."""
    body: dict[str, object] = {"name": name, "kind": kind, "size_bytes": size_bytes, "parents": list(parents)}
    optional = {"tag": tag, "hubs": hubs, "sha256": sha256 or None, "content": content or None, "keep_days": keep_days}
    optional["countries"] = list(countries) or None
    return body | {key: value for key, value in optional.items() if value is not None}


def _object(ref: str) -> str:
    return f"/data/{quote(ref, safe='')}"
