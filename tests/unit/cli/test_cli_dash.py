"""Does a dashboard say each problem once, and why a panel is empty? Is the SENTINEL of a hub found by its name?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from click.testing import Result
from hub_double import HubDouble
from rich.console import Console
from test_cli_verbs import page

from harch.base.errors import HarchError
from harch.cli.telemetry.dashboard import screen as drawn_screen
from harch.cli.telemetry.no_data import EmptyAnswers
from harch.sdk.sentinel import MatrixSeries, QueryAnswer, SentinelClient
from harch.sentinel.dashboards.definition import shipped

Harch = Callable[..., Result]


class Answering:
    """A SENTINEL that answers every question alike."""

    def __init__(self, answer: QueryAnswer | HarchError) -> None:
        self._answer = answer

    def query(self, *question: object) -> QueryAnswer:
        if isinstance(self._answer, HarchError):
            raise self._answer
        return self._answer

    query_range = query

    def get(self, path: str, params: object = None) -> Any:
        return {"data": []}


def screen(answer: QueryAnswer | HarchError, columns: int = 200) -> str:
    client = cast(SentinelClient, Answering(answer))
    console = Console(width=columns, no_color=True)
    with console.capture() as shown:
        console.print(drawn_screen(client, EmptyAnswers(client), shipped("hubs"), 3600.0, 1_790_000_000.0, columns))
    return shown.get()


def test_an_error_of_many_panels_is_said_once() -> None:
    text = screen(HarchError("E0802", "no SENTINEL answers", hint="start it"))
    assert text.count("no SENTINEL answers") == 1
    assert text.count("see (1) below") == len(shipped("hubs").panels)
    assert "(1) no SENTINEL answers; start it" in text


def test_an_empty_panel_says_why() -> None:
    known = QueryAnswer("matrix", warnings=["hub dakar does not answer"])
    text = screen(known)
    assert text.count("no data: see (1) below") == len(shipped("hubs").panels)
    assert text.count("hub dakar does not answer") == 1
    assert "no data: SENTINEL has no samples yet" in screen(QueryAnswer("matrix"))


def test_a_panel_that_lacks_hubs_says_so_and_what_hubs_say_alike_is_said_once() -> None:
    alike = ["hub dakar refused, rule `labels`: too small", "hub abidjan refused, rule `labels`: too small"]
    series = MatrixSeries({"kind": "a"}, [(1_790_000_000.0 - 60, "1"), (1_790_000_000.0, "2")])
    text = screen(QueryAnswer("matrix", matrix=[series], warnings=alike))
    assert "incomplete: see (1) below" in text
    assert "(1) hubs dakar and abidjan refused, rule `labels`: too small" in text
    assert "(2)" not in text


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_no_line_of_a_dashboard_is_wider_than_the_terminal(columns: int) -> None:
    curves = [
        MatrixSeries({"kind": f"a-rather-long-kind-of-event-{number}"}, [(1_790_000_000.0 - 60, "1")])
        for number in range(9)
    ]
    lines = screen(QueryAnswer("matrix", matrix=curves), columns).splitlines()
    assert max(len(line) for line in lines) <= columns
    assert any("2 more series not drawn" in line for line in lines)


def test_the_sentinel_of_a_hub_is_found_by_its_name(
    harch: Harch, hub: HubDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[str | None, str]] = []

    def client(url: str | None = None, *, hubs: str = "", **more: Any) -> object:
        opened.append((url, hubs))
        raise HarchError("E0802", "enough is known")

    monkeypatch.setattr("harch.sdk.sentinel.SentinelClient", client)
    far = {"id": "dakar", "name": "Dakar", "status": "ready", "endpoint": "http://127.0.0.1:7704", "capacity": {}}
    hub.on("GET /hubs", page(far))
    harch("sentinel", "query", "up", "--hub", "Dakar")
    harch("sentinel", "dash", "hubs", "--all-hubs")
    assert opened == [("http://127.0.0.1:7714", ""), (None, "all")]
    both = harch("sentinel", "alerts", "ls", "--hub", "dakar", "--url", "http://127.0.0.1:1")
    assert both.exit_code == 2
    assert "mutually exclusive" in both.stderr
