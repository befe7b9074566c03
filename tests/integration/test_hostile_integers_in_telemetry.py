"""Does any route of SENTINEL stumble over a number? Times, steps, limits and path segments that nobody should send."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from harch.base.clock import SystemClock
from harch.sentinel.archive.folder import ArchiveFolder
from harch.sentinel.http import server
from harch.sentinel.http.access import OpenAuthenticator
from harch.sentinel.http.routing import HttpRoute, WorkClass
from harch.sentinel.http.server import Sentinel, ServeOptions
from harch.sentinel.http.settings import read_settings
from harch.sentinel.store.tenants import StoreFolder

pytestmark = pytest.mark.timeout(600)  # kernels may have to be compiled first
HOSTILE = ("99999999999999999999", "-99999999999999999999", str(2**63), "9" * 5000, "-1", "٣", "²", "1e999", "nan")
SOURCES = "".join(path.read_text("utf-8") for path in Path(server.__file__).parent.glob("*.py"))
# What the routes read as a number, a time or a duration.
NAMES = sorted(
    set(re.findall(r'(?:count|time_ms)\(\s*"(\w+)"', SOURCES))
    | set(re.findall(r'(?:time_ns|duration_of|duration_ms|parse_\w+)\(request(?:\.one\("|, ")(\w+)"', SOURCES))
    | {"step", "start", "end", "time", "limit", "timeout", "lookback_delta", "since", "interval", "delay_for"}
)
SOUND = {"query": "up", "match[]": "up", "q": "{}", "name": "x", "metric": "up", "start": "0", "end": "1", "step": "1"}


@pytest.fixture
async def sentinel(tmp_path: Path) -> AsyncIterator[Sentinel]:
    clock, settings = SystemClock(), read_settings(None)
    folder = StoreFolder(tmp_path, clock, settings.store, settings.retention)
    archive = ArchiveFolder(tmp_path, clock, settings.archive)
    made = Sentinel(folder, archive, settings, [], ServeOptions(tmp_path), OpenAuthenticator(), clock)
    yield made
    await made.close()
    archive.close()
    folder.close()


def routes(sentinel: Sentinel) -> Iterator[HttpRoute]:
    table = sentinel.app._routes
    for same_path in table._exact.values():
        yield from same_path
    for _, route in table._templates:
        yield route


async def test_no_parameter_and_no_path_makes_sentinel_stumble(sentinel: Sentinel) -> None:
    broken: list[str] = []
    tried = 0
    transport = httpx.ASGITransport(sentinel.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://sentinel", timeout=60) as client:
        for route in routes(sentinel):
            if route.path == "/-/reload" or route.work is WorkClass.WRITE:
                continue
            method = "GET" if "GET" in route.methods else route.methods[0]
            plain = re.sub(r"\{\w+\}", "x", route.path)
            tries = [(plain, {**SOUND, name: text}) for name in NAMES for text in HOSTILE]
            if plain != route.path:
                tries += [(re.sub(r"\{\w+\}", text, route.path), dict(SOUND)) for text in HOSTILE]
            for path, parameters in tries:
                tried += 1
                answer = await client.request(method, path, params=parameters)
                if answer.status_code >= 500:
                    broken.append(f"{answer.status_code} {method} {path[:80]} {parameters} {answer.text[:200]}")
    assert tried > 1000
    assert not broken, "\n".join(one[:400] for one in broken[:20])
