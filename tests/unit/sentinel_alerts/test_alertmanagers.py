"""Alertmanagers that others run get every alert, in bounded batches; one that is down holds up nobody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from harch.base.clock import SystemClock
from harch.base.errors import HarchError
from harch.sentinel.alerts import alertmanagers
from harch.sentinel.alerts.alert import Alert
from harch.sentinel.alerts.alertmanagers import Alertmanagers, alertmanager_urls
from harch.sentinel.collect.scrape.config import AlertingConfig, AlertmanagerConfig, StaticConfig, parse_config
from harch.sentinel.collect.scrape.relabel import Relabel
from harch.sentinel.model.labels import labels


def urls(*addresses: str, config: AlertmanagerConfig | None = None) -> list[str]:
    return alertmanager_urls(config or AlertmanagerConfig(), [StaticConfig(addresses, {"site": "dakhla"})])


@pytest.mark.parametrize(
    ("prefix", "url"),
    [
        ("/", "http://a:9093/api/v2/alerts"),
        ("am", "http://a:9093/am/api/v2/alerts"),
        ("/am/", "http://a:9093/am/api/v2/alerts"),
    ],
)
def test_the_path_is_below_the_prefix(prefix: str, url: str) -> None:
    assert urls("a:9093", config=AlertmanagerConfig(path_prefix=prefix)) == [url]


def test_relabelling_chooses_among_alertmanagers_and_changes_their_addresses() -> None:
    rules = (
        Relabel(source_labels=("__address__",), regex="drop.*", action="drop"),
        Relabel(target_label="__scheme__", replacement="https"),
    )
    assert urls("drop:1", "keep:2", config=AlertmanagerConfig(relabel_configs=rules)) == [
        "https://keep:2/api/v2/alerts"
    ]


def test_too_many_alertmanagers_are_refused() -> None:
    with pytest.raises(HarchError, match="at most 64"):
        urls(*(f"a:{port}" for port in range(alertmanagers.ALERTMANAGERS_MAX + 1)))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("alerting: {alertmanagers: [{timeout: 0s}]}", "timeout must be above 0"),
        ("alerting: {alertmanagers: [{api_version: v1}]}", "v1"),
        ("alerting: {alert_relabel_configs: [{action: hashmod, target_label: x}]}", "modulus"),
        ("alerting: {alertmanagers: [{relabel_configs: [{regex: '('}]}]}", "alerting"),
        ("alerting: {alertmanager: []}", "alertmanager"),
    ],
)
def test_mistakes_in_alerting_are_named(text: str, problem: str) -> None:
    with pytest.raises(HarchError, match=problem) as raised:
        parse_config(text, "prometheus.yml")
    assert raised.value.code == "E0673"


def test_keys_with_nothing_behind_them_are_as_good_as_none() -> None:
    config = parse_config("alerting:\n  alertmanagers:\n  - static_configs:\n    - targets:\nrule_files:\n", "p.yml")
    assert config.rule_files == ()
    assert config.alerting.alertmanagers[0].static_configs == (StaticConfig(),)


def alert(number: int) -> Alert:
    return Alert(labels=labels({"alertname": f"a{number}"}), starts_at_ms=1, ends_at_ms=2, updated_at_ms=1)


class Receiver:
    """An Alertmanager that answers as it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, status: int = 200) -> None:
        self.bodies: list[list[dict[str, object]]] = []
        self.status = status
        self.seen = asyncio.Event()

        def answer(request: httpx.Request) -> httpx.Response:
            self.bodies.append(json.loads(request.content))
            self.seen.set()
            return httpx.Response(self.status)

        make = httpx.AsyncClient
        monkeypatch.setattr(
            alertmanagers.httpx,
            "AsyncClient",
            lambda **options: make(**{**options, "transport": httpx.MockTransport(answer)}),
        )


@asynccontextmanager
async def told_to(one: AlertmanagerConfig) -> AsyncIterator[Alertmanagers]:
    found = Alertmanagers(SystemClock())
    await found.apply([(AlertingConfig(alertmanagers=(one,)), Path())])
    while not any(figure.value for figure in found.self_metrics()):  # its addresses are known a moment later
        await asyncio.sleep(0)
    try:
        yield found
    finally:
        await found.close()


def counted(found: Alertmanagers) -> dict[str, float]:
    return {figure.name.removeprefix("prometheus_notifications_"): figure.value for figure in found.self_metrics()}


async def test_alerts_go_out_in_batches_and_what_fails_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = Receiver(monkeypatch, status=503)
    async with told_to(AlertmanagerConfig(static_configs=(StaticConfig(("a:1",)),))) as found:
        found.send([alert(number) for number in range(300)])
        while sum(map(len, receiver.bodies)) < 300:
            await asyncio.sleep(0)
        while counted(found)["errors_total"] < 300:
            await asyncio.sleep(0)
        assert [len(body) for body in receiver.bodies] == [256, 44]
        assert counted(found)["sent_total"] == 300


async def test_the_oldest_alerts_give_way_when_an_alertmanager_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alertmanagers, "QUEUE_MAX", 3)
    receiver = Receiver(monkeypatch)
    async with told_to(AlertmanagerConfig(static_configs=(StaticConfig(("a:1",)),))) as found:
        found.send([alert(number) for number in range(5)])
        await receiver.seen.wait()
        assert [one["labels"] for one in receiver.bodies[0]] == [{"alertname": f"a{number}"} for number in (2, 3, 4)]
        assert counted(found)["dropped_total"] == 2
