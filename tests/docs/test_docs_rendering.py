"""Does a browser show the pages of the site whole, on a phone, in light and dark?"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

_PHONE_PX = 390
_DEADLINE_S = 280.0

# Opens one page after the other in a frame as wide as a phone, and reports what it finds there.
_MEASURE = """<!doctype html><meta charset="utf-8"><body><script>
async function measure(page) {
  const frame = document.createElement("iframe")
  frame.style = "width: WIDTHpx; height: 800px; border: 0"
  await new Promise(done => { frame.onload = done; frame.src = page; document.body.append(frame) })
  const inside = frame.contentDocument, root = inside.documentElement
  const images = [...inside.images]
  await Promise.all(images.map(image => image.decode().catch(() => 0)))
  const found = {
    page,
    beyond_px: root.scrollWidth - root.clientWidth,
    broken: images.filter(image => !image.naturalWidth).map(image => image.src),
    images: images.length,
    scheme: inside.body.dataset.mdColorScheme,
    paper: frame.contentWindow.getComputedStyle(inside.body).backgroundColor,
  }
  frame.remove()
  return found
}
(async () => {
  const found = []
  for (const page of PAGES) found.push(await measure(page))
  await fetch("/found", { method: "POST", body: JSON.stringify(found) })
})()
</script>"""


class _Site(SimpleHTTPRequestHandler):
    """Serves the built site and the page above, and takes the report."""

    def __init__(self, found: queue.Queue[Any], measure: bytes, *args: Any, **kwargs: Any) -> None:
        self.found, self.measure = found, measure
        super().__init__(*args, **kwargs)

    def do_GET(self) -> None:
        if self.path != "/measure":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(self.measure)

    def do_POST(self) -> None:
        self.found.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Says nothing: a page that is missing shows in the report."""


def _seen(site: Path, folder: Path, *, dark: bool) -> list[dict[str, Any]]:
    """What the browser found on all pages but decisions, which are prose; in the dark, on one page of each folder."""
    every = sorted(page.relative_to(site) for page in site.rglob("*.html") if not page.match("adr/0*.html"))
    chosen = {page.parent: page for page in every}.values() if dark else every
    pages = [page.as_posix() for page in chosen]
    measure = _MEASURE.replace("WIDTH", str(_PHONE_PX)).replace("PAGES", json.dumps(pages)).encode()
    found: queue.Queue[Any] = queue.Queue()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Site, found, measure, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    quiet = [
        "no-first-run",
        "disable-background-networking",
        "disable-sync",
        "disable-component-update",
        "disable-quic",
    ]
    browser = subprocess.Popen(
        [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu", *(f"--{flag}" for flag in quiet)),
            *("--remote-debugging-port=0", f"--user-data-dir={folder}"),
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            f"http://127.0.0.1:{server.server_port}/measure",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "HOME": str(folder)},
    )
    try:
        return found.get(timeout=_DEADLINE_S)  # type: ignore[no-any-return]
    finally:
        os.killpg(browser.pid, signal.SIGKILL)
        browser.wait()
        server.shutdown()
        server.server_close()


@pytest.mark.timeout(300)
@pytest.mark.needs("chromium")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_pages_fit_a_phone_and_show_their_pictures(site: Path, tmp_path: Path, dark: bool) -> None:
    seen = _seen(site, tmp_path, dark=dark)
    assert {page["page"]: page["beyond_px"] for page in seen if page["beyond_px"] > 0} == {}
    assert {page["page"]: page["broken"] for page in seen if page["broken"]} == {}
    assert sum(page["images"] for page in seen) > 0
    assert {page["scheme"] for page in seen} == {"slate" if dark else "default"}
    papers = {page["paper"] for page in seen}
    assert len(papers) == 1
    assert ("255, 255, 255" in papers.pop()) is not dark
