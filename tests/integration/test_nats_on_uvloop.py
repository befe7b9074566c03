"""Do the client and the supervisor behave the same on the loop of hubs and workers? It has transports of its own."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import test_nats_client
import test_nats_deployment
import test_nats_engine
import uvloop
from nats_world import world

Story = Callable[[Path], Awaitable[None]]
STORIES: dict[str, Story] = {
    name: story
    for module in (test_nats_client, test_nats_deployment, test_nats_engine)
    for name, story in vars(module).items()
    if name.startswith("test_") and list(inspect.signature(story).parameters) == ["tmp_path"]
}


@pytest.mark.parametrize("name", STORIES)
def test_on_uvloop_too(name: str, tmp_path: Path) -> None:
    async def run() -> None:
        await STORIES[name](tmp_path)

    uvloop.run(run())


def test_reconnecting_on_uvloop_too(tmp_path: Path) -> None:
    async def run() -> None:
        async with world(tmp_path) as made:
            await test_nats_engine.start_morocco(made)
            await test_nats_client.test_after_kill_9_of_the_server_subscriptions_live_again(made)

    uvloop.run(run())
