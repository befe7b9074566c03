"""Three hubs in two countries, each with its SENTINEL as a process, and a tap on every byte between them.

The hubs run in the test's process, so that what passes their links can be read before it is encrypted and after it is
decrypted; their links are TLS over real sockets, their APIs are served, and each SENTINEL is a child process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cramjam
import httpx
import pytest

from harch.api.app import create_app
from harch.api.sentinel_process import OWN_SETTINGS, SENTINEL_KEY, SentinelChild
from harch.base.clock import SystemClock
from harch.base.config import Home
from harch.base.http.server import serve_api
from harch.federation.identity.authority import make_federation
from harch.federation.identity.folder import identity_folder
from harch.federation.identity.hub_identity import HubIdentity
from harch.federation.links.tls_connection import Connection
from harch.fleet.file import parse_fleet
from harch.fleet.model import Fleet
from harch.hub.audit.table import AuditQuery
from harch.hub.keys import ensure_key_file
from harch.hub.sentinel_access import SentinelClient
from harch.hub.service import build_hub
from harch.hub.views import Role
from harch.sentinel.node.sender import Frame
from harch.sentinel.node.sensors import SensorReading, series
from harch.sovereignty.audit.chain import AuditEntry
from harch.testing.ports import free_ports
from harch.testing.samples import TINY_FLEET_TOML

CLOCK = SystemClock()
PATIENCE_S = 240.0  # the first start on a machine compiles kernels
STEP_S = 15
THIRD = """
[[hubs]]
name = "Tangier"
country = "MA"
grid_zone = "MA"
latitude = 35.7595
longitude = -5.8340
pue = 1.2

[[hubs.cooling_zones]]
name = "hall-1"
heat_kw_max = 30

[[hubs.racks]]
row = "A"
cooling_zone = "hall-1"
power_kw_max = 24
nodes = [{ kind = "a100-4" }]

