"""Several hubs with their agents, as real processes of one federation on loopback, and a peer that means no good.

The peer runs in this process. It has the identity of a hub of the federation, with its keys and its certificate, asks
what it likes, and checks nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from bytes_hub import QuietHub
from harch.base.clock import SystemClock
from harch.base.config import Home, Ports
from harch.content.frames import ChunkFrame
from harch.content.model import ChunkRef
from harch.federation.bulk.fetch import FetchSettings, fetch
from harch.federation.identity.authority import make_federation
from harch.federation.identity.folder import identity_folder
from harch.federation.identity.hub_identity import HubIdentity
from harch.fleet.file import parse_fleet
from harch.fleet.model import Fleet
from harch.hub.federation.messages import Answer, Question
from harch.hub.service import HubService, build_hub
from harch.testing.agents import SimAgent
from harch.testing.ports import free_port_base

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "integration"))

from pair_world import NearAgent

SHORT_TICKETS = Path(__file__).with_name("bytes_short_tickets.py")
GIVE_UP_S = 3.0  # a refusal is told at once
CLOCK = SystemClock()

_FLEET = """\
name = "small"

[gpu_models.h100-80gb]
memory_gb = 80
power_w = 700
nvlink_gb_per_s = 900
pcie_gb_per_s = 128

[node_kinds.h100-4]
gpu_model = "h100-80gb"
gpus = 4
nvlink_island_size = 4
pcie_switch_size = 2
numa_nodes = 2
cpus = 64
memory_gb = 512
storage_gb = 8000
host_power_w = 1200
"""
_HUB = """
[[hubs]]
name = "{name}"
country = "{country}"
grid_zone = "{country}"
latitude = 20.0
longitude = -10.0
pue = 1.2

[[hubs.cooling_zones]]
name = "hall-1"
heat_kw_max = 60

