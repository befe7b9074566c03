"""One hub's gossip over its real links, and nothing else: what `bench/federation_gossip.py` runs in each namespace.

A line on stdin is a new value to publish. What happens goes to stdout as JSON lines with the moment of CLOCK_MONOTONIC,
which all processes of one machine share.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from pathlib import Path

import uvloop

from harch.base.clock import SystemClock
from harch.base.config import Home
from harch.federation.gossip.machine import Gossip
from harch.federation.gossip.membership import Recovered, StateChanged, Suspected
from harch.federation.gossip.messages import Ed25519Signer, Message, Outgoing
from harch.federation.identity.folder import identity_folder
from harch.federation.identity.hub_identity import HubIdentity
from harch.federation.links.mesh import Mesh
from harch.hub.federation.membership import MemberKeys
from harch.hub.federation.messages import Encoder, PeerMessage, decode


class Node:
    def __init__(self, home: Path, hub_id: str, generation: int) -> None:
        self.identity = HubIdentity(identity_folder(Home(home), hub_id))
        self.clock = SystemClock()
        peers = {m.hub_id: (m.address.host, m.address.port) for m in self.identity.roster if m.hub_id != hub_id}
        address = self.identity.member.address
        self.mesh: Mesh[PeerMessage] = Mesh(
            identity=self.identity,
            listen=(address.host, address.port),
            peers=peers,
            encode=Encoder().encode,
            decode=decode,
            on_message=self.said,
            on_up=lambda hub: self.tell("up", hub),
            on_down=lambda hub, why: self.tell("down", hub),
            clock=self.clock,
        )
        self.gossip = Gossip(
            hub_id,
            generation=generation,
            members=list(peers),
            signer=Ed25519Signer(self.identity.state_key),
            verifier=MemberKeys(self.identity.roster),
            dice=random.Random(),
            now_s=self.clock.monotonic_s(),
        )

    def tell(self, what: str, hub: str, value: str = "") -> None:
        sys.stdout.write(json.dumps([time.monotonic(), what, hub, value]) + "\n")
        sys.stdout.flush()

    def spread(self, outgoing: list[Outgoing]) -> None:
        for one in outgoing:
            self.mesh.send(one.to, one.message, droppable=True)

    def said(self, hub_id: str, message: PeerMessage) -> None:
        if isinstance(message, Message):
            self.spread(self.gossip.receive(hub_id, message, self.clock.monotonic_s()))
            self.news()

    def news(self) -> None:
        for one in self.gossip.take_news():
            match one:
                case StateChanged(hub, _):
                    value = self.gossip.view(hub, self.clock.monotonic_s()).values.get("update", b"")
                    self.tell("seen", hub, value.decode())
                case Suspected(hub):
                    self.tell("suspected", hub)
                case Recovered(hub):
                    self.tell("recovered", hub)
                case _:
                    pass

    def command(self, line: str) -> None:
        value = line.strip()
        self.tell("set", self.identity.hub_id, value)
        self.spread(self.gossip.set("update", value.encode()))

    async def run(self) -> None:
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.mesh.run())
            group.create_task(self.tick())
            while line := await reader.readline():
                self.command(line.decode())
            raise SystemExit

    async def tick(self) -> None:
        while True:
            await asyncio.sleep(max(0.0, self.gossip.next_tick_s - self.clock.monotonic_s()))
            self.spread(self.gossip.tick(self.clock.monotonic_s()))
            self.news()


if __name__ == "__main__":
    uvloop.run(Node(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])).run())
