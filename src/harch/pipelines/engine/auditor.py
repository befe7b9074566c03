"""Who keeps looking? Audits a domain periodically and whenever JetStream says that a stream or consumer changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from harch.base.clock import Clock, SystemClock
from harch.pipelines.client.errors import NatsError
from harch.pipelines.client.protocol import Message
from harch.pipelines.engine.audit import UNANSWERED, DomainPolicy, audit_disk, audit_streams, may_pass, observe
from harch.pipelines.engine.jetstream_api import JetStreamAdmin
from harch.sovereignty.gates import Action, Violation

PERIOD_S = 30.0
AGAIN_S = 5.0  # until the second look at what may pass by itself
QUIET_S = 0.05  # several advisories of one change are one audit
ADVISORIES = ("$JS.EVENT.ADVISORY.STREAM.>", "$JS.EVENT.ADVISORY.CONSUMER.>")
_log = logging.getLogger(__name__)


class StreamAuditor:
    """Give it the controller's client. A violation is paused at once and told once, until it is gone."""

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
        self._told: frozenset[Violation] = frozenset()
        self._doubted: frozenset[Violation] = frozenset()  # told if the next look finds them again
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
        """One look at everything: all violations. New ones are paused and told; what may pass by itself is told when a
        second look finds it again. Not while streams are being changed: half a change looks like a violation."""
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
            if violation not in self._told:
                if Action.PAUSE in violation.actions and violation.subject in there:
                    await self._admin.pause_consumers(violation.subject)
                self._on_violation(violation)
        self._told = frozenset(certain)
        return violations

    async def _until_due(self) -> None:
        try:
            async with asyncio.timeout(min(AGAIN_S, self._period_s) if self._doubted - self._told else self._period_s):
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
