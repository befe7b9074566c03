"""A hub that keeps content in memory, and has the working folder of one task: what verbs about files talk to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from harch.content.frames import (
    ChunkFrame,
    decode_frames,
    decode_ids,
    encode_frame,
    encode_ids,
    pack_chunk,
    unpack_chunk,
)
from harch.content.model import ENTRIES_MAX, TREE_BYTES_MAX, EntryKind, chunks_of, decode_manifest, decode_root
from harch.content.packing import pack, scan
from harch.wire.content import ChunksStored

WORKLOAD = {
    "id": "wl_1",
    "name": "train",
    "type": "batch",
    "status": "running",
    "metadata": {"id": "wl_1", "name": "train", "created_at": "2026-01-02T03:04:05Z", "labels": {}},
    "spec": {"name": "train", "command": ["true"]},
    "hub_id": "dakhla",
    "tenant": "default",
    "attempt": 1,
    "started_at": "2026-01-02T03:04:06Z",
}


class Refused(Exception):
    def __init__(self, status: int, code: str, message: str, **meta: object) -> None:
        super().__init__(message)
        self.status, self.body = status, {"code": code, "message": message, "hint": "", "meta": meta}


class ContentHub:
    """`forget` loses chunks as a collection would; `transfers` are answered before a tree is here."""

    def __init__(self, work: Path) -> None:
        self.url = ""
        self.work = work
        self.country = "MA"
        self.chunks: dict[bytes, ChunkFrame] = {}
        self.data: list[dict[str, Any]] = []
        self.snapshots: dict[str, str] = {}
        self.submitted: list[dict[str, Any]] = []
        self.artifacts: list[dict[str, Any]] = []
        self.transfers: list[dict[str, Any]] = []
        self.placed: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.forget_before_registration = 0
        self.interrupt_at = ""
        self._lock = Lock()

    def answer(self, method: str, path: str, params: dict[str, str], body: bytes) -> tuple[int, Any]:
        with self._lock:
            asked_of = f"?workload={params['workload']}" if "workload" in params else ""
            self.asked.append(f"{method} {path}{asked_of}")
            match method, path.strip("/").split("/"):
                case "GET", ["health"]:
                    return 200, {"status": "healthy", "hub_id": "dakhla", "country": self.country}
                case "POST", ["content", "missing"]:
                    return 200, encode_ids(one for one in decode_ids(body) if one not in self.chunks)
                case "POST", ["content", "chunks"]:
                    return 200, self._put(body)
                case "POST", ["content", "trees", ref]:
                    return self._tree(ref)
                case "POST", ["content", "fetch"]:
                    digest = self._digest(params["ref"])
                    ids = decode_ids(body)
                    if not {*ids} <= {*self.ids_of(digest)}:
                        raise Refused(404, "E1102", "not of this tree")
                    return 200, b"".join(encode_frame(self.chunks[one]) for one in ids)
                case "POST", ["data"]:
                    return 201, self._register(json.loads(body))
                case "GET", ["data", ref]:
                    return 200, self._found(ref)
                case "DELETE", ["data", ref]:
                    self.data.remove(self._found(ref))
                    return 200, {}
                case "POST", ["workloads"]:
                    self.submitted.append(json.loads(body))
                    return 201, {**WORKLOAD, "status": "pending"}
                case "GET", ["workloads", "wl_1" | "train"]:
                    return 200, WORKLOAD
                case "POST", ["workloads", "wl_1", "files"]:
                    return 200, self._snapshot(json.loads(body))
                case "PUT", ["workloads", "wl_1", "files"]:
                    return 200, self._place(json.loads(body))
                case "GET", ["artifacts"]:
                    if params.get("workload", "wl_1") not in ("wl_1", "train"):
                        raise Refused(404, "E0301", f"no workload `{params['workload']}`")
                    return 200, {"items": self.artifacts, "total": len(self.artifacts)}
            raise Refused(404, "E0301" if path.startswith("/workloads/") else "E0207", f"{method} {path}")

    def store(self, folder: Path) -> str:
        """Its digest."""
        packed = pack(scan(folder, rules=None, bytes_max=TREE_BYTES_MAX, entries_max=ENTRIES_MAX))
        for one in packed.ids:
            self.chunks[one] = pack_chunk(packed.raw(one), chunk=one)
        return packed.digest

    def hold(self, name: str, folder: Path, **more: Any) -> dict[str, Any]:
        made = {"id": f"data_{len(self.data) + 1}", "name": name, "kind": "dataset", "content": self.store(folder)}
        self.data.append(made | more)
        return made | more

    def ids_of(self, digest: str) -> list[bytes]:
        """Raises `Refused` if any is missing."""
        try:
            top = bytes.fromhex(digest)
            raw = unpack_chunk(self.chunks[top])
            root = decode_root(raw)
            entries = decode_manifest(b"".join(unpack_chunk(self.chunks[one.id]) for one in root.manifest))
            ids = [one.id for one in chunks_of(top, len(raw), root, entries)]
            missing = [one for one in ids if one not in self.chunks]
        except KeyError as error:
            missing = [error.args[0]]
        if missing:
            raise Refused(409, "E1104", "chunks are missing", missing=[one.hex() for one in missing])
        return ids

    def files_of(self, digest: str) -> dict[str, bytes]:
        """Path to content; of a folder None is left out, of a link its target."""
        self.ids_of(digest)
        root = decode_root(unpack_chunk(self.chunks[bytes.fromhex(digest)]))
        entries = decode_manifest(b"".join(unpack_chunk(self.chunks[one.id]) for one in root.manifest))
        return {
            entry.path: entry.target.encode()
            if entry.kind is EntryKind.LINK
            else b"".join(unpack_chunk(self.chunks[one.id]) for one in entry.chunks)
            for entry in entries
            if entry.kind is not EntryKind.FOLDER
        }

    def _put(self, body: bytes) -> dict[str, Any]:
        frames = list(decode_frames(body))
        known = sum(frame.id in self.chunks for frame in frames)
        for frame in frames:
            unpack_chunk(frame)
            self.chunks[frame.id] = frame
        plain: dict[str, Any] = msgspec.to_builtins(ChunksStored(stored=len(frames), known=known, bytes=len(body)))
        return plain

    def _register(self, new: dict[str, Any]) -> dict[str, Any]:
        if self.forget_before_registration:
            self.forget_before_registration -= 1
            self.chunks.clear()
        if new.get("content"):
            self.ids_of(new["content"])
        made = {"id": f"data_{len(self.data) + 1}", **new}
        self.data.append(made)
        return made

    def _found(self, ref: str) -> dict[str, Any]:
        found = [one for one in self.data if ref in (one["id"], one["name"])]
        if not found:
            raise Refused(404, "E0906", f"no data object `{ref}`")
        return found[-1]

    def _digest(self, ref: str) -> str:
        return self.snapshots.get(ref) or str(self._found(ref)["content"])

    def _tree(self, ref: str) -> tuple[int, dict[str, Any]]:
        if self.transfers:
            return 202, self.transfers.pop(0)
        digest = self._digest(ref)
        self.ids_of(digest)
        root = decode_root(unpack_chunk(self.chunks[bytes.fromhex(digest)]))
        return 200, {"ref": ref, "digest": digest, "size_bytes": root.size_bytes, "files": root.files, "name": "files"}

    def _snapshot(self, asked: dict[str, Any]) -> dict[str, Any]:
        place = self.work / asked["path"]
        if not place.exists():
            raise Refused(404, "E1111", f"no `{asked['path']}` there")
        ref = f"snap_{len(self.snapshots) + 1}"
        self.snapshots[ref] = self.store(place)
        return {"ref": ref, "digest": self.snapshots[ref]}

    def _place(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.placed.append(asked)
        for path, content in self.files_of(asked["digest"]).items():
            there = self.work / asked["path"] / path
            there.parent.mkdir(parents=True, exist_ok=True)
            there.write_bytes(content)
        return {}


@contextmanager
def content_hub(work: Path) -> Iterator[ContentHub]:
    hub = ContentHub(work)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept, as those of a hub are

        def handle_any(self) -> None:
            parts = urlsplit(self.path)
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
            try:
                path = unquote(parts.path).removeprefix("/v1")
                status, value = hub.answer(self.command, path, dict(parse_qsl(parts.query)), raw)
            except Refused as refused:
                status, value = refused.status, {"error": refused.body}
            body = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_DELETE = handle_any

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
