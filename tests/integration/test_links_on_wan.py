"""Do links notice a cut by themselves, and find together again? Processes in namespaces, on an emulated WAN."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harch.base.clock import SystemClock
from harch.base.config import Home
from harch.federation.identity.authority import make_federation
from harch.testing.wan import Wan

NODE = Path(__file__).with_name("links_node.py")
WITHIN_S = 30.0
PAIR = ("dakhla", "dakar")

pytestmark = pytest.mark.needs("wan")


class Told:
    """What a node has told and nobody has asked for yet."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: queue.Queue[tuple[str, ...]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(tuple(json.loads(line)))

    def until(self, *words: str) -> tuple[str, ...]:
        """The next line that starts with these words; lines before it are skipped."""
        while True:
            told = self._lines.get(timeout=WITHIN_S)
            if told[: len(words)] == words:
                return told


@contextmanager
def nodes(wan: Wan, home: Path) -> Iterator[dict[str, Told]]:
    addresses = {name: (wan.address(name), 7721) for name in wan.names}
    make_federation(Home(home), addresses, now=SystemClock().now())
    yield {name: Told(start(wan, home, name)) for name in wan.names}


def start(wan: Wan, home: Path, name: str) -> subprocess.Popen[str]:
    return wan.popen(name, [sys.executable, str(NODE), str(home), name], stdout=subprocess.PIPE, text=True)


def other(name: str) -> str:
    return PAIR[1 - PAIR.index(name)]


def test_a_cut_ends_the_link_at_both_ends_and_healing_brings_it_back(tmp_path: Path) -> None:
    with Wan(PAIR, rtt_ms=30, jitter_ms=1, loss=0.01) as wan, nodes(wan, tmp_path) as told:
        for name in PAIR:
            assert told[name].until("received", other(name))[2] == f"from {other(name)}"
        wan.cut(*PAIR)  # packets vanish, as on a real line: nobody says goodbye
        for name in PAIR:
            told[name].until("down", other(name))
        wan.heal(*PAIR)
        for name in PAIR:
            told[name].until("received", other(name))
