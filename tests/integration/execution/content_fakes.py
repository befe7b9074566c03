"""A hub in miniature that has content, too; and wheels, indexes and folders to fill it with."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import http.server
import threading
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from execution_fakes import API_KEY, FakeHub
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from harch.content.frames import ChunkFrame, chunk_id, decode_frames, decode_ids, encode_frame, pack_chunk, unpack_chunk
from harch.content.model import ENTRIES_MAX
from harch.content.packing import pack, scan
from harch.execution.protocol import ContentUse, FilesAnswer, PlaceFiles, SnapshotFiles, TaskContent, TaskKey
from harch.sovereignty.jurisdiction_file import shipped_jurisdictions
from harch.sovereignty.tags import DataKind, DataObject, parse_tag
from harch.wire.content import ChunksStored, TransferView, TreeView

ANYWHERE = parse_tag(
    {"process_in": ["MA"], "rest_in": ["MA"], "encrypt_at_rest": False, "encrypt_in_transit": False},
    shipped_jurisdictions(),
)
# May be processed here, and must not stay.
NOT_HERE_TO_REST = parse_tag(
    {
        "process_in": ["MA"],
        "rest_in": ["SN"],
        "may_cross_borders": True,
        "encrypt_at_rest": False,
        "encrypt_in_transit": False,
    },
    shipped_jurisdictions(),
)


@dataclass
class ContentHub(FakeHub):
    """Serves `/v1/agents/content/…` beside the agents' WebSocket. `closed`: every request for content is a 503."""

    chunks: dict[bytes, ChunkFrame] = field(default_factory=dict)
    trees: dict[str, str] = field(default_factory=dict)  # data id, or ref -> digest
    images: dict[str, TreeView] = field(default_factory=dict)
    coming: dict[str, list[TransferView]] = field(default_factory=dict)  # what is told before a tree is there
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    fetched: set[bytes] = field(default_factory=set)
    closed: bool = False
    refused: int = 0
    held_back: asyncio.Event | None = None  # what reads or writes chunks waits for it

    @contextlib.asynccontextmanager
    async def listening(self, port: int = 0):
        routes = [
            WebSocketRoute("/v1/agents/connect", self._connect),
            Route("/v1/agents/content/{what}", self._content, methods=["POST", "PUT"]),
        ]
        config = uvicorn.Config(
            Starlette(routes=routes),
            host="127.0.0.1",
            port=port,
            log_level="error",
            ws="websockets-sansio",
            lifespan="off",
        )
        server = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None
        server.capture_signals = contextlib.nullcontext
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.005)
        self.port = server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        try:
            yield self
        finally:
            if self.held_back is not None:
                self.held_back.set()
            server.should_exit = server.force_exit = True
            await serving

    def add(self, folder: Path, name: str, use: ContentUse = ContentUse.DATA, *, tag=ANYWHERE) -> Held:
        """Packs a folder, as `harch data add` would."""
        found = scan(folder, rules=None, bytes_max=1 << 40, entries_max=ENTRIES_MAX)
        packed = pack(found)
        for chunk in packed.ids:
            self.chunks[chunk] = pack_chunk(packed.raw(chunk))
        data = DataObject(id=f"data_{name}", kind=DataKind(_KIND[use]), name=name, tenant="default", tag=tag)
        self.trees[data.id] = packed.digest
        return Held(TaskContent(data.id, name, packed.digest, use), data)

    def unpack(self, digest: str) -> dict[str, bytes]:
        """The files of a tree that was uploaded."""
        from harch.content.exchange import read_tree

        _, entries = read_tree(digest, _Own(self))
        return {
            entry.path: b"".join(unpack_chunk(self.chunks[chunk.id]) for chunk in entry.chunks)
            for entry in entries
            if not entry.target and entry.kind == 0
        }

    def asked(self, what: str) -> int:
        return sum(name == what for name, _ in self.requests)

    async def snapshot(self, key: TaskKey, path: str = ".") -> FilesAnswer:
        self._requests += 1
        await self.say(SnapshotFiles(self._requests, key, path))
        return await self._files_answer(self._requests)

    async def place(self, key: TaskKey, path: str, digest: str) -> FilesAnswer:
        self._requests += 1
        self.trees["placed"] = digest
        await self.say(PlaceFiles(self._requests, key, path, "placed", digest))
        return await self._files_answer(self._requests)

    async def _files_answer(self, number: int) -> FilesAnswer:
        return await self.wait_for(FilesAnswer, lambda one: one.request_id == number)

    async def _connect(self, socket: WebSocket) -> None:
        if socket.headers.get("x-api-key") != API_KEY:
            await socket.close(1008)
            return
        await socket.accept()
        with contextlib.suppress(WebSocketDisconnect, asyncio.CancelledError):
            await self._talk(_Socket(socket))

    async def _content(self, request: Request) -> Response:
        what, query = request.path_params["what"], dict(request.query_params)
        if request.headers.get("x-api-key") != API_KEY:
            return _error(401, "E0102", "who are you?")
        if self.closed:
            self.refused += 1
            return _error(503, "E1110", "the store is closed")
        body = await request.body()
        self.requests.append((what, query))
        if what in ("fetch", "chunks") and self.held_back is not None:
            await self.held_back.wait()
        return getattr(self, f"_{what}")(request.method, query, body)

    def _trees(self, method: str, query: dict[str, str], body: bytes) -> Response:
        data_id = query["data"]
        if waiting := self.coming.get(data_id):
            return _json(waiting.pop(0), 202)
        if data_id not in self.trees:
            return _error(404, "E1102", f"{data_id} is not here")
        return _json(TreeView(ref=data_id, digest=self.trees[data_id]))

    def _fetch(self, method: str, query: dict[str, str], body: bytes) -> Response:
        if query["ref"] not in self.trees and query["ref"] not in {view.ref for view in self.images.values()}:
            return _error(404, "E1102", f"{query['ref']} is not here")
        frames = [self.chunks[chunk] for chunk in decode_ids(body)]
        self.fetched |= {frame.id for frame in frames}
        return Response(b"".join(map(encode_frame, frames)), media_type="application/octet-stream")

    def _missing(self, method: str, query: dict[str, str], body: bytes) -> Response:
        return Response(b"".join(one for one in decode_ids(body) if one not in self.chunks))

    def _chunks(self, method: str, query: dict[str, str], body: bytes) -> Response:
        frames = list(decode_frames(body))
        for frame in frames:
            assert chunk_id(unpack_chunk(frame)) == frame.id
            self.chunks[frame.id] = frame
        return _json(ChunksStored(stored=len(frames), known=0))

    def _images(self, method: str, query: dict[str, str], body: bytes) -> Response:
        order = msgspec.json.decode(body)
        if method == "PUT":
            view = TreeView(ref=f"image_{order['digest'][:8]}", digest=order["digest"], name=order["image_digest"])
            self.images[order["reference"]] = view
            return _json(view)
        view = self.images.get(order["reference"])
        return _json(view) if view is not None else _error(404, "E1102", "no such image")


