"""How does a process begin to trace? By its environment and by where SENTINEL listens; without either it does not."""

from __future__ import annotations

from collections.abc import Callable

from harch.base.clock import Clock
from harch.base.tracing.exporter import Exporter, HttpPost
from harch.base.tracing.sampling import Budget, is_on, share_from_env
from harch.base.tracing.span import Attributes, Resource
from harch.base.tracing.tracer import Tracing


class ProcessTracing(Tracing):
    """Tracing that is told to a SENTINEL."""

    def __init__(self, resource: Resource, url: str, token: Callable[[], str], clock: Clock) -> None:
        self.exporter = Exporter(resource, HttpPost(url, token))
        super().__init__(self.exporter.give, clock, Budget(share_from_env()))
        self.counts = self.exporter.counts
        self.exporter.start()

    def close(self) -> None:
        self.exporter.close()


def open_tracing(
    service: str, attributes: Attributes, *, url: str | None, token: Callable[[], str], clock: Clock
) -> ProcessTracing | None:
    """None without a SENTINEL, or if `HARCH_TRACING` is off. Raises E0201 for settings that are none."""
    return ProcessTracing(Resource(service, attributes), url, token, clock) if url and is_on() else None
