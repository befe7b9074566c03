"""Do links behave the same on the event loop of the hub? It has TLS and transports of its own."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import test_links_flow
import test_links_trust
import uvloop

Story = Callable[[Path], Awaitable[None]]

STORIES: dict[str, Story] = {
    name: story
    for module in (test_links_trust, test_links_flow)
    for name, story in vars(module).items()
    if name.startswith("test_") and list(inspect.signature(story).parameters) == ["tmp_path"]
}


@pytest.mark.parametrize("name", STORIES)
def test_on_uvloop_too(name: str, tmp_path: Path) -> None:
    async def run() -> None:
        await STORIES[name](tmp_path)

    uvloop.run(run())
