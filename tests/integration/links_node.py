"""A hub that has nothing but links, as a process: `links_node.py HOME HUB`. Tells every change as a line of JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import uvloop
from links_world import Note

from harch.base.clock import SystemClock
from harch.base.config import Home
from harch.federation.identity.folder import identity_folder
from harch.federation.identity.hub_identity import HubIdentity
from harch.federation.links.mesh import Mesh


def tell(*words: str) -> None:
    print(json.dumps(words), flush=True)


async def main(home: str, hub_id: str) -> None:
    identity = HubIdentity(identity_folder(Home(Path(home)), hub_id))

    def greet(peer: str) -> None:
        tell("up", peer)
        mesh.send(peer, Note(1, f"from {hub_id}"))

    mesh: Mesh[Note] = Mesh(
        identity=identity,
        listen=identity.member.address,
        peers={member.hub_id: member.address for member in identity.roster},
        encode=msgspec.msgpack.Encoder().encode,
        decode=msgspec.msgpack.Decoder(Note).decode,
        on_message=lambda peer, note: tell("received", peer, note.text),
        on_up=greet,
        on_down=lambda peer, why: tell("down", peer, why),
        clock=SystemClock(),
    )
    await mesh.run()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
