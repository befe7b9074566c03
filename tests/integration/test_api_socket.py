"""What only a real socket shows: huge bodies, agents' connections, taken ports, an orderly stop."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import time

import httpx
import pytest
import websockets

from harch.api.app import create_app
from harch.base.errors import HarchError
from harch.base.http.server import bind, serve_api
from harch.hub.views import Role
from integration.conftest import RunningHub
from unit.api.fake_hub import KEYS, FakeHub

HUGE = 100 * 1000 * 1000


@pytest.mark.parametrize("path", ["/v1/workloads", "/v1/workloads/plan"])
def test_a_body_of_100_mb_gets_its_413_and_the_hub_lives_on(hub_url: str, api_key: str, path: str) -> None:
    headers = {"x-api-key": api_key}
    with httpx.Client(base_url=hub_url, headers=headers, timeout=30) as client:
        answer = client.post(path, content=b"x" * HUGE)
        assert (answer.status_code, answer.json()["code"]) == (413, "E0204")
        assert client.get("/v1/health").status_code == 200


def test_a_chunked_body_without_end_gets_its_413(hub_url: str, api_key: str) -> None:
    def endless():
        for _ in range(HUGE // 1_000_000):
            yield b"y" * 1_000_000

    with httpx.Client(base_url=hub_url, headers={"x-api-key": api_key}, timeout=30) as client:
        answer = client.post("/v1/workloads", content=endless())
        assert (answer.status_code, answer.json()["code"]) == (413, "E0204")


def test_a_client_that_asks_first_is_refused_before_it_sends(running_hub: RunningHub, api_key: str) -> None:
    with socket.create_connection(("127.0.0.1", running_hub.port), timeout=10) as client:
        client.sendall(
            b"POST /v1/workloads HTTP/1.1\r\nHost: hub\r\nExpect: 100-continue\r\n"
            b"X-API-Key: %b\r\nContent-Length: %d\r\n\r\n" % (api_key.encode(), HUGE)
        )
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert answer.status == 413
        assert json.loads(answer.read())["code"] == "E0204"


def test_many_requests_share_a_connection(running_hub: RunningHub, api_key: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", running_hub.port, timeout=10)
    headers = {"X-API-Key": api_key}
    local = None
    for index in range(5):
        connection.request("POST", "/v1/workloads", json.dumps({"name": f"n{index}"}), headers)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 201
        local = local or connection.sock.getsockname()
        assert connection.sock.getsockname() == local
    connection.close()


def test_a_lost_event_stream_resumes_after_the_last_event_seen(running_hub: RunningHub, api_key: str) -> None:
    for index in range(3):
        running_hub.call(running_hub.hub.emit, "k", f"s{index}")

    def ids(count: int, **headers: str) -> list[int]:
        found: list[int] = []
        with httpx.stream(
            "GET", f"{running_hub.url}/v1/events", params={"after": 0}, headers={"x-api-key": api_key, **headers}
        ) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            for line in answer.iter_lines():
                found += [int(line[4:])] if line.startswith("id: ") else []
                if len(found) == count:
                    return found
        raise AssertionError("the stream ended")

    assert ids(2) == [1, 2]
    running_hub.call(running_hub.hub.emit, "k", "s3")
    assert ids(2, **{"last-event-id": "2"}) == [3, 4]


async def test_an_agent_connects_and_exchanges_binary_frames(running_hub: RunningHub) -> None:
    headers = {"x-api-key": KEYS[Role.AGENT]}
    uri = f"ws://127.0.0.1:{running_hub.port}/v1/agents/connect"
    async with websockets.connect(uri, additional_headers=headers, max_size=None) as agent:
        large = b"z" * 2_000_000
        for frame in (b"hello", large):
            await agent.send(frame)
            assert await agent.recv() == b"echo " + frame
    assert running_hub.hub.frames == [b"hello", large]


@pytest.mark.parametrize(("key", "status"), [("", 401), ("hsk_wrong", 401), (KEYS[Role.ADMIN], 403)])
async def test_who_is_no_agent_is_refused_with_the_usual_error(running_hub: RunningHub, key: str, status: int) -> None:
    uri = f"ws://127.0.0.1:{running_hub.port}/v1/agents/connect"
    with pytest.raises(websockets.InvalidStatus) as caught:
        async with websockets.connect(uri, additional_headers={"x-api-key": key} if key else {}):
            pass
    assert caught.value.response.status_code == status
    assert json.loads(caught.value.response.body)["success"] is False


async def test_text_frames_end_an_agents_connection(running_hub: RunningHub) -> None:
    uri = f"ws://127.0.0.1:{running_hub.port}/agents/connect"
    async with websockets.connect(uri, additional_headers={"x-api-key": KEYS[Role.AGENT]}) as agent:
        await agent.send("text")
        with pytest.raises(websockets.ConnectionClosed) as caught:
            await agent.recv()
    assert caught.value.rcvd.code == 1003


async def test_a_port_in_use_is_named(running_hub: RunningHub) -> None:
    with pytest.raises(HarchError, match=str(running_hub.port)) as caught:
        await serve_api(create_app(FakeHub()), "127.0.0.1", running_hub.port)
    assert caught.value.code == "E1004"


async def test_an_address_that_is_not_ours_is_refused() -> None:
    with pytest.raises(HarchError) as caught:
        await serve_api(create_app(FakeHub()), "192.0.2.1", 0)
    assert caught.value.code == "E0201"


async def test_stopping_ends_streams_and_agents_at_once_and_frees_the_port() -> None:
    ports: list[int] = []
    listening = asyncio.Event()

    def started(port: int) -> None:
        ports.append(port)
        listening.set()

    serving = asyncio.create_task(serve_api(create_app(FakeHub()), "127.0.0.1", 0, listening=started))
    await listening.wait()
    url = f"127.0.0.1:{ports[0]}"
    async with (
        httpx.AsyncClient(headers={"x-api-key": KEYS[Role.USER]}, timeout=10) as client,
        websockets.connect(
            f"ws://{url}/v1/agents/connect", additional_headers={"x-api-key": KEYS[Role.AGENT]}
        ) as agent,
        client.stream("GET", f"http://{url}/v1/events") as events,
    ):
        lines = events.aiter_lines()
        assert await anext(lines) == ": connected"
        began_s = time.monotonic()
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        assert time.monotonic() - began_s < 2
        assert [line async for line in lines] == [""]
        with pytest.raises(websockets.ConnectionClosed):
            await agent.recv()
    bind("127.0.0.1", ports[0]).close()
