"""How does alerting run? The desk, its disk and its couriers in one event loop.

Every change is on disk before it is answered or acted on. A notification is in doubt on disk while it is on its way: a
crash repeats it, which is better than to lose it.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Sequence

import msgspec

from harch.base.clock import Clock, sleep_unless
from harch.base.errors import HarchError
from harch.sentinel.alerts import api, api_silences
from harch.sentinel.alerts.alert import Alert
from harch.sentinel.alerts.config import AlertConfig
from harch.sentinel.alerts.delivery import Delivery
from harch.sentinel.alerts.machine import AlertMachine
from harch.sentinel.alerts.notify.delivery_queue import DeliveryQueue, Sends
from harch.sentinel.alerts.shared_state import Record, SharedState, SilenceState, encode_record
from harch.sentinel.alerts.store import ALERT, RULE, Address, AlertStore, LoadedState, Offload, Saver
from harch.sentinel.rules.alert_state import OUTAGE_MS_MAX, KeptRule
from harch.sentinel.rules.views import SelfMetric

log = logging.getLogger(__name__)

FAULT_PAUSE_S = 1.0
IDLE_S_MAX = 5.0  # so that a clock that was set is noticed
Answer = api.Answer


class AlertService:
    """`position` answers this hub's place among those that share its log; 0 if it is alone."""

    def __init__(
        self,
        config: AlertConfig,
        store: AlertStore,
        sender: Sends,
        clock: Clock,
        *,
        external_url: str = "",
        version: str = "",
        position: Callable[[], int] = lambda: 0,
        offload: Offload = asyncio.to_thread,
    ) -> None:
        self._clock, self._position, self._version = clock, position, version
        self._started_ms = self.now_ms()
        self.machine = AlertMachine(config, SharedState(), external_url=external_url)
        self.saver = Saver(store, offload=offload)
        self.delivery_queue = DeliveryQueue(sender, clock, done=self._done)
        self._wake = asyncio.Event()
        kept = store.load()
        self.kept_rules = kept.rules
        self._restore(kept)

    def _restore(self, kept: LoadedState) -> None:
        now_ms = self.now_ms()
        if kept.unreadable:
            log.warning("skipped %d unreadable rows of the alert state", kept.unreadable)
        self.machine.shared.load(kept.records, now_ms=now_ms)
        self.machine.restore(kept.alerts, now_ms=now_ms)
        old = (one for one in kept.rules if now_ms - one.evaluated_at_ms > OUTAGE_MS_MAX)
        self.saver.add({_rule_address(one): None for one in old})

    def now_ms(self) -> int:
        return round(self._clock.now().timestamp() * 1000)

    # Running

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.delivery_queue.run())
            group.create_task(self._look_again_and_again())

    async def _look_again_and_again(self) -> None:
        while True:
            try:
                await self._look()
            except HarchError as error:
                log.error("%s", error.message)
            except Exception:  # the edge: one alert that nobody thought of must not end all notifications
                log.exception("checking the alert groups failed")
                await self._clock.sleep(FAULT_PAUSE_S)
            await self._until_next()

    async def _look(self) -> None:
        """One look at all groups that are due. That something is about to be sent is on disk first, if there is one."""
        deliveries = self.machine.tick(self.now_ms(), position=self._position())
        try:
            await self._save()
        finally:
            for delivery in deliveries:
                self.delivery_queue.offer(delivery)

    async def _until_next(self) -> None:
        self._wake.clear()
        next_ms = self.machine.next_ms()
        idle_s = IDLE_S_MAX if next_ms is None else min(IDLE_S_MAX, max(0.0, (next_ms - self.now_ms()) / 1000))
        await sleep_unless(self._wake, self._clock, idle_s)

    def _done(self, delivery: Delivery, error: HarchError | None) -> None:
        if error is None:
            self.machine.delivered(delivery, now_ms=self.now_ms())
        else:
            self.machine.not_delivered(delivery)
        self._wake.set()

    async def _save(self) -> None:
        changes: dict[Address, bytes | None] = {
            address: None if record is None else encode_record(record)
            for address, record in self.machine.shared.take_unsaved().items()
        }
        for fingerprint, alert in self.machine.take_unsaved().items():
            changes[ALERT, fingerprint] = None if alert is None else msgspec.json.encode(alert)
        self.saver.add(changes)
        await self.saver.save()

    def self_metrics(self) -> list[SelfMetric]:
        """How notifications are doing, under Alertmanager's names."""
        now_ms, found = self.now_ms(), list[SelfMetric]()
        names = {
            "attempts": "alertmanager_notification_requests_total",
            "sent": "alertmanager_notifications_total",
            "failed": "alertmanager_notifications_failed_total",
            "refused": "alertmanager_notifications_refused_total",
        }
        for receiver in self.machine.receiver_keys():
            own = (("integration", receiver),)
            found += [
                SelfMetric(name, float(self.delivery_queue.counts[receiver, what]), own) for what, name in names.items()
            ]
        firing = sum(not alert.is_resolved(now_ms) for alert in self.machine.alerts.values())
        silenced = sum(one.state(now_ms) is SilenceState.ACTIVE for one in self.machine.shared.silences())
        return [
            *found,
            SelfMetric("alertmanager_alerts", float(firing), (("state", "firing"),)),
            SelfMetric("alertmanager_silences", float(silenced), (("state", "active"),)),
            SelfMetric("alertmanager_state_write_failures_total", float(self.saver.failures)),
        ]

    # What comes in

    async def put_alerts(self, alerts: Iterable[Alert]) -> None:
        """Alerts of this hub's own rules. Raises E0652; they are known and sent anyway."""
        for problem in self.machine.put(alerts, now_ms=self.now_ms()):
            log.warning("%s", problem.message)
        self._wake.set()
        await self._save()

    async def keep_rules(self, rules: Iterable[KeptRule]) -> None:
        self.saver.add({_rule_address(one): msgspec.json.encode(one) for one in rules})
        await self.saver.save()

    async def reconfigure(self, config: AlertConfig) -> None:
        self.machine.reconfigure(config, now_ms=self.now_ms())
        self._wake.set()

    # Peers

    def export_changes(self, after: int = 0) -> tuple[list[Record], int]:
        """What changed since, and the number to ask with next time."""
        return self.machine.shared.export_changes(after)

    async def merge(self, records: Iterable[Record]) -> list[Record]:
        """What peers sent; answers what was new, to be passed on. It is on disk then."""
        accepted = self.machine.shared.merge(records, now_ms=self.now_ms())
        if accepted:
            await self._save()
        return accepted

    # Alertmanager's API v2

    def get_alerts(self, query: api.AlertFilter, tenant: str | None = None) -> Answer:
        return api.answered(lambda: api.get_alerts(self.machine, query, now_ms=self.now_ms(), tenant=tenant))

    def get_alert_groups(self, query: api.AlertFilter, tenant: str | None = None) -> Answer:
        return api.answered(lambda: api.get_alert_groups(self.machine, query, now_ms=self.now_ms(), tenant=tenant))

    def get_silences(self, filters: Sequence[str] = (), tenant: str | None = None) -> Answer:
        return api.answered(
            lambda: api_silences.get_silences(self.machine, filters, now_ms=self.now_ms(), tenant=tenant)
        )

    def get_silence(self, silence_id: str, tenant: str | None = None) -> Answer:
        return api.answered(
            lambda: api_silences.get_silence(self.machine, silence_id, now_ms=self.now_ms(), tenant=tenant)
        )

    def get_receivers(self) -> Answer:
        return api.answered(lambda: api.get_receivers(self.machine))

    def get_status(self, *, name: str = "", peers: Sequence[tuple[str, str]] = ()) -> Answer:
        return api.answered(
            lambda: api.get_status(
                self.machine, started_at_ms=self._started_ms, version=self._version, name=name, peers=peers
            )
        )

    async def post_alerts(self, body: object) -> Answer:
        return await self._changed(lambda: api.post_alerts(self.machine, body, now_ms=self.now_ms()))

    async def post_silence(self, body: object, tenant: str | None = None, author: str = "") -> Answer:
        fresh = str(uuid.uuid4())  # as Alertmanager's clients expect it
        return await self._changed(
            lambda: api_silences.post_silence(
                self.machine, body, new_id=fresh, now_ms=self.now_ms(), tenant=tenant, author=author
            )
        )

    async def delete_silence(self, silence_id: str, tenant: str | None = None) -> Answer:
        return await self._changed(
            lambda: api_silences.delete_silence(self.machine, silence_id, now_ms=self.now_ms(), tenant=tenant)
        )

    async def post_ack(self, fingerprint: str, body: object, tenant: str | None = None, author: str = "") -> Answer:
        return await self._changed(
            lambda: api.post_ack(self.machine, fingerprint, body, now_ms=self.now_ms(), tenant=tenant, author=author)
        )

    async def _changed(self, handle: Callable[[], object]) -> Answer:
        """Answers only when the change is on disk; a disk that refuses makes the answer a refusal."""
        answer = api.answered(handle)
        self._wake.set()
        try:
            await self._save()
        except HarchError as error:
            return api.refusal(error)
        return answer


def _rule_address(rule: KeptRule) -> Address:
    return RULE, f"{rule.group}|{rule.rule}"
