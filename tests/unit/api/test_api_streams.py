from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
import msgspec
import pytest

from harch.api.app import create_app
from harch.api.front import Front
from harch.base.http.limits import HttpLimits
from harch.hub.views import Role
from unit.api.conftest import Client
from unit.api.fake_hub import KEYS, OTHER_TENANT_KEY, FakeHub

QUICK = HttpLimits(event_streams_max=2, log_streams_max=2, heartbeat_s=0.05, log_poll_s=0.01, stalled_s_max=0.1)


class Watcher:
    """One open stream, read message by message; the network is not involved."""

    def __init__(self, app: Front, path: str, *, query: str = "", headers: dict[str, str] | None = None) -> None:
        self.status, self.text, self.ended = 0, b"", False
        self._changed = asyncio.Event()
        self._left = asyncio.Event()
        given = {"x-api-key": KEYS[Role.USER], **(headers or {})}
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        }
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self):
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.text += message.get("body", b"")
            self.ended = not message.get("more_body", False)
        self._changed.set()

    async def until(self, ready: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not ready():
                self._changed.clear()
                await self._changed.wait()

    async def leave(self) -> None:
        self._left.set()
        await self.task

    @property
    def ids(self) -> list[int]:
        return [int(line[4:]) for line in self.text.split(b"\n") if line.startswith(b"id: ")]


@pytest.fixture
def quick(hub: FakeHub) -> Front:
    return create_app(hub, limits=QUICK)


async def test_events_come_as_they_happen_with_bare_line_feeds(quick: Front, hub: FakeHub) -> None:
    hub.emit("workload.submitted", "wl_old")
    watcher = Watcher(quick, "/v1/events")
    await watcher.until(lambda: b"connected" in watcher.text)
    hub.emit("workload.running", "wl_1")
    await watcher.until(lambda: watcher.ids == [2])
    await watcher.leave()
    assert b"\r" not in watcher.text
    block = next(block for block in watcher.text.split(b"\n\n") if block.startswith(b"id:"))
    head, kind, data = block.split(b"\n")
    assert (head, kind) == (b"id: 2", b"event: workload.running")
    assert msgspec.json.decode(data.removeprefix(b"data: "))["subject"] == "wl_1"


@pytest.mark.parametrize(
    ("query", "headers", "ids"),
    [
        ("after=0", {}, [1, 2, 3]),
        ("after=2", {}, [3]),
        ("", {"last-event-id": "1"}, [2, 3]),
        ("after=0", {"last-event-id": "2"}, [3]),
        ("after=0&kind=b", {}, [2]),
        ("after=0&subject=s3", {}, [3]),
    ],
)
async def test_a_stream_resumes_where_the_client_left(
    quick: Front, hub: FakeHub, query: str, headers: dict[str, str], ids: list[int]
) -> None:
    for index, kind in enumerate(("a", "b", "c"), start=1):
        hub.emit(kind, f"s{index}")
    watcher = Watcher(quick, "/v1/events", query=query, headers=headers)
    await watcher.until(lambda: watcher.ids == ids)
    await watcher.leave()


async def test_a_client_that_remembers_more_than_the_hub_still_gets_what_comes(quick: Front, hub: FakeHub) -> None:
    watcher = Watcher(quick, "/v1/events", query="after=99")
    await watcher.until(lambda: b"connected" in watcher.text)
    hub.emit("a", "s")
    await watcher.until(lambda: watcher.ids == [1])
    await watcher.leave()


async def test_tenants_see_their_own_events_only(quick: Front, hub: FakeHub) -> None:
    watcher = Watcher(quick, "/v1/events", headers={"x-api-key": OTHER_TENANT_KEY})
    await watcher.until(lambda: b"connected" in watcher.text)
    hub.emit("a", "mine", tenant="acme")
    hub.emit("a", "theirs", tenant="globex")
    await watcher.until(lambda: watcher.ids == [2])
    await watcher.leave()
    assert b"mine" not in watcher.text


async def test_log_followers_are_not_crowded_out_by_event_streams(hub: FakeHub, user: Client) -> None:
    app = create_app(hub, limits=HttpLimits(event_streams_max=8, log_streams_max=8, log_poll_s=0.01))
    workload = (await user.post("/workloads", json={"name": "noisy", "command": ["true"]})).json()["id"]
    hub.log, hub.log_eof = b"hello", False
    events = [Watcher(app, "/v1/events") for _ in range(20)]
    for watcher in events:
        await watcher.until(lambda watcher=watcher: watcher.status != 0)
    logs = [Watcher(app, f"/v1/workloads/{workload}/logs", query="follow=true") for _ in range(4)]
    for watcher in logs:
        await watcher.until(lambda watcher=watcher: watcher.text == b"hello")
    statuses = [watcher.status for watcher in events]
    assert statuses.count(200) == 6  # the last quarter is for others
    assert statuses.count(429) == 14
    other = Watcher(app, "/v1/events", headers={"x-api-key": OTHER_TENANT_KEY})
    await other.until(lambda: b"connected" in other.text)
    assert quick_json(next(watcher for watcher in events if watcher.status == 429))["code"] == "E0403"
    for watcher in (*logs, other, *(one for one in events if one.status == 200)):
        await watcher.leave()
    assert app.streams.active == 0


def quick_json(watcher: Watcher) -> dict[str, object]:
    return msgspec.json.decode(watcher.text)


async def test_a_refused_stream_is_told_when_to_come_back(hub: FakeHub) -> None:
    app = create_app(hub, limits=HttpLimits(event_streams_max=0))
    async with Client(transport=httpx.ASGITransport(app), headers={"x-api-key": KEYS[Role.USER]}) as client:
        answer = await client.get("http://hub/v1/events")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


async def test_a_quiet_stream_has_a_heartbeat(quick: Front) -> None:
    watcher = Watcher(quick, "/v1/events")
    await watcher.until(lambda: watcher.text.count(b": heartbeat\n\n") >= 2)
    await watcher.leave()


async def test_streams_are_limited_and_their_slots_come_back(quick: Front, hub: FakeHub) -> None:
    first, second = Watcher(quick, "/v1/events"), Watcher(quick, "/v1/events")
    await first.until(lambda: bool(first.text))
    await second.until(lambda: bool(second.text))
    third = Watcher(quick, "/v1/events")
    await third.until(lambda: third.ended)
    assert (third.status, b"E0405" in third.text) == (503, True)
    await first.leave()
    fourth = Watcher(quick, "/v1/events")
    await fourth.until(lambda: b"connected" in fourth.text)
    await second.leave()
    await fourth.leave()
    assert quick.streams.active == 0


async def test_a_stopping_server_ends_its_streams(quick: Front, hub: FakeHub) -> None:
    watcher = Watcher(quick, "/v1/events")
    await watcher.until(lambda: bool(watcher.text))
    quick.streams.close()
    await watcher.until(lambda: watcher.ended)
    await watcher.task


async def test_a_reader_that_takes_nothing_is_dropped(quick: Front, hub: FakeHub) -> None:
    headers = [(b"x-api-key", KEYS[Role.USER].encode())]
    scope = {"type": "http", "method": "GET", "path": "/v1/events", "query_string": b"", "headers": headers}

    async def receive():
        return await asyncio.Event().wait()

    async def send(message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async with asyncio.timeout(5):
        await quick(scope, receive, send)
    assert quick.streams.active == 0


async def test_events_as_json_are_pages(user: Client, hub: FakeHub) -> None:
    for index in range(5):
        hub.emit("k", f"s{index}")
    json = {"accept": "application/json"}
    newest = (await user.get("/events", headers=json, params={"limit": 2})).json()
    assert [event["seq"] for event in newest["items"]] == [4, 5]
    page = (await user.get("/events", headers=json, params={"after": 0, "limit": 3})).json()
    assert ([event["seq"] for event in page["items"]], page["next_after"], page["last_seq"]) == ([1, 2, 3], 3, 5)
    rest = (await user.get("/events", headers=json, params={"after": 3})).json()
    assert ([event["seq"] for event in rest["items"]], rest["next_after"]) == ([4, 5], 5)
    assert (await user.get("/events", params={"after": -1})).status_code == 400
    assert (await user.get("/events", headers={"last-event-id": "x"})).status_code == 400


async def test_a_followed_log_goes_on_until_the_task_has_ended(quick: Front, user: Client, hub: FakeHub) -> None:
    await user.post("/workloads", json={"name": "talk"})
    hub.log, hub.log_eof = b"one\n", False
    watcher = Watcher(quick, "/v1/workloads/talk/logs", query="follow=true")
    await watcher.until(lambda: watcher.text == b"one\n")
    hub.log += b"two\n"
    await watcher.until(lambda: watcher.text == b"one\ntwo\n")
    hub.log_eof = True
    await watcher.until(lambda: watcher.ended)
    await watcher.task


async def test_a_log_that_the_hub_stops_to_follow_does_not_look_complete(
    quick: Front, user: Client, hub: FakeHub
) -> None:
    await user.post("/workloads", json={"name": "talk"})
    hub.log, hub.log_eof = b"one\n", False
    watcher = Watcher(quick, "/v1/workloads/talk/logs", query="follow=true")
    await watcher.until(lambda: watcher.text == b"one\n")
    quick.streams.close()
    await watcher.task
    assert not watcher.ended
