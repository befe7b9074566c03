"""What do the routes ask of SENTINEL? The stores of tenants, and what is known about metrics and targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from harch.sentinel.model.labels import Matcher, MetricMetadata
from harch.sentinel.model.logs import LogStore
from harch.sentinel.model.selection import Appendable, Queryable, SeriesBatch, Written
from harch.sentinel.model.spans import SpanStore
from harch.sentinel.store.write_request import WriteAuthorizer


class TenantStore(Queryable, Appendable, Protocol):
    """One tenant's series. Times are milliseconds, both ends included."""

    def write_v1(self, body: bytes, judge: WriteAuthorizer | None = None) -> Written:
        """A remote-write request, snappy and protobuf as it came. Raises HarchError for what cannot be read."""
        ...

    def write_v2(self, body: bytes, judge: WriteAuthorizer | None = None) -> Written: ...

    def is_small(self, matchers: Sequence[Matcher], start: int, series_max: int) -> bool:
        """Whether so few series match that reading them takes next to no time."""
        ...

    def metadata(self) -> Mapping[str, MetricMetadata]: ...

    def describe(self, metadata: Mapping[str, MetricMetadata]) -> None: ...

    def delete(self, matchers: Sequence[Matcher], start: int, end: int) -> None: ...

    def purge(self) -> None:
        """Takes deleted samples off the disk now instead of with the next upkeep."""
        ...

    def facts(self) -> Mapping[str, object]:
        """Counts for people and dashboards: series, samples, bytes, time range."""
        ...


class Tenants(Protocol):
    """All tenants of one SENTINEL. A tenant begins with its first write."""

    def store(self, tenant: str) -> TenantStore: ...

    def names(self) -> Sequence[str]: ...

    def __contains__(self, tenant: object) -> bool:
        """Whether the tenant's store is open, so that `store` takes no time."""
        ...


class LogTenants(Protocol):
    """The log lines of all tenants. A tenant begins with its first write."""

    def logs(self, tenant: str) -> LogStore: ...


class SpanTenants(Protocol):
    """The spans of all tenants."""

    def spans(self, tenant: str) -> SpanStore: ...


Batches = Sequence[SeriesBatch]
