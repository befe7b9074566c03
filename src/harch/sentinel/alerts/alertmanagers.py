"""How do alerts reach an Alertmanager that others run? Each of them gets every alert, in batches, within limits.

Nothing is repeated here: rules send what fires again every minute, and what ended for a while, as Prometheus does.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import httpx
import msgspec

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.sentinel.alerts.alert import Alert
from harch.sentinel.alerts.api import format_time
from harch.sentinel.collect.scrape.client import credentials_of, trust_of
from harch.sentinel.collect.scrape.config import AlertingConfig, AlertmanagerConfig, StaticConfig
from harch.sentinel.collect.scrape.relabel import Relabel, relabelled
from harch.sentinel.collect.scrape.targets import discover, refresh_s
from harch.sentinel.model.labels import labels
from harch.sentinel.rules.views import SelfMetric

QUEUE_MAX = 10_000  # alerts for one Alertmanager; the oldest give way, since the newest say how things are
BATCH_MAX = 256
ALERTMANAGERS_MAX = 64  # of one section
_PATH = "/api/v2/alerts"
_COUNTED = ("sent", "errors", "dropped")

_log = logging.getLogger(__name__)


class Alertmanagers:
    """All Alertmanagers that the files name. `send` never waits and never fails."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sections: list[tuple[Sequence[Relabel], _Section]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.counts: Counter[tuple[str, str]] = Counter()  # by address and what: sent, errors, dropped

    def send(self, alerts: Sequence[Alert]) -> None:
        for rules, section in self._sections:
            section.offer([one for alert in alerts if (one := _relabelled(alert, rules)) is not None])

    async def apply(self, configs: Sequence[tuple[AlertingConfig, Path]]) -> None:
        """These from now on; what waited for the others is given up."""
        await self.close()
        for config, base in configs:
            for one in config.alertmanagers:
                section = _Section(one, base, self._clock, self.counts)
                self._sections.append(((*config.alert_relabel_configs, *one.alert_relabel_configs), section))
                self._tasks.append(asyncio.create_task(section.run()))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        self._tasks.clear()
        self._sections.clear()

    def self_metrics(self) -> list[SelfMetric]:
        """How they are doing, under Prometheus' names."""
        urls = sorted({url for _, section in self._sections for url in section.urls})
        found = [SelfMetric("prometheus_notifications_alertmanagers_discovered", float(len(urls)))]
        for url in urls:
            own = (("alertmanager", url),)
            found += [
                SelfMetric(f"prometheus_notifications_{what}_total", float(self.counts[url, what]), own)
                for what in _COUNTED
            ]
        return found


class _Section:
    """The Alertmanagers of one section of the file, a queue for each."""

    def __init__(self, config: AlertmanagerConfig, base: Path, clock: Clock, counts: Counter[tuple[str, str]]) -> None:
        self._config, self._base, self._clock, self._counts = config, base, clock, counts
        self._queues: dict[str, deque[Alert]] = {}
        self._senders: dict[str, asyncio.Task[None]] = {}
        self._news: dict[str, asyncio.Event] = {}

    @property
    def urls(self) -> Iterable[str]:
        return self._queues.keys()

    def offer(self, alerts: Sequence[Alert]) -> None:
        for url, queue in self._queues.items():
            excess = max(0, len(queue) + len(alerts) - QUEUE_MAX)
            self._counts[url, "dropped"] += excess
            queue.extend(alerts)
            for _ in range(excess):
                queue.popleft()
            self._news[url].set()

    async def run(self) -> None:
        """Until cancelled: looks for its Alertmanagers again and again, and sends to each."""
        try:
            trust = await asyncio.to_thread(trust_of, self._config, self._base)
        except OSError as problem:
            _log.error("alerts are not sent: cannot read the TLS files of `alertmanagers`: %s", problem)
            return
        async with httpx.AsyncClient(verify=trust, timeout=self._config.timeout_s, trust_env=False) as client:
            try:
                while True:
                    await self._renew(client)
                    await self._clock.sleep(refresh_s(self._config))
            finally:
                for url in list(self._senders):
                    await self._stop(url)

    async def _renew(self, client: httpx.AsyncClient) -> None:
        try:
            urls = alertmanager_urls(self._config, await discover(self._config, self._base))
        except (HarchError, httpx.HTTPError, httpx.InvalidURL) as problem:
            _log.warning("keeping the previous Alertmanagers: %s", problem)
            return
        for url in [url for url in self._senders if url not in urls]:
            await self._stop(url)
        for url in urls:
            if url not in self._senders:
                self._queues[url], self._news[url] = deque(), asyncio.Event()
                self._senders[url] = asyncio.create_task(self._send_to(url, client))

    async def _stop(self, url: str) -> None:
        task = self._senders.pop(url)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        del self._queues[url], self._news[url]
        for what in _COUNTED:
            self._counts.pop((url, what), None)

    async def _send_to(self, url: str, client: httpx.AsyncClient) -> None:
        queue, news = self._queues[url], self._news[url]
        while True:
            await news.wait()
            news.clear()
            while queue:
                batch = list(islice(queue, BATCH_MAX))
                for _ in batch:
                    queue.popleft()
                self._counts[url, "sent"] += len(batch)
                if reason := await self._post(url, client, batch):
                    self._counts[url, "errors"] += len(batch)
                    _log.warning("could not send %d alerts to %s: %s", len(batch), url, reason)

    async def _post(self, url: str, client: httpx.AsyncClient, batch: Sequence[Alert]) -> str:
        """Why it failed; empty if it did not."""
        try:
            headers = {"Content-Type": "application/json", **credentials_of(self._config, self._base)}
            answer = await client.post(url, content=alerts_body(batch), headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeDecodeError) as problem:
            return f"{type(problem).__name__}: {problem}"[:200]
        return "" if answer.is_success else f"it returned {answer.status_code}"


def alertmanager_urls(config: AlertmanagerConfig, groups: Iterable[StaticConfig]) -> list[str]:
    """Where alerts are posted to. Raises E0674 if there are too many."""
    found: dict[str, None] = {}
    for group in groups:
        for address in group.targets:
            final = relabelled(
                {
                    **group.labels,
                    "__address__": address,
                    "__scheme__": config.scheme,
                    "__alerts_path__": f"/{config.path_prefix.strip('/')}{_PATH}".replace("//", "/"),
                },
                config.relabel_configs,
            )
            if final is not None and final.get("__address__"):
                scheme, path = final.get("__scheme__", config.scheme), final.get("__alerts_path__", _PATH)
                found[f"{scheme}://{final['__address__']}{path}"] = None
    if len(found) > ALERTMANAGERS_MAX:
        raise HarchError("E0674", f"{len(found)} Alertmanagers; at most {ALERTMANAGERS_MAX} are allowed")
    return list(found)


def alerts_body(alerts: Sequence[Alert]) -> bytes:
    """As Alertmanager's API v2 takes them."""
    return msgspec.json.encode(
        [
            {
                "labels": dict(alert.labels),
                "annotations": alert.annotations,
                "startsAt": format_time(alert.starts_at_ms),
                "endsAt": format_time(alert.ends_at_ms),
                "generatorURL": alert.generator_url,
            }
            for alert in alerts
        ]
    )


def _relabelled(alert: Alert, rules: Sequence[Relabel]) -> Alert | None:
    """The alert under the labels that the rules leave; None if they drop it."""
    if not rules:
        return alert
    kept = relabelled(dict(alert.labels), rules)
    return msgspec.structs.replace(alert, labels=labels(kept)) if kept else None
