"""How does this SENTINEL answer other hubs?

The rules of `sentinel.federated.disclosure` over its own stores; its hub learns what to write down of the answer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from harch.base.errors import HarchError
from harch.sentinel.federated.disclosure.answer import OwnHub, TenantReaders, answer
from harch.sentinel.federated.disclosure.ledger import Memory
from harch.sentinel.federated.disclosure.ledger_file import MemoryFile
from harch.sentinel.federated.messages import FederatedAnswer, InboundQuestion, Judged, account_of
from harch.sentinel.http import messages as http
from harch.sentinel.http.messages import TelemetryRequest
from harch.sentinel.http.routing import HttpRoute, WorkClass
from harch.sentinel.http.settings import FederatedSettings
from harch.sentinel.http.tenants import LogTenants, SpanTenants, Tenants
from harch.sentinel.model.labels import Labels, Matcher
from harch.sentinel.model.logs import LineChunk, LogRequest
from harch.sentinel.model.selection import NOTHING, Selection, SeriesExemplars, SeriesTable
from harch.sentinel.model.spans import Span, SpanField, SpanGroup, SpanQuery, TraceSummary
from harch.sentinel.promql.evaluate.context import QueryOptions
from harch.sentinel.promql.evaluate.engine import QueryEngine

# Who answers other hubs here? The rules of `sentinel.federated.owning` over this SENTINEL's stores.
#
# What is disclosed abroad is recorded on disk before it leaves. Without that record nothing is disclosed.


_log = logging.getLogger("harch.sentinel")


class HubOwner:
    """One hub's telemetry, for others and for its own people. `readers` opens what a tenant has here."""

    def __init__(
        self,
        settings: FederatedSettings,
        readers: Callable[[str], TenantReaders],
        engine: QueryEngine,
        memory_path: Path,
    ) -> None:
        self._settings, self._readers, self._engine = settings, readers, engine
        self._disclosure_lock = threading.Lock()  # answers abroad come one after the other: each counts for the next
        self._file: MemoryFile | None = None
        try:
            self._file = MemoryFile(memory_path)
        except HarchError as problem:
            _log.error("not answering queries from other countries: %s", problem.message)

    def answer(
        self, inbound: InboundQuestion, *, now_ms: int, is_gone: Callable[[], bool] = lambda: False
    ) -> FederatedAnswer:
        """Raises E0697 where the operator has turned answers off, E0698 without a record of what was disclosed."""
        if not self._settings.answers:
            raise HarchError(
                "E0697", "this hub does not answer queries of other hubs", hint="its operator has disabled them"
            )
        if self._settings.policy.is_home(inbound.here.country, inbound.asker.country):
            return self._answered(inbound, Memory(), now_ms, is_gone)
        with self._disclosure_lock:
            if self._file is None:
                raise HarchError("E0698", "this hub has lost its record of disclosures to other countries")
            disclosed = self._answered(inbound, self._file.memory, now_ms, is_gone)
            self._file.keep()
            return disclosed

    def own(
        self, inbound: InboundQuestion, *, now_ms: int, is_gone: Callable[[], bool] = lambda: False
    ) -> FederatedAnswer:
        """What is asked by people of this hub stays here."""
        return self._answered(inbound, Memory(), now_ms, is_gone)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _answered(
        self, inbound: InboundQuestion, memory: Memory, now_ms: int, is_gone: Callable[[], bool]
    ) -> FederatedAnswer:
        hub = OwnHub(
            inbound.here.hub_id, inbound.here.country, self._readers, memory, self._settings.policy, self._engine
        )
        options = QueryOptions(timeout_s=inbound.within_s, is_cancelled=is_gone)
        return answer(inbound.question, inbound.asker, hub, now_s=now_ms / 1000, options=options)


# How does SENTINEL answer other hubs? Its own hub asks for them, and learns what to write down of the answer.


BODY_BYTES_MAX = 512 * 1024
MSGPACK = "application/msgpack"

_decode_question = msgspec.msgpack.Decoder(InboundQuestion).decode
_encode = msgspec.msgpack.Encoder().encode


class Owner(Protocol):
    """Judges and evaluates questions of other hubs over this hub's telemetry."""

    def answer(self, inbound: InboundQuestion, *, now_ms: int, is_gone: Callable[[], bool]) -> FederatedAnswer:
        """Raises HarchError for what cannot be evaluated; what may not be disclosed is refused in the answer.

        `is_gone` says that the hub no longer waits.
        """
        ...

    def own(self, inbound: InboundQuestion, *, now_ms: int, is_gone: Callable[[], bool]) -> FederatedAnswer:
        """The answer to people of this hub itself: nothing leaves it, so nothing is judged."""
        ...


class FederatedAnswers:
    """One route, for the hub alone: who asks is believed because the hub says so."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner

    def routes(self) -> list[HttpRoute]:
        path = "/harchos/api/v1/federated/answer"
        return [HttpRoute(("POST",), path, self.answered, WorkClass.QUERY, BODY_BYTES_MAX, is_form=False)]

    def answered(self, request: TelemetryRequest, _: Mapping[str, str]) -> http.HttpReply:
        try:
            inbound = _decode_question(request.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise HarchError("E0699", f"not a federated query: {problem}") from problem
        answer = self._owner.answer(inbound, now_ms=request.now_ms, is_gone=request.is_gone)
        judged = Judged(parts=account_of(answer), answer=_encode(answer))
        return http.HttpReply(body=_encode(judged), content_type=MSGPACK)


# What telemetry does a tenant have here, for a question of another hub? Nothing at all is an answer, too.
#
# A question must not make a tenant: names come from other hubs, and folders would be made of them.


class TelemetryArchive(LogTenants, SpanTenants, Protocol):
    """Lines and spans of all tenants."""

    def names(self) -> Sequence[str]:
        """Tenants that have any."""
        ...


class NoSeries:
    """The metrics of a tenant that has none."""

    def select(self, matchers: Sequence[Matcher], start: int, end: int, *, limit: int) -> Selection:
        return NOTHING

    def series(self, matchers: Sequence[Matcher], start: int, end: int) -> SeriesTable:
        return NOTHING.series

    def exemplars(self, matchers: Sequence[Matcher], start: int, end: int) -> Sequence[SeriesExemplars]:
        return ()


class NoLines:
    def scan(self, request: LogRequest, stopped: Callable[[], bool]) -> Iterator[LineChunk]:
        return iter(())

    def streams(self, matchers: Sequence[Matcher], start_ns: int, end_ns: int) -> Sequence[Labels]:
        return ()


class NoSpans:
    def search(self, query: SpanQuery) -> Sequence[TraceSummary]:
        return ()

    def trace(self, trace_id: str) -> Sequence[Span]:
        return ()

    def statistics(self, query: SpanQuery, by: Sequence[SpanField]) -> Sequence[SpanGroup]:
        return ()

    def tag_names(self, start_ns: int, end_ns: int) -> Sequence[str]:
        return ()

    def tag_values(self, field: SpanField, attribute: str, start_ns: int, end_ns: int, limit: int) -> Sequence[str]:
        return ()


def readers_of(tenants: Tenants, archive: TelemetryArchive) -> Callable[[str], TenantReaders]:
    def readers(tenant: str) -> TenantReaders:
        has_metrics, has_archive = tenant in tenants.names(), tenant in archive.names()
        return TenantReaders(
            metrics=tenants.store(tenant) if has_metrics else NoSeries(),
            logs=archive.logs(tenant) if has_archive else NoLines(),
            spans=archive.spans(tenant) if has_archive else NoSpans(),
        )

    return readers
