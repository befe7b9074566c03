"""Where does `harch top` get its values?

One hub answers for all, each hub and its SENTINEL for the rest; a few threads query them at once and give up at the
end.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from harch.base.errors import HarchError
from harch.cli.live_screen.snapshot import (
    AlertLine,
    EventLine,
    FederationSnapshot,
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


K = TypeVar("K")


class QueryThreads:
    """`size` threads. They are daemons: a program that ends does not wait for a hub that hangs."""

    def __init__(self, size: int) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        for number in range(size):
            threading.Thread(target=self._work, name=f"crew-{number}", daemon=True).start()

    def query(self, questions: Mapping[K, Callable[[], Any]], within_s: float) -> dict[K, Any]:
        """The answers, or the HarchError that came instead. What takes longer than all may is answered with E0802."""
        found: dict[K, Any] = {}
        done: queue.SimpleQueue[tuple[K, Any]] = queue.SimpleQueue()
        for key, question in questions.items():
            self._jobs.put(_job(key, question, done))
        until_s = time.monotonic() + within_s
        while len(found) < len(questions):
            try:
                key, answer = done.get(timeout=max(0.0, until_s - time.monotonic()))
            except queue.Empty:
                late = HarchError("E0802", f"no answer within {within_s:g} s")
                return {key: found.get(key, late) for key in questions}
            found[key] = answer
        return found

    def _work(self) -> None:
        while True:
            self._jobs.get()()


def _job(key: K, question: Callable[[], Any], done: queue.SimpleQueue[tuple[K, Any]]) -> Callable[[], None]:
    def run() -> None:
        try:
            answer = question()
        except HarchError as error:
            answer = error
        except Exception as fault:  # noqa: BLE001 - an answer that cannot be read costs its line, not the screen
            answer = HarchError("E0802", f"unreadable answer: {fault!r}")
        done.put((key, answer))

    return run


# Where do the figures of `harch top` come from? One hub tells of all; each hub and its SENTINEL of the rest.


HUBS_POLLED_MAX = 32
EVENTS_PER_HUB = 20
EVENTS_MAX = 50
TIMEOUT_S = 2.0  # of one request; none is repeated before the next look
LOOK_WITHIN_S = 4.0
CREW_SIZE = 16
LAG = "time() - max(timestamp(up))"
_REFUSALS = ("E0101", "E0102", "E0103")


class FederationPoller:
    """All hubs, looked at again and again. Without `hub` the one at HARCH_URL is asked about the others."""

    def __init__(self, hub: str | None = None) -> None:
        from harch.cli.remote import connect

        with connect(hub) as client:
            self._near = [client.settings.url]
        self._clients: dict[str, Client] = {}
        self._sentinels: dict[str, SentinelClient] = {}
        self._crew = QueryThreads(CREW_SIZE)
        self._refused: set[tuple[str, str]] = set()  # where this key is not known is not asked again

    def look(self, now: datetime) -> FederationSnapshot:
        """Raises HarchError if no hub answers at all."""
        near, hubs = self._hubs()
        reached = [hub for hub in hubs if hub.reachable and hub.endpoint][:HUBS_POLLED_MAX]
        questions: dict[tuple[str, str], Callable[[], Any]] = {
            ("", "workloads"): lambda: near.workloads.everywhere(),
            ("", "power"): lambda: near.carbon.now(),
        }
        for hub in reached:
            questions |= {key: query for key, query in self._questions(hub).items() if key not in self._refused}
        replies = self._crew.query(questions, LOOK_WITHIN_S)
        self._refused |= {key for key, one in replies.items() if isinstance(one, HarchError) and one.code in _REFUSALS}
        return _look(now, hubs, replies)

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
            self._near = list(dict.fromkeys([url, *others]))[:HUBS_POLLED_MAX]
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


def _look(now: datetime, hubs: list[Hub], replies: dict[tuple[str, str], Any]) -> FederationSnapshot:
    """Puts together what was answered; errors become entries of `missing`."""
    missing = [
        Missing(hub=hub_id, what=what, why=f"{one.code}: {one.message}")
        for (hub_id, what), one in replies.items()
        if isinstance(one, HarchError)
    ]
    work = _value_of(replies, ("", "workloads"))
    powers = {view.hub_id: view for view in _value_of(replies, ("", "power")) or ()}
    pipelines: list[PipelineLine] = []
    alerts: list[AlertLine] = []
    events: list[EventLine] = []
    for hub in hubs:
        pipelines += [pipeline_line(one) for one in _value_of(replies, (hub.id, "pipelines")) or ()]
        alerts += alert_lines(hub.id, _value_of(replies, (hub.id, "alerts")) or ())
        events += [event_line(hub.id, one) for one in _value_of(replies, (hub.id, "events")) or ()]
    if work is not None:
        missing += [Missing(hub=one.hub_id, what="workloads", why=one.why) for one in work.silent_hubs]
    return FederationSnapshot(
        at=now,
        seen_from=next((hub.id for hub in hubs if hub.own), ""),
        hubs=tuple(hub_line(hub, powers.get(hub.id), _lag_s(replies, hub.id)) for hub in hubs),
        workloads=tuple(work_line(one) for one in work.items) if work is not None else (),
        workloads_total=work.total if work is not None else 0,
        pipelines=tuple(pipelines),
        alerts=tuple(alerts),
        events=tuple(sorted(events, key=lambda one: one.at, reverse=True)[:EVENTS_MAX]),
        missing=tuple(missing),
    )


def _value_of(replies: dict[tuple[str, str], Any], key: tuple[str, str]) -> Any:
    found = replies.get(key)
    return None if isinstance(found, HarchError) else found


def _lag_s(replies: dict[tuple[str, str], Any], hub_id: str) -> float | None:
    """How old the newest scraped sample is; None if there is none, or no SENTINEL."""
    answer = _value_of(replies, (hub_id, "telemetry"))
    sample = answer.vector[0].value if answer is not None and answer.vector else None
    return max(0.0, float(sample[1])) if sample is not None else None
