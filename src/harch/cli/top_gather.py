"""Where do the figures of `harch top` come from? One hub tells of all; each hub and its SENTINEL of the rest."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from harch.base.errors import HarchError
from harch.cli.crew import Crew
from harch.cli.top_look import (
    AlertLine,
    EventLine,
    Look,
    Missing,
    PipelineLine,
    alert_lines,
    event_line,
    hub_line,
    pipeline_line,
    work_line,
)

if TYPE_CHECKING:
    from harch.sdk import Client, Hub
    from harch.sdk.sentinel import SentinelClient

HUBS_ASKED_MAX = 32
EVENTS_PER_HUB = 20
EVENTS_MAX = 50
TIMEOUT_S = 2.0  # of one request; none is repeated before the next look
LOOK_WITHIN_S = 4.0
CREW_SIZE = 16
LAG = "time() - max(timestamp(up))"
_REFUSALS = ("E0101", "E0102", "E0103")


class Federation:
    """All hubs, looked at again and again. Without `hub` the one at HARCH_URL is asked about the others."""

    def __init__(self, hub: str | None = None) -> None:
        from harch.cli.remote import connect

        with connect(hub) as client:
            self._near = [client.settings.url]
        self._clients: dict[str, Client] = {}
        self._sentinels: dict[str, SentinelClient] = {}
        self._crew = Crew(CREW_SIZE)
        self._refused: set[tuple[str, str]] = set()  # where this key is not known is not asked again

    def look(self, now: datetime) -> Look:
        """Raises HarchError if no hub answers at all."""
        near, hubs = self._hubs()
        reached = [hub for hub in hubs if hub.reachable and hub.endpoint][:HUBS_ASKED_MAX]
        asked: dict[tuple[str, str], Callable[[], Any]] = {
            ("", "workloads"): lambda: near.workloads.everywhere(),
            ("", "power"): lambda: near.carbon.now(),
        }
        for hub in reached:
            asked |= {key: ask for key, ask in self._questions(hub).items() if key not in self._refused}
        told = self._crew.ask(asked, LOOK_WITHIN_S)
        self._refused |= {key for key, one in told.items() if isinstance(one, HarchError) and one.code in _REFUSALS}
        return _look(now, hubs, told)

    def _hubs(self) -> tuple[Client, list[Hub]]:
        """The hubs, by the first address that answers: what a hub tells of others, its neighbours tell, too."""
        first: HarchError | None = None
        for url in self._near:
            try:
                client = self._client(url)
                hubs = client.hubs.list()
            except HarchError as error:
                first = first or error
                continue
            others = [hub.endpoint for hub in hubs if hub.endpoint and hub.endpoint != url]
            self._near = list(dict.fromkeys([url, *others]))[:HUBS_ASKED_MAX]
            return client, hubs
        raise first or HarchError("E0802", "no hub is known")

    def _questions(self, hub: Hub) -> dict[tuple[str, str], Callable[[], Any]]:
        client, sentinel = self._client(hub.endpoint or ""), self._sentinel(hub.endpoint or "")
        return {
            (hub.id, "pipelines"): lambda: client.pipelines.list(),
            (hub.id, "events"): lambda: client.event_page(limit=EVENTS_PER_HUB).items,
            (hub.id, "alerts"): lambda: sentinel.get("/api/v2/alerts", {"silenced": "false", "inhibited": "false"}),
            (hub.id, "telemetry"): lambda: sentinel.query(LAG),
        }

    def _client(self, url: str) -> Client:
        from harch.sdk import Client
        from harch.sdk.exchange import RetryPolicy

        if url not in self._clients:
            self._clients[url] = Client(url, timeout_s=TIMEOUT_S, retry=RetryPolicy(retries_max=0))
        return self._clients[url]

    def _sentinel(self, hub_url: str) -> SentinelClient:
        from harch.sdk.sentinel import SentinelClient, sentinel_url_beside

        if hub_url not in self._sentinels:
            self._sentinels[hub_url] = SentinelClient(sentinel_url_beside(hub_url), timeout_s=TIMEOUT_S)
        return self._sentinels[hub_url]


def _look(now: datetime, hubs: list[Hub], told: dict[tuple[str, str], Any]) -> Look:
    """Puts together what was told; errors become entries of `missing`."""
    missing = [
        Missing(hub=hub_id, what=what, why=f"{one.code}: {one.message}")
        for (hub_id, what), one in told.items()
        if isinstance(one, HarchError)
    ]
    work = _said(told, ("", "workloads"))
    powers = {view.hub_id: view for view in _said(told, ("", "power")) or ()}
    pipelines: list[PipelineLine] = []
    alerts: list[AlertLine] = []
    events: list[EventLine] = []
    for hub in hubs:
        pipelines += [pipeline_line(one) for one in _said(told, (hub.id, "pipelines")) or ()]
        alerts += alert_lines(hub.id, _said(told, (hub.id, "alerts")) or ())
        events += [event_line(hub.id, one) for one in _said(told, (hub.id, "events")) or ()]
    if work is not None:
        missing += [Missing(hub=one.hub_id, what="workloads", why=one.why) for one in work.silent_hubs]
    return Look(
        at=now,
        seen_from=next((hub.id for hub in hubs if hub.own), ""),
        hubs=tuple(hub_line(hub, powers.get(hub.id), _lag_s(told, hub.id)) for hub in hubs),
        workloads=tuple(work_line(one) for one in work.items) if work is not None else (),
        workloads_total=work.total if work is not None else 0,
        pipelines=tuple(pipelines),
        alerts=tuple(alerts),
        events=tuple(sorted(events, key=lambda one: one.at, reverse=True)[:EVENTS_MAX]),
        missing=tuple(missing),
    )


def _said(told: dict[tuple[str, str], Any], key: tuple[str, str]) -> Any:
    found = told.get(key)
    return None if isinstance(found, HarchError) else found


def _lag_s(told: dict[tuple[str, str], Any], hub_id: str) -> float | None:
    """How old the newest scraped sample is; None if there is none, or no SENTINEL."""
    answer = _said(told, (hub_id, "telemetry"))
    sample = answer.vector[0].value if answer is not None and answer.vector else None
    return max(0.0, float(sample[1])) if sample is not None else None
