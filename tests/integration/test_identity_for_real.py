"""Two hubs of two operators, as real processes with nothing in common but an invitation."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harch.testing.ports import free_port_base

HARCH = [sys.executable, "-m", "harch"]
WITHIN_S = 60.0


class Site:
    """One machine's worth of state."""

    def __init__(self, home: Path, port_base: int) -> None:
        self.home = home
        self.environment = {**os.environ, "HARCH_HOME": str(home), "HARCH_PORT_BASE": str(port_base)}
        self.environment.pop("HARCH_URL", None)

    def harch(self, *words: str, stdin: str = "") -> str:
        done = subprocess.run([*HARCH, *words], env=self.environment, input=stdin, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextlib.contextmanager
    def serving(self, hub: str) -> Iterator[None]:
        with subprocess.Popen(
            [*HARCH, "hub", "serve", hub, "--json"], env=self.environment, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                assert json.loads(process.stdout.readline())["hub"] == hub
                yield
            finally:
                process.terminate()

    def hubs(self) -> dict[str, Any]:
        return {hub["id"]: hub for hub in json.loads(self.harch("hubs", "--json"))["items"]}


def test_a_hub_that_was_invited_is_seen_by_the_one_that_invited_it(tmp_path: Path) -> None:
    port_base = free_port_base()
    ours, theirs = Site(tmp_path / "ours", port_base), Site(tmp_path / "theirs", port_base)
    ours.harch("hub", "init", "dakhla")
    with ours.serving("dakhla"):
        assert not ours.hubs()["dakar"]["reachable"]
        theirs.harch("hub", "join", "-", stdin=ours.harch("hub", "invite", "dakar"))
        with theirs.serving("dakar"):
            until = time.monotonic() + WITHIN_S
            while not ours.hubs()["dakar"]["reachable"]:
                assert time.monotonic() < until, "dakar is not seen"
        secrets = (tmp_path / "theirs" / "dakar" / "federation" / "state.key").read_text().strip()
        assert secrets not in "".join(path.read_text("latin-1") for path in ours.home.rglob("*") if path.is_file())
