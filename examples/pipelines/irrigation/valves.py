"""Valves to try the irrigation pipeline with: a web server that prints each command, once per idempotency key."""

from __future__ import annotations

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

done: set[str] = set()


class Valves(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        command = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))))
        key = self.headers.get("Idempotency-Key", "")
        if key not in done:
            done.add(key)
            print(f"{command['device']}: {command['action']} {command['args']}", flush=True)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """One line per command is enough."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8099)
    server = ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Valves)
    print(f"the valves listen on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
