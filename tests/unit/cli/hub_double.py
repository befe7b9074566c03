"""A hub that answers what a test tells it to, over a real socket."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit


class Asked(NamedTuple):
    method: str
    path: str
    params: dict[str, str]
    body: Any
    key: str = ""


class HubDouble:
    """`answers` maps `METHOD /path` to (status, value) pairs; the last one is repeated. Bytes are sent as they are."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: dict[str, list[tuple[int, Any]]] = {}
        self.replies: dict[str, Callable[[dict[str, str]], Any]] = {}
        self.asked: list[Asked] = []

    def on(self, question: str, *values: Any, status: int = 200) -> None:
        self.answers[question] = [(status, value) for value in values]

    def reply(self, question: str, made: Callable[[dict[str, str]], Any]) -> None:
        """An answer that depends on the parameters of the request."""
        self.replies[question] = made

    def fail(self, question: str, status: int, code: str, message: str, hint: str = "") -> None:
        error = {"code": code, "message": message, "hint": hint}
        self.answers[question] = [(status, {"success": False, **error, "error": error})]

    def answer(self, asked: Asked) -> tuple[int, bytes]:
        self.asked.append(asked)
        if (made := self.replies.get(f"{asked.method} {asked.path}")) is not None:
            return 200, json.dumps(made(asked.params)).encode()
        planned = self.answers.get(f"{asked.method} {asked.path}")
        if not planned:
            return 404, json.dumps({"code": "E0207", "message": f"{asked.method} {asked.path} is not planned"}).encode()
        status, value = planned.pop(0) if len(planned) > 1 else planned[0]
        return status, value if isinstance(value, bytes) else json.dumps(value).encode()


@contextmanager
def hub_double() -> Iterator[HubDouble]:
    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("content-length") or 0)
            raw = self.rfile.read(length)
            asked = Asked(
                self.command,
                unquote(parts.path).removeprefix("/v1"),
                dict(parse_qsl(parts.query)),
                json.loads(raw) if raw else None,
                self.headers.get("x-api-key") or "",
            )
            status, body = hub.answer(asked)
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = handle_any

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub = HubDouble(f"http://127.0.0.1:{server.server_port}")
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def hub_summary(**stated: object) -> dict[str, object]:
    """What a hub publishes of itself, where a test states only what it is about."""
    words = dict.fromkeys(("hub_id", "name", "country", "grid_zone", "provenance", "status", "status_detail"), "")
    words |= {"version": "", "url": "", "started_at": "2026-03-01T00:00:00Z", "at": "2026-03-01T08:00:00Z"}
    numbers = ("latitude", "longitude", "pue", "gpus_total", "gpus_free", "nodes_total", "nodes_up", "cpus_total")
    sizes = ("cpus_free", "memory_gb_total", "memory_gb_free", "storage_gb_total", "agents")
    counts = dict.fromkeys((*numbers, *sizes, "process_slots_total", "process_slots_free"), 0)
    return {**words, **counts, "models": [], "workloads": {}, **stated}
