"""How does HarchOS administer streams?

JetStream's own API in JSON, so that an audit sees every field that exists; and the task that audits a domain again
and again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from harch.base.clock import Clock, SystemClock
from harch.base.errors import HarchError
from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.errors import JetStreamRefused, NatsError, as_harch_error
from harch.pipelines.client.jetstream import read_answer
from harch.pipelines.client.protocol import Message
from harch.pipelines.engine.audit import UNANSWERED, DomainPolicy, audit_disk, audit_streams, may_pass, observe
from harch.pipelines.engine.streams import ExistingStreams, StreamChange, StreamPlan, StreamVerb
from harch.sovereignty.gates import GateAction, Violation

PAGES_MAX = 200
TIMEOUT_S = 10.0
FOREVER = "2999-01-01T00:00:00Z"  # a pause that only a person ends


class JetStreamAdmin:
    """The controller's hands. Give it a client with the controller's key; with any other, every call is refused."""

    def __init__(self, client: AioClient, *, timeout_s: float = TIMEOUT_S) -> None:
        self.client = client
        self._timeout_s = timeout_s

    async def call(self, what: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One request of the API. Raises `JetStreamRefused` with its code."""
        payload = msgspec.json.encode(body) if body is not None else b""
        answer = await self.client.request(f"$JS.API.{what}", payload, timeout_s=self._timeout_s)
        return read_answer(answer)

    async def streams(self) -> list[dict[str, Any]]:
        """Configuration, state and cluster of every stream of the account.

        A cluster leaves streams out of its list while they move or have no leader; those come by name only.
        """
        listed = await self._pages("STREAM.LIST", "streams")
        known = {entry["config"]["name"] for entry in listed}
        silent = [name for name in await self._pages("STREAM.NAMES", "streams") if name not in known]
        return [*listed, *({"config": {"name": name}, UNANSWERED: True} for name in silent)]

    async def consumers(self, stream: str) -> list[dict[str, Any]]:
        return await self._pages(f"CONSUMER.LIST.{stream}", "consumers")

    async def found(self) -> ExistingStreams:
        """What there is, in the form that plans are made from."""
        entries = await self.streams()
        if silent := [entry["config"]["name"] for entry in entries if UNANSWERED in entry]:
            raise NatsError(f"the stream `{silent[0]}` does not answer; cannot plan")
        streams = {entry["config"]["name"]: entry["config"] for entry in entries}
        consumers = {(name, entry["name"]): entry["config"] for name in streams for entry in await self.consumers(name)}
        return ExistingStreams(streams=streams, consumers=consumers)

    async def apply(self, plan: StreamPlan) -> None:
        """All steps in order. Raises E0706 and does nothing if the plan has a refusal; E0705 if the engine says no."""
        if plan.refusals:
            first = plan.refusals[0]
            raise HarchError("E0706", f"{first.subject}: {first.detail}", hint=first.nearest_fix)
        for change in plan.changes:
            try:
                await self._apply(change)
            except JetStreamRefused as error:
                what = f"{change.stream}/{change.consumer}" if change.consumer else change.stream
                raise HarchError(
                    "E0705", f"{change.verb} {what}: {error.description}", hint="see the limits of the engine"
                ) from error
            except NatsError as error:
                raise as_harch_error(error, f"{change.verb} {change.stream}") from error

    async def pause_consumers(self, stream: str) -> int:
        """Stops all delivery from a stream until a person resumes it; returns how many consumers were paused."""
        consumers = await self.consumers(stream)
        for entry in consumers:
            await self.call(f"CONSUMER.PAUSE.{stream}.{entry['name']}", {"pause_until": FOREVER})
        return len(consumers)

    async def resume_consumers(self, stream: str) -> int:
        consumers = await self.consumers(stream)
        for entry in consumers:
            await self.call(f"CONSUMER.PAUSE.{stream}.{entry['name']}", {})
        return len(consumers)

    async def _apply(self, change: StreamChange) -> None:
        if change.consumer:
            action = "create" if change.verb is StreamVerb.CREATE else "update"
            body = {"stream_name": change.stream, "config": change.config, "action": action}
            await self.call(f"CONSUMER.CREATE.{change.stream}.{change.consumer}", body)
        elif change.verb is StreamVerb.DELETE:
            await self.call(f"STREAM.DELETE.{change.stream}")
        else:
            await self.call(f"STREAM.{change.verb.upper()}.{change.stream}", change.config)

    async def _pages(self, what: str, field: str) -> list[Any]:
        entries: list[Any] = []
        for _ in range(PAGES_MAX):
            page = await self.call(what, {"offset": len(entries)})
            entries += page.get(field) or []
            if len(entries) >= page.get("total", 0) or not page.get(field):
                break
        return entries


