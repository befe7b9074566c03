"""One hub with its real content store behind its real API, and somebody who uploads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from harch.api.app import create_app
from harch.content.frames import ChunkFrame, decode_frames, encode_frame, pack_chunk
from harch.content.packing import PackedFolder, pack, scan
from harch.execution.protocol import (
    AgentMessage,
    FilesAnswer,
    HubMessage,
    SnapshotFiles,
    decode_hub_frame,
)
from harch.execution.protocol import (
    encode_frame as encode_messages,
)
from harch.fleet.file import shipped_fleet
from harch.hub.service import HubService, build_hub
from harch.hub.views import Role
from harch.testing.agents import SimAgent
from harch.testing.clock import SimClock

FLEET = shipped_fleet("five-hubs")
MOROCCO: dict[str, object] = {"process_in": ["MA"], "rest_in": ["MA"]}
SENEGAL: dict[str, object] = {"process_in": ["SN"], "rest_in": ["SN"]}


def open_hub(folder: Path, clock: SimClock) -> HubService:
    return build_hub(
        fleet=FLEET,
        hub=FLEET.hubs[0],
        state_dir=folder,
        clock=clock,
        version="test",
        url="http://hub",
        peer_urls={},
        on_broken=lambda error: None,
    )


def packed_folder(folder: Path, **files: bytes) -> PackedFolder:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return pack(scan(folder, rules=None, bytes_max=10**9, entries_max=1000))


class ApiUser:
    """Calls the API with a key of its own. `status` of an answer that is no success is raised as its error code."""

    def __init__(self, client: httpx.AsyncClient, key: str) -> None:
        self._client, self._headers = client, {"X-API-Key": key}

    async def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        return await self._client.request(method, f"/v1{path}", headers=self._headers, **options)

    async def error(self, method: str, path: str, **options: Any) -> str:
        answer = await self.call(method, path, **options)
        assert answer.status_code >= 400, answer.text
        return str(answer.json()["error"]["code"])

    async def json(self, method: str, path: str, **options: Any) -> Any:
        answer = await self.call(method, path, **options)
        assert answer.status_code < 300, answer.text
        return answer.json()

    async def upload(self, packed: PackedFolder) -> str:
        frames = [pack_chunk(packed.raw(name), chunk=name) for name in packed.ids]
        await self.json("POST", "/content/chunks", content=b"".join(map(encode_frame, frames)))
        return packed.digest

    async def add(self, name: str, packed: PackedFolder, **fields: object) -> dict[str, Any]:
        await self.upload(packed)
        body = {"name": name, "content": packed.digest, **fields}
        found: dict[str, Any] = await self.json("POST", "/data", json=body)
        return found

    async def frames(self, ref: str, names: Sequence[bytes]) -> list[ChunkFrame]:
        answer = await self.call("POST", "/content/fetch", params={"ref": ref}, content=b"".join(names))
        assert answer.status_code == 200, answer.text
        return list(decode_frames(answer.content))


class FakeNode:
    """The agent of a node, in memory: speaks the real protocol, answers requests for files with `tree`."""

    peer = "node"

    def __init__(self, agent: SimAgent) -> None:
        self.agent = agent
        self.received: list[HubMessage] = []
        self.tree = FilesAnswer(request_id=0)
        self._to_hub: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.say(agent.hello())

    def say(self, *messages: AgentMessage) -> None:
        self._to_hub.put_nowait(encode_messages(list(messages)))

    def leave(self) -> None:
        self._to_hub.put_nowait(None)

    async def receive(self) -> bytes:
        frame = await self._to_hub.get()
        if frame is None:
            raise ConnectionError("left")
        return frame

    async def send(self, frame: bytes) -> None:
        for message in decode_hub_frame(frame):
            self.received.append(message)
            if isinstance(message, SnapshotFiles):
                answer = self.tree
                self.say(
                    FilesAnswer(
                        request_id=message.request_id,
                        digest=answer.digest,
                        code=answer.code,
                        message=answer.message,
                    )
                )


class World:
    """The hub, an agent's connection to it, and keys."""

    def __init__(self, hub: HubService, client: httpx.AsyncClient) -> None:
        self.hub, self.client = hub, client
        self.node = FakeNode(SimAgent("agent", "MA"))

    async def user(self, tenant: str = "t", role: Role = Role.USER) -> ApiUser:
        _, token = await self.hub.credentials.create_key(name="key", tenant=tenant, role=role)
        return ApiUser(self.client, token)

    async def agent(self, agent_id: str = "agent") -> tuple[ApiUser, str]:
        info, token = await self.hub.credentials.create_key(
            name="agent", tenant="t", role=Role.AGENT, agent_id=agent_id
        )
        return ApiUser(self.client, token), info.id


def world_of(hub: HubService) -> World:
    transport = httpx.ASGITransport(app=create_app(hub))
    return World(hub, httpx.AsyncClient(transport=transport, base_url="http://hub"))