_KIND = {ContentUse.CODE: "code", ContentUse.DATA: "dataset", ContentUse.IMAGE: "image"}


@dataclass(frozen=True)
class Held:
    """A data object with content, as a task is given it."""

    content: TaskContent
    data: DataObject


def given(*held: Held) -> dict[str, Any]:
    return {"contents": tuple(one.content for one in held), "data": tuple(one.data for one in held)}


class _Own:
    def __init__(self, hub: ContentHub) -> None:
        self._hub = hub

    def fetch(self, ids):
        return b"".join(encode_frame(self._hub.chunks[one]) for one in ids)

    def missing(self, ids):
        return []

    def put(self, body):
        raise AssertionError("nothing is put")


class _Socket:
    """As `FakeHub` knows a connection."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket

    async def send(self, data: bytes) -> None:
        await self._socket.send_bytes(data)

    async def close(self) -> None:
        await self._socket.close()

    def __aiter__(self):
        return self

    async def __anext__(self) -> bytes:
        try:
            return await self._socket.receive_bytes()
        except (WebSocketDisconnect, RuntimeError):
            raise StopAsyncIteration from None


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _error(status: int, code: str, message: str) -> Response:
    return _json(
        {"code": code, "message": message, "error": {"code": code, "message": message, "hint": "a hint"}}, status
    )


def files(folder: Path, **contents: str | bytes) -> Path:
    """`a__b_txt` is `a/b.txt`: names of arguments have no dots or slashes."""
    for name, content in contents.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def make_wheel(folder: Path, name: str, version: str, code: str, requires: str = "", script: str = "") -> Path:
    """A tiny package of one module. `script`: a command that calls a function of it."""
    about = f"{name}-{version}.dist-info"
    requirement = f"Requires-Dist: {requires}\n" if requires else ""
    contents = {
        f"{name}.py": code,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requirement}",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if script:
        contents[f"{about}/entry_points.txt"] = f"[console_scripts]\n{script}\n"
    lines = [f"{path},sha256={_digest(text)},{len(text.encode())}" for path, text in contents.items()]
    contents[f"{about}/RECORD"] = "\n".join([*lines, f"{about}/RECORD,,"]) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in contents.items():
            archive.writestr(zipfile.ZipInfo(path, (2026, 1, 1, 0, 0, 0)), text)
    return wheel


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@dataclass
class PackageIndex:
    """A package index (PEP 503) of the wheels in a folder. `silent`: it takes requests and does not answer."""

    folder: Path
    silent: bool = False
    requests: list[str] = field(default_factory=list)
    url: str = ""

    @contextlib.contextmanager
    def listening(self):
        index, release = self, threading.Event()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                index.requests.append(self.path)
                if index.silent:
                    release.wait(60)
                parts = self.path.strip("/").split("/")
                body = index.answer(parts)
                self.send_response(200 if body is not None else 404)
                self.send_header("content-type", "text/html" if parts[0] == "simple" else "application/zip")
                self.send_header("content-length", str(len(body or b"")))
                self.end_headers()
                if self.command == "GET":
                    with contextlib.suppress(OSError):
                        self.wfile.write(body or b"")

            do_HEAD = do_GET

            def log_message(self, *words):
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            server.daemon_threads = True
            self.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
            thread.start()
            try:
                yield self
            finally:
                release.set()
                server.shutdown()
                thread.join()

    def answer(self, parts: list[str]) -> bytes | None:
        if parts[0] == "simple" and len(parts) == 2:
            wheels = sorted(self.folder.glob(f"{parts[1].replace('-', '_')}-*.whl"))
            links = [
                f'<a href="/files/{one.name}#sha256={hashlib.sha256(one.read_bytes()).hexdigest()}">{one.name}</a>'
                for one in wheels
            ]
            return "\n".join(["<!DOCTYPE html><html><body>", *links, "</body></html>"]).encode() if wheels else None
        path = self.folder / parts[-1]
        return path.read_bytes() if parts[0] == "files" and path.exists() else None