# Who keeps looking? Audits a domain periodically and whenever JetStream says that a stream or consumer changed.


PERIOD_S = 30.0
AGAIN_S = 5.0  # until the second look at what may pass by itself
QUIET_S = 0.05  # several advisories of one change are one audit
ADVISORIES = ("$JS.EVENT.ADVISORY.STREAM.>", "$JS.EVENT.ADVISORY.CONSUMER.>")
_log = logging.getLogger(__name__)


class StreamAuditor:
    """Give it the controller's client. A violation is paused at once and reported once, until it is gone."""

    def __init__(
        self,
        admin: JetStreamAdmin,
        policy: DomainPolicy,
        on_violation: Callable[[Violation], None],
        *,
        stores: tuple[Path, ...] = (),
        period_s: float = PERIOD_S,
        clock: Clock | None = None,
    ) -> None:
        self.policy = policy
        self.audits = 0
        self._admin = admin
        self._on_violation = on_violation
        self._stores = stores
        self._period_s = period_s
        self._clock = clock or SystemClock()
        self._reported: frozenset[Violation] = frozenset()
        self._doubted: frozenset[Violation] = frozenset()  # reported if the next look finds them again
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled. An engine that does not answer is asked again; the last verdict stands meanwhile."""
        sids = [self._admin.client.subscribe(subject, self._advised) for subject in ADVISORIES]
        try:
            while True:
                try:
                    await self.audit()
                except NatsError as error:
                    _log.warning("audit of %s failed: %s", self.policy.domain, error)
                await self._until_due()
        finally:
            for sid in sids:
                self._admin.client.unsubscribe(sid)

    async def audit(self) -> tuple[Violation, ...]:
        """One look at everything: all violations. New ones are paused and reported; what may pass by itself is reported
        when a second look finds it again. Not while streams are being changed: half a change looks like a violation."""
        observed = []
        for info in await self._admin.streams():
            name = info["config"]["name"]
            observed.append(observe(info, () if UNANSWERED in info else await self._admin.consumers(name)))
        violations = audit_streams(self.policy, observed)
        for store in self._stores:
            violations += audit_disk(self.policy, kept_streams(store))
        self.audits += 1
        there = {stream.name for stream in observed}
        self._doubted, doubted = frozenset(one for one in violations if may_pass(one)), self._doubted
        certain = tuple(one for one in violations if one not in self._doubted or one in doubted)
        for violation in certain:
            if violation not in self._reported:
                if GateAction.PAUSE in violation.actions and violation.subject in there:
                    await self._admin.pause_consumers(violation.subject)
                self._on_violation(violation)
        self._reported = frozenset(certain)
        return violations

    async def _until_due(self) -> None:
        try:
            async with asyncio.timeout(
                min(AGAIN_S, self._period_s) if self._doubted - self._reported else self._period_s
            ):
                await self._changed.wait()
                await self._clock.sleep(QUIET_S)
        except TimeoutError:
            pass
        self._changed.clear()

    def _advised(self, message: Message) -> None:
        self._changed.set()


def kept_streams(store: Path) -> list[tuple[str, str]]:
    """The streams on a server's disk, as (account, stream)."""
    return sorted(
        (folder.parent.parent.name, folder.name)
        for folder in (store / "jetstream").glob("*/streams/*")
        if folder.is_dir()
    )
