"""`harch top` against hubs that answer what the test says: one look, JSON, a hub that is away, a real terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result
from hub_double import HubDouble, hub_double, hub_summary

PATIENCE_S = 30.0
HOME = "\x1b[H"  # how every drawing of the screen begins
HUBS: list[dict[str, Any]] = [
    {
        "id": "dakhla",
        "name": "Dakhla",
        "standing": "ready",
        "country": "MA",
        "own": True,
        "age_s": 0.0,
        "provenance": "modelled",
        "capacity": {"total_gpus": 640, "available_gpus": 632},
        "summary": hub_summary(workloads={"running": 1, "pending": 2}),
    },
    {"id": "dakar", "name": "Dakar", "standing": "suspected", "country": "SN", "reachable": False, "age_s": 9.0},
]
POWER = {
    "hub_id": "dakhla",
    "at": "2026-03-01T08:00:00Z",
    "load_kw": 240.0,
    "figures": [{"signal": "grid-average-lifecycle", "value": 630.0, "unit": "g/kWh", "evidence": "estimated"}],
}
WORK = {
    "id": "wl_1",
    "name": "trainer",
    "status": "running",
    "hub_id": "dakhla",
    "tenant": "acme",
    "metadata": {"id": "wl_1", "name": "trainer", "created_at": "2026-03-01T08:00:00Z"},
}
EVENT = {"seq": 1, "at": "2026-03-01T08:00:00Z", "kind": "workload.running", "subject": "wl_1", "message": "runs"}


@pytest.fixture
def federation(hub: HubDouble) -> HubDouble:
    HUBS[0]["endpoint"] = hub.url
    hub.on("GET /hubs", {"items": HUBS, "total": 2})
    work = {"spec": {"resources": {"gpus": 4}, "tasks": 2}, "runner_hub": "dakhla"}
    silent = [{"hub_id": "dakar", "why": "suspected", "age_s": 9.0, "workloads": {}}]
    hub.on("GET /workloads", {"items": [{**WORK, **work}], "total": 1, "silent_hubs": silent})
    hub.on("GET /carbon/now", {"items": [{"hub_id": "dakhla", "own": True, "power": POWER}], "total": 1})
    hub.on("GET /pipelines", {"items": [], "total": 0})
    hub.on("GET /events", {"items": [EVENT], "next_after": 1, "last_seq": 1})
    return hub


def test_one_look_shows_all_hubs_and_what_is_missing(federation: HubDouble, harch: Callable[..., Result]) -> None:
    result = harch("top", "--once")
    assert result.exit_code == 0
    assert "8 of 640" in result.output
    assert "240 kW modelled" in result.output
    assert "suspected" in result.output
    assert "trainer" in result.output
    assert "workloads of dakar missing: suspected" in result.output
    assert "q quit" not in result.output


def test_json_has_every_figure_and_the_age_of_what_is_old(federation: HubDouble, harch: Callable[..., Result]) -> None:
    look = json.loads(harch("top", "--once", "--json").output)
    dakhla, dakar = look["hubs"]
    assert (dakhla["running"], dakhla["waiting"], dakhla["power_is"]) == (1, 2, "modelled")
    assert (dakhla["g_per_kwh"], dakhla["carbon_is"], dakhla["telemetry_lag_s"]) == (630.0, "estimated", None)
    assert (dakar["state"], dakar["age_s"], dakar["power_kw"]) == ("suspected", 9.0, None)
    assert look["workloads"][0]["gpus"] == 8.0
    assert {(one["hub"], one["what"]) for one in look["missing"]} >= {("dakar", "workloads"), ("dakhla", "alerts")}


def test_a_part_that_fails_costs_its_part_only(federation: HubDouble, harch: Callable[..., Result]) -> None:
    federation.fail("GET /carbon/now", 503, "E0801", "not ready")
    federation.on("GET /events", b"no JSON")
    look = json.loads(harch("top", "--once", "--json").output)
    assert look["hubs"][0]["gpus_total"] == 640
    assert {"power", "events"} <= {one["what"] for one in look["missing"]}


def test_without_any_hub_it_ends_with_the_reason(monkeypatch: pytest.MonkeyPatch, harch: Callable[..., Result]) -> None:
    monkeypatch.setenv("HARCH_URL", "http://127.0.0.1:9")
    result = harch("top", "--once")
    assert result.exit_code == 1
    assert "E0802" in result.output


def test_requests_of_one_look_are_few(federation: HubDouble, harch: Callable[..., Result]) -> None:
    harch("top", "--once")
    assert len(federation.asked) == 5  # hubs, work, power, pipelines and events; the hub that is away is not asked


class _Terminal:
    """A pseudo-terminal with `harch top` in it."""

    def __init__(self, columns: int, rows: int) -> None:
        self.master, slave = pty.openpty()
        self.resize(columns, rows, tell=False)
        environment = {**os.environ, "TERM": "xterm-256color"}
        self.before = termios.tcgetattr(slave)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "harch", "top", "--watch", "0.5"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
        )
        self._slave = slave
        self.text = ""

    def resize(self, columns: int, rows: int, *, tell: bool = True) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if tell:
            self.process.send_signal(signal.SIGWINCH)

    def until(self, condition: Callable[[str], bool]) -> str:
        """Reads until the screen as it was drawn last satisfies the condition."""
        end = time.monotonic() + PATIENCE_S
        while not condition(self.text):
            assert time.monotonic() < end, f"not drawn: {self.text!r}"
            ready, _, _ = select.select([self.master], [], [], 0.1)
            if ready:
                self.text = (self.text + os.read(self.master, 65536).decode("utf-8", "replace")).split(HOME)[-1]
        return self.text

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def settings(self) -> list[Any]:
        return termios.tcgetattr(self._slave)


def test_a_real_terminal_is_drawn_sorted_filtered_resized_and_left_as_it_was(federation: HubDouble) -> None:
    terminal = _Terminal(160, 40)
    try:
        terminal.until(lambda text: "Dakhla" in text and "trainer" in text and "q quit" in text)
        terminal.press("s")
        terminal.until(lambda text: "sort: used" in text)
        terminal.press("/daka")
        terminal.until(lambda text: "filter: daka_" in text)
        terminal.press("\r")
        terminal.until(lambda text: "[daka]" in text and "Dakar" in text and "Dakhla" not in text)
        terminal.press("\x1b")
        terminal.until(lambda text: "Dakhla" in text and "FREE" in text)
        terminal.resize(50, 20)
        narrow = terminal.until(lambda text: "GPUS USED" in text and "FREE" not in text and "q quit" in text)
        assert "8 of 640" in narrow
        federation.fail("GET /hubs", 503, "E0801", "the hub restarts")
        terminal.until(lambda text: "no hub answers" in text and "8 of 640" in text)
        federation.on("GET /hubs", {"items": HUBS, "total": 2})
        terminal.until(lambda text: "8 of 640" in text and "q quit" in text and "no hub answers" not in text)
        terminal.press("q")
        assert terminal.process.wait(PATIENCE_S) == 0
        assert terminal.settings()[3] == terminal.before[3]  # echo and lines as before
    finally:
        if terminal.process.poll() is None:
            terminal.process.kill()
            terminal.process.wait()


def test_another_hub_is_asked_when_the_first_is_gone(federation: HubDouble) -> None:
    from harch.base.clock import SystemClock
    from harch.cli.live_screen.poller import FederationPoller

    with hub_double() as second:
        both = [HUBS[0], {**HUBS[1], "reachable": True, "endpoint": second.url}]
        federation.on("GET /hubs", {"items": both, "total": 2})
        looked = FederationPoller()
        now = SystemClock().now()
        assert looked.look(now).seen_from == "dakhla"
        federation.fail("GET /hubs", 503, "E0801", "restarts")
        second.on("GET /hubs", {"items": [{**both[1], "own": True}, {**both[0], "own": False}], "total": 2})
        assert looked.look(now).seen_from == "dakar"