[[hubs.racks]]
row = "A"
cooling_zone = "hall-1"
power_kw_max = 24
nodes = [{{ kind = "h100-4", count = 2 }}]
"""
_LINK = """
[[links]]
between = ["{one}", "{other}"]
rtt_ms = {rtt_ms:g}
bandwidth_gbps = 100
countries_crossed = [{countries}]
"""


def fleet_toml(hubs: Mapping[str, str], *, rtt_ms: float) -> str:
    """`hubs`: countries by name. Each has eight GPUs and a link to every other one."""
    text = _FLEET + "".join(_HUB.format(name=name, country=country) for name, country in hubs.items())
    for one, other in itertools.combinations(hubs, 2):
        crossed = ", ".join(f'"{country}"' for country in dict.fromkeys((hubs[one], hubs[other])))
        text += _LINK.format(one=one, other=other, rtt_ms=rtt_ms, countries=crossed)
    return text


class LinkedHub(QuietHub):
    """A hub of a federation, with one agent. `has_short_tickets`: those for its bulk channel end within seconds."""

    def __init__(
        self, text: str, hub_id: str, folder: Path, port_base: int, *, has_short_tickets: bool = False
    ) -> None:
        super().__init__(text, hub_id, folder, agents={f"{hub_id}-agent": ()})
        self._launcher = [str(SHORT_TICKETS)] if has_short_tickets else ["-m", "harch"]
        number = [hub.id for hub in parse_fleet(text).hubs].index(hub_id)
        self.port_base, self.url = port_base, f"http://127.0.0.1:{Ports(port_base).api(number)}"

    def harch(self, *words: str, cwd: Path | None = None, within_s: float = 120) -> subprocess.CompletedProcess[str]:
        """What somebody types at this hub, whatever comes of it."""
        command = [sys.executable, "-m", "harch", *words]
        return subprocess.run(
            command,
            cwd=cwd or self.home,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=within_s,
            check=False,
        )

    def sees(self, count: int) -> bool:
        with self.client() as client:
            found = client.get("/v1/hubs").json()["items"]
        return sum(bool(hub["reachable"]) for hub in found) == count

    def _spawn(self, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, *(self._launcher if words[0] == "hub" else ["-m", "harch"]), *words]
        return subprocess.Popen(
            command, env=self.environment, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )


@contextlib.contextmanager
def linked_hubs(
    folder: Path, countries: Mapping[str, str], *, real: Sequence[str], short_tickets: str = ""
) -> Iterator[tuple[Fleet, dict[str, LinkedHub]]]:
    """`real`: ids of those that run; the others are members of the federation, too. All are in the same folder."""
    text = fleet_toml(countries, rtt_ms=10)
    fleet, base = parse_fleet(text), free_port_base()
    addresses = {hub.id: ("127.0.0.1", Ports(base).peer(number)) for number, hub in enumerate(fleet.hubs)}
    make_federation(Home(folder), addresses, now=CLOCK.now())
    with contextlib.ExitStack() as stack:
        hubs = {}
        for name in real:
            hub = LinkedHub(text, name, folder, base, has_short_tickets=name == short_tickets)
            hubs[name] = hub
            stack.enter_context(hub)
        for hub in hubs.values():
            hub._wait(lambda hub=hub: hub.sees(len(real)))  # type: ignore[misc]
        yield fleet, hubs


class HostilePeer:
    """A hub that is a member and does as it likes. `ask` and `pull` raise what the other side answers."""

    def __init__(self, fleet: Fleet, hub_id: str, folder: Path) -> None:
        (hub,) = (hub for hub in fleet.hubs if hub.id == hub_id)
        self.hub_id, self._fleet, self._hub, self._home = hub_id, fleet, hub, Home(folder)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hostile-peer", daemon=True)
        self._thread.start()
        self.identity = HubIdentity(identity_folder(self._home, hub_id))
        self._service: HubService = self._call(self._start())

    async def _start(self) -> HubService:
        others = [hub for hub in self._fleet.hubs if hub is not self._hub]
        service = build_hub(
            fleet=self._fleet,
            hub=self._hub,
            state_dir=self._home.hub(self.hub_id),
            clock=CLOCK,
            version="bench",
            url=f"http://{self.hub_id}",
            peer_urls={other.id: f"http://{other.id}" for other in others},
            on_broken=lambda error: None,
            identity=self.identity,
        )
        agent = NearAgent(SimAgent(f"{self.hub_id}-agent", self._hub.country))
        self._running = [
            asyncio.create_task(service.run()),
            asyncio.create_task(service.attach_agent(agent, key_id="key_agent")),
        ]
        return service

    def ask(self, hub_id: str, question: Question, answer: type[Answer]) -> Any:
        """Over the control link."""
        service = self._service
        return self._call(service.federation.request(hub_id, lambda number: replace(question, number=number), answer))

    def reaches(self, hub_id: str) -> bool:
        return any(peer.hub_id == hub_id and peer.reachable for peer in self._service.peers())

    def pull(
        self, hub_id: str, port: int, ticket: bytes, wanted: Sequence[ChunkRef], *, as_hub: str = ""
    ) -> list[ChunkFrame]:
        """Over the bulk channel, whatever this hub was told. `as_hub`: with the keys of another member."""
        identity = self.identity if not as_hub else HubIdentity(identity_folder(self._home, as_hub))
        got: list[ChunkFrame] = []
        host = identity.roster.get(hub_id)
        fetch(
            (host.address.host if host is not None else "127.0.0.1", port),
            identity,
            hub_id,
            ticket,
            wanted,
            store=got.extend,
            settings=FetchSettings(connections=1, give_up_s=GIVE_UP_S, silence_s_max=GIVE_UP_S),
        )
        return got

    def close(self) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _stop(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._service.close()

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)


def holds_bytes(folder: Path, mark: bytes) -> list[Path]:
    """Files below that contain it."""
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            is_file = path.is_file() and not path.is_symlink()
            if is_file and os.path.getsize(path) >= len(mark) and mark in path.read_bytes():
                found.append(path)
    return found
