"""A hub that really listens: `hub_url` and `api_key` are all that a client needs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import uvloop

from harch.api.app import create_app
from harch.base.http.server import serve_api
from harch.hub.views import Role
from unit.api.fake_hub import KEYS, FakeHub

START_TIMEOUT_S = 10


class RunningHub:
    """The API on a free port, in a thread with its own event loop."""

    def __init__(self) -> None:
        self.port = 0
        self.hub = FakeHub()
        self._listening = threading.Event()
        self._loop = uvloop.new_event_loop()
        self._serving: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="hub")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._thread.start()
        assert self._listening.wait(START_TIMEOUT_S), "the hub does not listen"

    def stop(self) -> None:
        if self._serving is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._serving.cancel)
        self._thread.join(START_TIMEOUT_S)
        assert not self._thread.is_alive(), "the hub does not stop"

    def call(self, function, *arguments: object) -> None:
        """Runs a function of the fake where it lives: in the hub's own loop."""
        done = threading.Event()

        def run() -> None:
            function(*arguments)
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(START_TIMEOUT_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        def listening(port: int) -> None:
            self.port = port
            self._listening.set()

        self._serving = asyncio.create_task(serve_api(create_app(self.hub), "127.0.0.1", 0, listening=listening))
        await asyncio.wait({self._serving})


@pytest.fixture
def running_hub() -> Iterator[RunningHub]:
    running = RunningHub()
    running.start()
    yield running
    running.stop()


@pytest.fixture
def hub_url(running_hub: RunningHub) -> str:
    return running_hub.url


@pytest.fixture
def api_key() -> str:
    return KEYS[Role.USER]
