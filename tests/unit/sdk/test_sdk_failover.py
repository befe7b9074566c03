"""Is another hub of the context asked where one is silent, and is nothing that changes something done twice?"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from harch.base.errors import HarchError
from harch.sdk import failover
from harch.sdk.aio import AsyncClient
from harch.sdk.client import Client
from harch.sdk.contexts import HubContext, changing_contexts, contexts_file
from harch.sdk.exchange import ApiRequest, RetryPolicy, SendFailure
from harch.sdk.failover import may_go_elsewhere, request_timeout
from harch.sdk.streams import GONE_FAILURES

QUICK = RetryPolicy(retries_max=2, delay_s_first=0.001, delay_s_max=0.002)
WORKLOAD = {
    "id": "wl_1",
    "name": "train",
    "type": "batch",
    "status": "running",
    "metadata": {"id": "wl_1", "name": "train", "created_at": "2026-01-02T03:04:05Z", "labels": {}},
    "spec": {"name": "train", "command": ["true"]},
}


class RealHub:
    """Answers over a socket as it is told; `asked` is what it heard."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[tuple[str, str]] = []
        self.answer: Callable[[str, str], tuple[int, Any]] = lambda method, path: (200, {"status": "healthy"})


@contextmanager
def real_hub() -> Iterator[RealHub]:
    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            hub.asked.append((self.command, self.path))
            status, value = hub.answer(self.command, self.path)
            if status == 0:  # heard, and then gone
                self.close_connection = True
                return
            body = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PATCH = handle_any

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub = RealHub(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def silent() -> Iterator[str]:
    """Accepts every connection and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def deaf() -> Iterator[str]:
    """Drops packets: its queue is full, so no connection to it is ever made."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address, held = listener.getsockname(), []
        for _ in range(3):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(address)
            held.append(one)
        yield f"http://127.0.0.1:{address[1]}"
        for one in held:
            one.close()


@pytest.fixture
def hub() -> Iterator[RealHub]:
    with real_hub() as found:
        yield found


@pytest.fixture
def unused() -> str:
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(autouse=True)
def _context(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HARCH_URL", "HARCH_API_KEY", "HARCH_PORT_BASE", "HARCH_HOME", "HARCH_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(failover, "READ_S_MAX", 0.2)
    monkeypatch.setattr(failover, "CONNECT_S_MAX", 0.2)


def context(tmp_path: Path, *hubs: str) -> None:
    key = tmp_path / "the.key"
    key.write_text("hsk_key")
    with changing_contexts(contexts_file()) as found:
        found[0] = found[0].with_context(HubContext("one", hubs, str(key)))


def test_a_question_goes_on_to_another_hub_where_one_accepts_and_never_answers(
    tmp_path: Path, silent: str, hub: RealHub
) -> None:
    context(tmp_path, silent, hub.url)
    moves: list[tuple[str, str]] = []
    with Client(retry=QUICK, on_failover=lambda *move: moves.append(move)) as client:
        assert client.health().status == "healthy"
        client.health()
    assert moves == [(silent, hub.url)]
    assert len(hub.asked) == 2, "it stays where it was answered"


async def test_so_does_the_asynchronous_client(tmp_path: Path, silent: str, hub: RealHub) -> None:
    context(tmp_path, silent, hub.url)
    async with AsyncClient(retry=QUICK) as client:
        assert (await client.health()).status == "healthy"
        assert client.settings.url == hub.url


def test_a_change_goes_on_too_where_packets_are_dropped_as_nobody_has_heard_it(
    tmp_path: Path, deaf: str, hub: RealHub
) -> None:
    context(tmp_path, deaf, hub.url)
    hub.answer = lambda method, path: (202, WORKLOAD)
    with Client(retry=QUICK) as client:
        assert client.workloads.submit({"name": "train", "command": ["true"]}).id == "wl_1"
    assert [method for method, _ in hub.asked] == ["GET", "POST"]


def test_a_change_is_sent_to_a_hub_that_is_known_to_answer(tmp_path: Path, silent: str, hub: RealHub) -> None:
    context(tmp_path, silent, hub.url)
    hub.answer = lambda method, path: (202, WORKLOAD) if method == "POST" else (200, {"status": "healthy"})
    with Client(retry=QUICK) as client:
        client.workloads.submit({"name": "train", "command": ["true"]})
        client.workloads.submit({"name": "train", "command": ["true"]})
    assert [method for method, _ in hub.asked] == ["GET", "POST", "POST"], "asked once before the first change"


def test_a_change_that_a_hub_may_have_heard_is_made_nowhere_else(tmp_path: Path, hub: RealHub) -> None:
    with real_hub() as falls_silent:
        context(tmp_path, falls_silent.url, hub.url)
        over = threading.Event()

        def answer(method: str, path: str) -> tuple[int, Any]:
            if method == "POST":
                over.wait(10)
            return 200, {"status": "healthy"}

        falls_silent.answer = answer
        with Client(retry=QUICK, timeout_s=0.2) as client, pytest.raises(HarchError, match="took too long"):
            client.workloads.submit({"name": "train", "command": ["true"]})
        over.set()
    assert hub.asked == []


def test_a_change_whose_hub_was_gone_after_it_was_heard_is_made_nowhere_else(tmp_path: Path, hub: RealHub) -> None:
    """As if it had been killed: it hears the change, and then nothing listens there any more."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        context(tmp_path, f"http://127.0.0.1:{listener.getsockname()[1]}", hub.url)

        def hear_and_go() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)  # whether it is there
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
                listener.close()
                connection.recv(65536)  # the change

        thread = threading.Thread(target=hear_and_go)
        thread.start()
        with Client(retry=QUICK) as client, pytest.raises(HarchError, match="nothing listens"):
            client.workloads.submit({"name": "train", "command": ["true"]})
        thread.join()
    assert hub.asked == []


def test_whoever_waits_for_a_workload_is_not_sent_to_a_hub_that_does_not_know_it(tmp_path: Path, hub: RealHub) -> None:
    with real_hub() as owner:
        context(tmp_path, owner.url, hub.url)
        looks = iter(["running", "", "", "completed"])

        def restarting(method: str, path: str) -> tuple[int, Any]:
            status = next(looks)
            return (200, {**WORKLOAD, "status": status}) if status else (0, None)

        owner.answer = restarting
        with Client(retry=QUICK) as client:
            assert client.workloads.wait("wl_1").status == "completed"
    assert hub.asked == []


def test_what_another_hub_does_not_know_is_said_to_be_elsewhere(tmp_path: Path, silent: str, hub: RealHub) -> None:
    context(tmp_path, silent, hub.url)
    hub.answer = lambda method, path: (404, {"code": "E0301", "message": "no workload `train`"})
    with Client(retry=QUICK) as client, pytest.raises(HarchError, match="no workload") as raised:
        client.workloads.get("train")
    assert f"{silent} did not answer, so {hub.url} was asked" in raised.value.hint


def test_followed_events_go_on_at_another_hub_from_then_on(tmp_path: Path, hub: RealHub, unused: str) -> None:
    event = {"seq": 7, "at": "2026-01-02T03:04:05Z", "kind": "hub.appeared", "subject": "dakar", "message": ""}
    hub.answer = lambda method, path: (200, f"data: {json.dumps(event)}\n\n".encode())
    context(tmp_path, unused, hub.url)
    with Client(retry=QUICK) as client:
        assert next(iter(client.events(after=1000))).seq == 7
    assert hub.asked == [("GET", "/v1/events")], "numbers of the first hub mean nothing to the second"


def test_events_wait_for_their_hub_before_they_leave_it(tmp_path: Path, hub: RealHub) -> None:
    event = {"seq": 7, "at": "2026-01-02T03:04:05Z", "kind": "hub.appeared", "subject": "dakar", "message": ""}
    breaks = iter([True] * (GONE_FAILURES - 1))

    def answer(method: str, path: str) -> tuple[int, Any]:
        return (0, None) if next(breaks, False) else (200, f"data: {json.dumps(event)}\n\n".encode())

    with real_hub() as own:
        own.answer = answer
        context(tmp_path, own.url, hub.url)
        with Client(retry=QUICK) as client:
            assert next(iter(client.events(after=5))).seq == 7
    assert hub.asked == []


def test_output_stays_at_its_hub_and_the_error_says_so(tmp_path: Path, hub: RealHub, unused: str) -> None:
    context(tmp_path, unused, hub.url)
    with Client(retry=QUICK) as client, pytest.raises(HarchError, match="nothing listens") as raised:
        list(client.workloads.logs("wl_1", follow=True))
    assert "kept at the hub that took the workload" in raised.value.hint
    assert hub.asked == []


@pytest.mark.parametrize(
    ("method", "path", "failure", "before", "expected"),
    [
        ("GET", "/hubs", SendFailure("silent", quiet=True), False, True),
        ("GET", "/hubs", SendFailure("silent", quiet=True), True, True),
        ("GET", "/hubs", SendFailure("broke"), False, False),
        ("POST", "/workloads", SendFailure("silent", quiet=True), False, False),
        ("POST", "/workloads", SendFailure("refused", sent=False), True, True),
        ("GET", "/workloads/wl_1", SendFailure("silent", quiet=True), False, True),
        ("GET", "/workloads/wl_1", SendFailure("refused", sent=False), True, False),
        ("PATCH", "/workloads/wl_1", SendFailure("refused", sent=False), False, True),
    ],
)
def test_what_may_go_elsewhere(method: str, path: str, failure: SendFailure, before: bool, expected: bool) -> None:
    assert may_go_elsewhere(ApiRequest(method, path), failure, answered_before=before) is expected


def test_the_last_hub_has_the_whole_time() -> None:
    ask, change = ApiRequest("GET", "/hubs"), ApiRequest("POST", "/workloads")
    assert request_timeout(ask, 30.0, others=()).read == 30.0
    assert request_timeout(ask, 30.0, others=("http://x",)).read == failover.READ_S_MAX
    assert request_timeout(ask, 0.1, others=("http://x",)).read == 0.1
    assert request_timeout(change, 30.0, others=("http://x",)).read == 30.0
