"""For pipelines of a real hub: a webhook that writes everything down, and a wait that polls."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

WITHIN_S = 60.0


class Webhook:
    """Writes down every request; an effect is a key that was not there before. `token`: who lacks it gets 401, and a
    device in `refused` 400."""

    def __init__(self, *, token: str = "", refused: str = "") -> None:
        self.requests: Counter[str] = Counter()
        self.effects: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if token and self.headers["Authorization"] != token:
                    return self.answer(401)
                if body["device"] == refused:
                    return self.answer(400)
                with outer._lock:
                    key = self.headers["Idempotency-Key"]
                    outer.requests[key] += 1
                    if outer.requests[key] == 1:
                        outer.effects.append(body)
                return self.answer(200)

            def answer(self, status: int) -> None:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/valves"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def events(self) -> float:
        """All events that actions `water` were about."""
        with self._lock:
            return sum(float(one["args"]["events"]) for one in self.effects if one["action"] == "water")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def until(look: Callable[[], Any], what: str, within_s: float = WITHIN_S) -> Any:
    deadline_s = time.monotonic() + within_s
    while True:
        try:
            found = look()
        except httpx.HTTPError:
            found = None
        if found:
            return found
        assert time.monotonic() < deadline_s, what
        time.sleep(0.1)
