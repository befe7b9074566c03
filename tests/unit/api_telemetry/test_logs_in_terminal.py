"""`harch sentinel logs`, asked over a real socket of a SENTINEL with lines in memory."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from click.testing import CliRunner, Result
from trace_routes_world import MemoryTenants

from harch.base.clock import SystemClock, epoch_ms
from harch.base.errors import HarchError
from harch.base.http.server import serve_api
from harch.cli.main import root
from harch.sdk.sentinel import SentinelClient
from harch.sentinel.http.access import TokenAuthenticator
from harch.sentinel.http.app import TelemetryApp
from harch.sentinel.http.loki.routes import Loki
from harch.sentinel.http.routing import Routes
from harch.sentinel.model.labels import labels
from harch.sentinel.model.logs import LogBatch

NOW_NS = epoch_ms(SystemClock().now()) * 10**6
HUB = labels({"job": "harchos-hub"})


@contextmanager
def served(tenants: MemoryTenants) -> Iterator[str]:
    """A SENTINEL on a port of its own, in a thread; gives its address."""
    ready, address = threading.Event(), []

    async def serve() -> None:
        clock = SystemClock()
        loki = Loki(tenants, clock)
        app = TelemetryApp(Routes(loki.routes()), TokenAuthenticator("secret"), clock, loki.sockets())

        def listening(port: int) -> None:
            address.append(f"http://127.0.0.1:{port}")
            ready.set()

        try:
            await serve_api(app, "127.0.0.1", 0, listening=listening)
        finally:
            app.close()

    loop = asyncio.new_event_loop()
    task = loop.create_task(serve())
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait({task})))
    thread.start()
    assert ready.wait(20)
    try:
        yield address[0]
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(20)
        loop.close()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    tenants = MemoryTenants()
    tenants.logs("default").append(
        [
            LogBatch(
                HUB,
                [NOW_NS - 20 * 10**9, NOW_NS - 10 * 10**9],
                ["lease renewed", "lease lost \x1b[2J"],
                [labels({"level": "info"}), labels({"level": "error", "trace_id": "t1"})],
            ),
            LogBatch(labels({"job": "other"}), [NOW_NS - 5 * 10**9], ['{"level":"warn","n":3}']),
        ]
    )
    with served(tenants) as url:
        yield url


@pytest.fixture
def harch(address: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("HARCH_SENTINEL_URL", address)
    monkeypatch.setenv("HARCH_SENTINEL_TOKEN", "secret")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    return lambda *words: CliRunner().invoke(root, ["sentinel", "logs", *words])


def test_without_a_query_harchos_own_lines_are_shown_oldest_first_and_harmless(harch: Callable[..., Result]) -> None:
    told = harch()
    assert told.exit_code == 0, told.output
    lines = told.stdout.splitlines()
    assert [line.split(maxsplit=3)[1:] for line in lines] == [
        ["INFO", "harchos-hub", "lease renewed"],
        ["ERROR", "harchos-hub", "lease lost �[2J"],
    ]


def test_labels_limit_and_json_are_as_asked_for(harch: Callable[..., Result]) -> None:
    told = harch('{job="other"} | json', "--labels", "--limit", "1")
    assert told.stdout.rstrip().endswith('{job="other" level="warn" n="3"}')
    found = json.loads(harch('{job=~".+"}', "--limit", "2", "--json").stdout)
    assert [line["line"] for line in found["lines"]] == ["lease lost \x1b[2J", '{"level":"warn","n":3}']
    assert found["lines"][0]["metadata"] == {"level": "error", "trace_id": "t1"}


def test_numbers_are_drawn_and_nothing_is_said_plainly(harch: Callable[..., Result]) -> None:
    drawn = harch('sum by (job) (count_over_time({job=~".+"}[1m]))', "--since", "2h")
    assert drawn.exit_code == 0, drawn.output
    assert "job=harchos-hub" in drawn.stdout
    assert "no lines found" in harch('{job="nobody"}').stderr


def test_a_mistake_has_its_place_and_the_exit_code_of_usage(harch: Callable[..., Result]) -> None:
    told = harch("{job=")
    assert told.exit_code == 2
    assert "error[E0685]: 1:6" in told.output
    assert harch("--hub", "x", "--url", "http://y").exit_code == 2


def test_lines_are_followed_over_a_real_socket_through_the_door() -> None:
    tenants = MemoryTenants()
    store = tenants.logs("default")
    store.append([LogBatch(HUB, [NOW_NS], ["past"])])
    with served(tenants) as url:
        with SentinelClient(url, "secret") as client:
            following = client.follow_logs('{job="harchos-hub"} != "noise"', NOW_NS - 10**9)
            assert [line.line for line in next(following).lines] == ["past"]
            store.append([LogBatch(HUB, [NOW_NS + 1, NOW_NS + 2], ["noise", "new"])])
            assert [line.line for line in next(following).lines] == ["new"]
            following.close()  # type: ignore[attr-defined]
        with SentinelClient(url, "secret") as client, pytest.raises(HarchError) as wrong:
            next(client.follow_logs("{", NOW_NS))
        with SentinelClient(url, "other") as client, pytest.raises(HarchError) as stranger:
            next(client.follow_logs('{job="x"}', NOW_NS))
    assert (wrong.value.code, stranger.value.code) == ("E0685", "E0102")
