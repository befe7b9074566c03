"""A whole SENTINEL beside a hub that knows one key of each role, asked through its real application."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

from harch.sentinel.archive.folder import ArchiveFolder
from harch.sentinel.http.access import HubAuthenticator
from harch.sentinel.http.server import Sentinel, ServeOptions
from harch.sentinel.http.settings import SentinelSettings
from harch.sentinel.store.tenants import StoreFolder
from harch.testing.clock import SimClock

OWN = "shared-with-the-hub"
KEYS = {
    "viewer": {"role": "viewer", "tenant": "acme", "key_id": "key_v", "name": "vera"},
    "user": {"role": "user", "tenant": "acme", "key_id": "key_u", "name": "amina"},
    "other": {"role": "user", "tenant": "other", "key_id": "key_x", "name": "omar"},
    "plain": {"role": "user", "tenant": "default", "key_id": "key_d", "name": "dalia"},
    "agent": {"role": "agent", "tenant": "default", "key_id": "key_a", "name": "agent", "agents": ["dakhla-agent"]},
    "operator": {"role": "operator", "tenant": "default", "key_id": "key_o", "name": "ops"},
    "admin": {"role": "admin", "tenant": "default", "key_id": "key_r", "name": "root"},
}


class WholeSentinel:
    """`client(key)` is an HTTP client with that key; without one for no key."""

    def __init__(self, folder: Path) -> None:
        self.clock = SimClock()
        self.keys: dict[str, dict[str, Any]] = dict(KEYS)
        self.hub_is_up = True
        settings = SentinelSettings()
        (folder / "token").write_text(OWN)
        self.options = ServeOptions(folder, token_file=folder / "token", hub_url="http://hub")
        self.folder = StoreFolder(folder, self.clock, settings.store, settings.retention)
        self.archive = ArchiveFolder(folder, self.clock, settings.archive)
        self.door = HubAuthenticator("http://hub", OWN, self.clock.monotonic_s, httpx.MockTransport(self._hub))
        self.sentinel = Sentinel(self.folder, self.archive, settings, [], self.options, self.door, self.clock)

    def client(self, key: str = "") -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        transport = httpx.ASGITransport(self.sentinel.app)
        return httpx.AsyncClient(transport=transport, base_url="http://sentinel", headers=headers)

    def _hub(self, request: httpx.Request) -> httpx.Response:
        if not self.hub_is_up:
            raise httpx.ConnectError("the hub is gone")
        assert request.headers["x-api-key"] == OWN
        known = self.keys.get(json.loads(request.content)["key"])
        return httpx.Response(404) if known is None else httpx.Response(200, json=known)

    async def close(self) -> None:
        await self.sentinel.close()
        await self.door.close()
        self.archive.close()
        self.folder.close()