[[links]]
between = ["Dakhla", "Tangier"]
rtt_ms = 18
bandwidth_gbps = 200
countries_crossed = ["MA"]
"""


def three_hubs() -> Fleet:
    hubs, links = TINY_FLEET_TOML.split("[[links]]")
    third, link = THIRD.split("[[links]]")
    return parse_fleet(f"{hubs}{third}[[links]]{links}[[links]]{link}", "three.toml")


class Tap:
    """Every byte that links carry, by the hub that it is for."""

    def __init__(self) -> None:
        self.to: dict[str, bytearray] = defaultdict(bytearray)

    @contextlib.contextmanager
    def on_links(self) -> Iterator[None]:
        plain = Connection.write
        tap = self

        def write(connection: Connection, frames: bytes) -> None:
            certificate = connection.certificate
            tap.to[certificate.name.hub_id if certificate is not None else ""] += frames
            plain(connection, frames)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Connection, "write", write)
            yield


class WatchedHub:
    """One hub, its API and its SENTINEL. `settings` is its `sentinel.toml`."""

    def __init__(self, fleet: Fleet, home: Home, number: int, ports: tuple[int, int], settings: str = "") -> None:
        self.hub = fleet.hubs[number]
        self.state_dir = home.hub(self.hub.id)
        api, telemetry = ports
        self._api, self._telemetry = api, telemetry
        self.url, self.sentinel_url = f"http://127.0.0.1:{api}", f"http://127.0.0.1:{telemetry}"
        self.service = build_hub(
            fleet=fleet,
            hub=self.hub,
            state_dir=self.state_dir,
            clock=CLOCK,
            version="test",
            url=self.url,
            peer_urls={other.id: f"http://{other.id}" for other in fleet.hubs if other is not self.hub},
            on_broken=lambda error: None,
            identity=HubIdentity(identity_folder(home, self.hub.id)),
            sentinel=SentinelClient(self.sentinel_url, self.state_dir / SENTINEL_KEY),
        )
        if settings:
            (self.state_dir / OWN_SETTINGS).write_text(settings)
        self.admin = ensure_key_file(home.admin_key)
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped = False

    async def start(self) -> None:
        credentials = self.service.credentials
        await credentials.adopt_key(self.admin, name="admin", tenant="default", role=Role.ADMIN)
        own = ensure_key_file(self.state_dir / SENTINEL_KEY)
        await credentials.adopt_key(own, name="sentinel", tenant="default", role=Role.OPERATOR)
        child = SentinelChild(
            self.state_dir, self.hub.id, self.hub.name, self.url, ("127.0.0.1", self._telemetry), CLOCK
        )
        self._tasks = [
            asyncio.create_task(serve_api(create_app(self.service), "127.0.0.1", self._api)),
            asyncio.create_task(self.service.run()),
            asyncio.create_task(child.run()),
        ]

    async def stop(self) -> None:
        """For its peers it is gone without a word."""
        if not self._stopped:
            self._stopped = True
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.service.close()

    def sees(self, count: int) -> bool:
        return sum(1 for peer in self.service.peers() if peer.reachable) == count

    async def entries(self) -> list[AuditEntry]:
        """What the chain says about questions of others."""
        found = await self.service.audit.records(AuditQuery(kind="telemetry"))
        return [record.entry for record in found]


class FederatedWorld:
    """Dakhla and Tangier in MA, Dakar in SN."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None) -> None:
        self.tap = Tap()
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(self.tap.on_links())
        fleet, home = three_hubs(), Home(folder)
        ports = free_ports(9)
        addresses = {hub.id: ("127.0.0.1", port) for hub, port in zip(fleet.hubs, ports[:3], strict=True)}
        make_federation(home, addresses, now=CLOCK.now())
        pairs = zip(ports[3:6], ports[6:], strict=True)
        self.hubs = {
            hub.id: WatchedHub(fleet, home, number, pair, (settings or {}).get(hub.id, ""))
            for number, (hub, pair) in enumerate(zip(fleet.hubs, pairs, strict=True))
        }
        self.client = httpx.AsyncClient(timeout=60, trust_env=False)

    async def start(self) -> None:
        for hub in self.hubs.values():
            await hub.start()
        await until(lambda: all(hub.sees(3) for hub in self.hubs.values()), "links between all hubs")
        for hub in self.hubs.values():
            await self.until_ready(hub)

    async def until_ready(self, hub: WatchedHub) -> None:
        end = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if (await self.client.get(f"{hub.sentinel_url}/-/ready")).status_code == 200:
                    return
            assert time.monotonic() < end, (hub.state_dir / "sentinel" / "sentinel.err").read_text()[-2000:]
            await asyncio.sleep(0.1)

    async def stop(self) -> None:
        await self.client.aclose()
        await asyncio.gather(*(hub.stop() for hub in self.hubs.values()))
        self._stack.close()

    async def ask(self, hub: str, path: str, *, key: str = "", tenant: str = "", **params: str) -> tuple[int, Any]:
        """GET at a hub's SENTINEL."""
        headers = {"Authorization": f"Bearer {key or self.hubs[hub].admin}"}
        if tenant:
            headers["X-Scope-OrgID"] = tenant
        answer = await self.client.get(self.hubs[hub].sentinel_url + path, params=params, headers=headers)
        return answer.status_code, answer.json() if answer.content else None

    async def send(self, hub: str, path: str, body: bytes | dict[str, Any], **headers: str) -> None:
        """POST to a hub's SENTINEL; it must take it."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = {} if isinstance(body, bytes) else {"Content-Type": "application/json"}
        given = {"Authorization": f"Bearer {self.hubs[hub].admin}", **kind, **headers}
        answer = await self.client.post(self.hubs[hub].sentinel_url + path, content=content, headers=given)
        assert answer.is_success, (path, answer.status_code, answer.text)

    async def write(self, hub: str, readings: list[SensorReading], times_ms: range) -> None:
        """Samples by remote-write, at each of the times."""
        headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
        for at_ms in times_ms:
            body = bytes(cramjam.snappy.compress_raw(bytes(Frame([]).filled(readings, at_ms))))
            await self.send(hub, "/api/v1/write", body, **headers)


def planted(hub: str, name: str, values: list[float]) -> list[SensorReading]:
    """One series a value, each with a label that nobody else has."""
    return [
        SensorReading(series(name, {"hub": hub, "gpu": f"secret-gpu-{hub}-{number}"}), value)
        for number, value in enumerate(values)
    ]


async def until(condition: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"waited in vain: {what}"
        await asyncio.sleep(0.02)
