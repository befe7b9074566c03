"""What does the page around an alert say? The alert, its rule and silences, and what the stores know of its time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.sentinel.alert_context.gather import ContextSources, gathered
from harch.sentinel.alert_context.queries import (
    AFTER_MS,
    BEFORE_MS,
    SIDE_MS_MAX,
    AlertWindow,
    identity_of,
    shared_labels,
    window_of,
)
from harch.sentinel.alerts import api
from harch.sentinel.alerts.alert import Alert
from harch.sentinel.alerts.api_silences import is_visible, silence_view
from harch.sentinel.alerts.machine import AlertMachine
from harch.sentinel.http.messages import HttpReply, TelemetryRequest, success
from harch.sentinel.http.routing import HttpRoute, WorkClass
from harch.sentinel.http.tenants import LogTenants, SpanTenants, Tenants
from harch.sentinel.model.durations import parse_duration_ms
from harch.sentinel.promql.evaluate.engine import QueryEngine
from harch.sentinel.rules.definitions import Rule, RuleGroup
from harch.sentinel.rules.group_state import GroupState
from harch.sentinel.rules.views import rfc3339

PATH = "/harchos/api/v1/alerts/{fingerprint}/around"
PAGES_AT_ONCE = 1  # one page asks a dozen questions
PAGES_WAITING_MAX = 8
RELATED_MAX = 20

Json = dict[str, object]
Groups = Callable[[], Sequence[tuple[RuleGroup, GroupState]]]


@dataclass(frozen=True, slots=True)
class Stores:
    """What a page is gathered from; without logs or spans it lacks them."""

    series: Tenants
    logs: LogTenants | None
    spans: SpanTenants | None


class AlertPage:
    """One page after the other, in a thread of their own: neither rules nor queries wait for it."""

    def __init__(
        self, machine: AlertMachine, groups: Groups, engine: QueryEngine, stores: Stores, clock: Clock
    ) -> None:
        self._machine, self._groups, self._engine, self._stores, self._clock = machine, groups, engine, stores, clock
        self._threads = ThreadPoolExecutor(PAGES_AT_ONCE, "sentinel-page")
        self._waiting = 0
        self._is_closing = False

    def routes(self) -> list[HttpRoute]:
        return [HttpRoute(("GET",), PATH, self.around, WorkClass.LOOP)]

    def close(self) -> None:
        self._is_closing = True
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _elapsed_s(self) -> float:
        """No time is left for a page that nobody will get."""
        return math.inf if self._is_closing else self._clock.monotonic_s()

    async def around(self, request: TelemetryRequest, names: Mapping[str, str]) -> HttpReply:
        """What is gathered is the telemetry of the caller's tenant. Rules are shown to operators alone; others see
        their own alerts, without the expression and its curves."""
        now_ms = request.now_ms
        tenant = None if request.caller.is_operator else request.caller.tenant
        alert, view = api.get_alert(self._machine, names["fingerprint"], now_ms=now_ms, tenant=tenant)
        group, rule = self._rule_of(alert)
        window = window_of(
            alert,
            for_ms=rule.for_ms if rule else 0,
            now_ms=now_ms,
            before_ms=_side_ms(request, "before", BEFORE_MS),
            after_ms=_side_ms(request, "after", AFTER_MS),
        )
        silenced_by = self._machine.shared.silenced_by(dict(alert.labels), now_ms=now_ms)
        silences = [self._machine.shared.silence(silence_id) for silence_id in silenced_by]
        body: Json = {
            "alert": view,
            "rule": _rule_view(group, rule) if group and rule and tenant is None else None,
            "window": _window_view(window),
            "silences": [
                silence_view(silence, now_ms)
                for silence in silences
                if silence is not None and is_visible(silence, tenant)
            ],
            "related": self._related(alert, window, now_ms, tenant),
        }
        more = await self._gathered(request.tenant, alert, rule.expression if rule and tenant is None else "", window)
        return success({**body, **more})

    async def _gathered(self, tenant: str, alert: Alert, expression: str, window: AlertWindow) -> Json:
        if self._waiting >= PAGES_WAITING_MAX:
            raise HarchError("E0676", "too many alert pages are pending", hint="try again", retry_after_s=5)
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            gather = partial(gathered, alert, expression, window)
            return await loop.run_in_executor(self._threads, lambda: gather(self._sources(tenant)))
        finally:
            self._waiting -= 1

    def _sources(self, tenant: str) -> ContextSources:
        stores = self._stores
        return ContextSources(
            self._engine,
            stores.series.store(tenant),
            stores.logs.logs(tenant) if stores.logs else None,
            stores.spans.spans(tenant) if stores.spans else None,
            self._elapsed_s,
        )

    def _rule_of(self, alert: Alert) -> tuple[RuleGroup | None, Rule | None]:
        """The rule whose alert it is: of those with its name, the one that has it among its own."""
        own = dict(alert.labels)
        named = [
            (group, rule, state)
            for group, states in self._groups()
            for rule, state in zip(group.rules, states.rules, strict=True)
            if rule.is_alert and rule.name == alert.name
        ]
        for group, rule, state in named:
            if any(set(labels) <= set(own.items()) for labels in state.alerts):
                return group, rule
        return (named[0][0], named[0][1]) if len(named) == 1 else (None, None)

    def _related(self, alert: Alert, window: AlertWindow, now_ms: int, tenant: str | None) -> Sequence[Json]:
        """Other alerts of the same time that name the same hub, node, workload or pipeline."""
        identity = identity_of(dict(alert.labels))
        found = []
        for other in self._machine.alerts.values():
            is_hidden = not api.is_visible(other, tenant)
            if other.fingerprint == alert.fingerprint or is_hidden or not _overlaps(other, window):
                continue
            shared = shared_labels(identity, other.labels)
            if shared is not None and shared.strong:
                found.append((other, shared.labels))
        found.sort(key=lambda pair: (abs(pair[0].starts_at_ms - alert.starts_at_ms), pair[0].fingerprint))
        return [
            {
                "fingerprint": other.fingerprint,
                "labels": dict(other.labels),
                "annotations": other.annotations,
                "startsAt": rfc3339(other.starts_at_ms),
                "state": "resolved" if other.is_resolved(now_ms) else "active",
                "shared": dict(labels),
            }
            for other, labels in found[:RELATED_MAX]
        ]


def _overlaps(alert: Alert, window: AlertWindow) -> bool:
    return alert.starts_at_ms <= window.end_ms and alert.ends_at_ms >= window.start_ms


def _side_ms(request: TelemetryRequest, name: str, default: int) -> int:
    text = request.one(name)
    return min(parse_duration_ms(text), SIDE_MS_MAX) if text else default


def _window_view(window: AlertWindow) -> Json:
    return {
        "start": rfc3339(window.start_ms),
        "began": rfc3339(window.began_ms),
        "fired": rfc3339(window.fired_ms),
        "end": rfc3339(window.end_ms),
        "stepSeconds": window.step_ms / 1000,
    }


def _rule_view(group: RuleGroup, rule: Rule) -> Json:
    return {
        "name": rule.name,
        "query": rule.expression,
        "duration": rule.for_ms / 1000,
        "labels": rule.labels,
        "annotations": rule.annotations,
        "group": group.name,
        "file": group.file,
    }
