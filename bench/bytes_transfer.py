"""How fast does content move between two hubs 45 ms apart, what do cuts cost, and what does gossip notice of it?

Tangier holds a dataset of noise; work that it lends to Dakar reads it, so that it moves as it does for a user. Both are
real processes in namespaces of their own. The link between them is emulated: 45 ms, +/- 1 ms jitter, and a rate that
the hubs are not told; without one, the emulator's own speed would be measured. Speed counts from the moment Dakar knows
of the transfer until it holds the whole tree, on disk. Raw TCP carries as many bytes over the same link, before and
after each transfer. Gossip is measured as `bench/federation_gossip.py` does, by two processes more on the same link.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bytes_files import MB, Noise, write_file
from bytes_goals import CUTS, GOSSIP, SPEED
from bytes_reporting_hub import REPORTS
from bytes_world import fleet_toml
from federation_gossip import Nodes
from harch.base.config import Home
from harch.federation.identity.authority import make_federation
from harch.testing.wan import Wan, why_not_permitted
from harch.testing.wan_federation import WanFederation
from verdict import Verdict

OWNER, RUNNER = "tangier", "dakar"
COUNTRIES = {"Tangier": "MA", "Dakar": "SN"}
RTT_MS = 45.0
TAG = ("--process-in", "MA", "--process-in", "SN", "--rest-in", "MA", "--rest-in", "SN", "--may-cross-borders")
PLAIN = ("--plain-at-rest", "--plain-in-transit")
REPORTING_HUB = str(Path(__file__).with_name("bytes_reporting_hub.py"))
GOSSIP_PORT, RAW_PORT = 7921, 9001
AGE_EVERY_S = (0.2, 0.4)
GAP_S = (0.05, 0.15)  # between two updates of gossip
IDLE_S = 15.0  # before each transfer
SETTLED_AFTER_S = 5.0
POLL_S = 0.05
CUT_S = (2.0, 20.0)  # shorter and longer than a connection may be silent
BETWEEN_CUTS_S = (0.5, 2.5)
WITHIN_S = 600.0
FILES = 6
CHUNK_BYTES = 512 * 1024  # the average


def measure(verdict: Verdict, chosen: argparse.Namespace) -> None:
    if reason := why_not_permitted():
        raise RuntimeError(reason)
    with tempfile.TemporaryDirectory(prefix="harch-transfer-") as name:
        folder = Path(name)
        (folder / "fleet.toml").write_text(fleet_toml(COUNTRIES, rtt_ms=RTT_MS))
        (folder / "home").mkdir()
        with (
            Wan([OWNER, RUNNER], rtt_ms=RTT_MS, jitter_ms=chosen.jitter_ms) as wan,
            ReportingFederation(wan, str(folder / "fleet.toml"), folder / "home") as federation,
            gossip_on(wan, folder / "gossip") as gossip,
        ):
            if chosen.rate_mbps:
                wan.set_link(OWNER, RUNNER, rate_mbps=chosen.rate_mbps)
            rate = f"{chosen.rate_mbps:g} Mbit/s" if chosen.rate_mbps else "no limit of its rate"
            print(
                f"link: {RTT_MS:g} ms, +/-{chosen.jitter_ms:g} ms jitter, {rate}; TCP: {congestion_control()}",
                flush=True,
            )
            world, signs = World(wan, federation, folder, gossip, chosen), SignsOfLife(federation, gossip)
            speeds, raws = world.speeds()
            signs.stop()
            again = world.with_cuts() if chosen.cuts else None
            gossip.stop()
            show_gossip(gossip)
            signs.show()
    share = 100 * statistics.median(speeds) / statistics.median(raws)
    print(f"medians: {statistics.median(speeds) / MB:.1f} MB/s, raw TCP {statistics.median(raws) / MB:.1f} MB/s")
    SPEED.met(verdict, share)
    if again is not None:
        CUTS.met(verdict, again)
    GOSSIP.met(verdict, gossip.p99_ms("transfer") / gossip.p99_ms("idle"))


class ReportingFederation(WanFederation):
    """Hubs write down what their transfers came to. Telemetry is off: the emulator needs the cores."""

    @property
    def _environment(self) -> dict[str, str]:
        return {**super()._environment, "HARCH_SENTINEL": "off"}

    def _spawn(self, name: str, *words: str) -> subprocess.Popen[Any]:
        launcher = [REPORTING_HUB] if words[0] == "hub" else ["-m", "harch"]
        return self.wan.popen(
            name,
            [sys.executable, *launcher, *words],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )

    def start(self, name: str, *words: str) -> subprocess.Popen[str]:
        """A command of the CLI against one hub, from outside."""
        return subprocess.Popen(
            [sys.executable, "-m", "harch", *words],
            cwd=self.home,
            env={**self._environment, "HARCH_URL": self.url(name), "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def do(self, name: str, *words: str) -> str:
        """Raises RuntimeError if it fails."""
        process = self.start(name, *words)
        output, errors = process.communicate(timeout=WITHIN_S)
        if process.returncode:
            raise RuntimeError(f"`harch {' '.join(words)}` exits with {process.returncode}: {output}{errors}")
        return output

    def reports(self) -> list[dict[str, Any]]:
        """Of all transfers so far."""
        path = self.home / REPORTS
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@dataclass(frozen=True)
class Dataset:
    name: str
    bytes: int
    sums: tuple[str, ...]  # SHA-256 of its files, sorted by name


class World:
    def __init__(
        self, wan: Wan, federation: ReportingFederation, folder: Path, gossip: Gossip, chosen: argparse.Namespace
    ) -> None:
        self._wan, self._federation, self._folder, self._gossip = wan, federation, folder, gossip
        self._megabytes, self._rounds, self._chance = (
            chosen.transfer_megabytes,
            chosen.transfers,
            random.Random(chosen.seed),
        )
        self._cuts = chosen.cuts
        self._noise = Noise(chosen.seed)

    def speeds(self) -> tuple[list[float], list[float]]:
        """Bytes per second of transfers, and of raw TCP."""
        speeds, raws = [], []
        for number in range(self._rounds):
            dataset = self._add(f"moves-{number}")
            time.sleep(SETTLED_AFTER_S)
            with self._gossip.during("idle"):
                time.sleep(IDLE_S)
            with self._gossip.during("raw TCP"):
                raws.append(self._raw(dataset.bytes))
            with self._gossip.during("transfer"):
                seconds = self._move(dataset)
            speeds.append(dataset.bytes / seconds)
            raws.append(self._raw(dataset.bytes))
            self._federation.do(OWNER, "data", "rm", dataset.name)
            print(
                f"  {dataset.bytes / MB:.0f} MB in {seconds:.1f} s: {speeds[-1] / MB:.1f} MB/s; raw TCP before and "
                f"after: {raws[-2] / MB:.1f}, {raws[-1] / MB:.1f} MB/s (load average {os.getloadavg()[0]:.1f})",
                flush=True,
            )
        return speeds, raws

    def with_cuts(self) -> float:
        """Chunks that were sent again, per cut of the link."""
        dataset = self._add("cut")
        known = len(self._federation.reports())
        done = threading.Event()
        cutter = threading.Thread(target=self._cut, args=(done,))
        seconds = self._move(dataset, cutter)
        done.set()
        cutter.join()
        reports = self._federation.reports()[known:]
        again = sum(report["bytes_repeated"] for report in reports)
        ended = sum(report["cuts"] for report in reports)
        print(
            f"  {self._made_cuts} cuts in {seconds:.0f} s ended {ended} connections; {again / 1000:.0f} kB were "
            f"received again; all files are what they were",
            flush=True,
        )
        if self._made_cuts < self._cuts:
            raise RuntimeError(f"the transfer was over after {self._made_cuts} cuts: give it more megabytes")
        return again / CHUNK_BYTES / self._made_cuts

    def _cut(self, done: threading.Event) -> None:
        """At random moments of the transfer, for a random time."""
        self._made_cuts = 0
        while self._made_cuts < self._cuts and not done.wait(self._chance.uniform(*BETWEEN_CUTS_S)):
            self._wan.cut(OWNER, RUNNER)
            self._made_cuts += 1
            done.wait(self._chance.uniform(*CUT_S))
            self._wan.heal(OWNER, RUNNER)

    def _add(self, name: str) -> Dataset:
        files = self._folder / name
        sums = []
        for number in range(FILES):
            path = files / f"part-{number}.bin"
            write_file(path, self._megabytes * MB // FILES, self._noise)
            sums.append(hashlib.sha256(path.read_bytes()).hexdigest())
        self._federation.do(OWNER, "data", "add", name, "--files", str(files), *TAG, *PLAIN)
        return Dataset(name, sum(path.stat().st_size for path in files.iterdir()), tuple(sums))

    def _move(self, dataset: Dataset, beside: threading.Thread | None = None) -> float:
        """Seconds until the runner has it. Raises RuntimeError if work there does not read what was stored."""
        words = (
            "--country",
            COUNTRIES["Dakar"],
            "--data",
            dataset.name,
            "--no-code",
            "--name",
            f"reads-{dataset.name}",
        )
        command = ("sh", "-c", f"sha256sum $HARCH_DATA/{dataset.name}/*")
        work = self._federation.start(OWNER, "run", *words, "--", *command)
        seconds = self._watch(beside)
        output, errors = work.communicate(timeout=WITHIN_S)
        sums = tuple(line.split()[0] for line in output.splitlines())
        if sums != dataset.sums:
            raise RuntimeError(f"work has not read what was stored: {output}{errors}")
        return seconds

    def _watch(self, beside: threading.Thread | None) -> float:
        """From the first word of the transfer until it is over, as its hub says."""
        began_s = 0.0
        end_s = time.monotonic() + WITHIN_S
        with self._federation.client(RUNNER) as client:
            while time.monotonic() < end_s:
                transfers = client.get("/v1/content").json()["transfers"]
                if transfers and not began_s:
                    began_s = time.monotonic()
                    if beside is not None:
                        beside.start()
                if began_s and not transfers:
                    return time.monotonic() - began_s
                time.sleep(POLL_S)
        raise TimeoutError(f"nothing has moved in {WITHIN_S:g} s")

    def _raw(self, size: int) -> float:
        """Bytes per second of one TCP connection, from the same end to the same end."""
        wan = self._wan
        with wan.inside(RUNNER, _listener, wan.address(RUNNER)) as listener:
            began_s = time.monotonic()
            sender = wan.connect(OWNER, RAW_PORT, host=wan.address(RUNNER))
            receiver, _ = listener.accept()
            with sender, receiver:
                sender.settimeout(None)
                sending = threading.Thread(target=sender.sendall, args=(bytes(size),))
                sending.start()
                left = size
                while left:
                    left -= len(receiver.recv(1 << 20))
                sending.join()
        return size / (time.monotonic() - began_s)


def _listener(host: str) -> Any:
    import socket

    return socket.create_server((host, RAW_PORT))


class SignsOfLife:
    """How old the last sign of life of the owner is at the runner, as that one tells its users: five come a second."""

    def __init__(self, federation: ReportingFederation, gossip: Gossip) -> None:
        self._federation, self._gossip = federation, gossip
        self._ages_ms: dict[str, list[float]] = defaultdict(list)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        chance = random.Random(2)
        with self._federation.client(RUNNER) as client:
            while not self._stopped.wait(chance.uniform(*AGE_EVERY_S)):
                phase = self._gossip.phase
                if phase:
                    found = client.get("/v1/hubs").json()["items"]
                    self._ages_ms[phase] += [1000 * hub["age_s"] for hub in found if not hub["own"]]

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def show(self) -> None:
        told = ", ".join(f"{phase} {p99(ages):.0f} ms ({len(ages)})" for phase, ages in self._ages_ms.items())
        print(f"  age of the last sign of life of {OWNER} at {RUNNER}, p99: {told}", flush=True)


class Gossip:
    """Updates one after the other, in a thread; how long each took is kept by what was going on when it began."""

    def __init__(self, nodes: Nodes, names: Sequence[str]) -> None:
        self.phase = ""  # what is going on; empty: what does not count
        self._nodes, self._names = nodes, names
        self._ms: dict[str, list[float]] = defaultdict(list)
        self._stopped = threading.Event()
        self._chance = random.Random(1)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stopped.wait(self._chance.uniform(*GAP_S)):
            phase, number = self.phase, number + 1
            if phase:
                seen_s = self._nodes.update(self._names[number % len(self._names)], f"v{number}")
                if phase == self.phase:
                    self._ms[phase].append(float("inf") if seen_s is None else seen_s * 1000)

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """What begins and is seen meanwhile counts."""
        self.phase = phase
        yield
        self.phase = ""

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def count(self, phase: str) -> int:
        return len(self._ms[phase])

    def median_ms(self, phase: str) -> float:
        return statistics.median(self._ms[phase])

    def p99_ms(self, phase: str) -> float:
        return p99(self._ms[phase])


@contextmanager
def gossip_on(wan: Wan, folder: Path) -> Iterator[Gossip]:
    """Two processes of gossip alone, beside the hubs and with identities of their own."""
    folder.mkdir()
    make_federation(Home(folder), {name: (wan.address(name), GOSSIP_PORT) for name in wan.names}, now=datetime.now(UTC))
    nodes = Nodes(wan, folder)
    try:
        for name in wan.names:
            nodes.start(name)
        for number, name in enumerate(wan.names):
            if nodes.update(name, f"hello-{number}") is None:
                raise TimeoutError(f"not all have heard of {name}")
        gossip = Gossip(nodes, wan.names)
        try:
            yield gossip
        finally:
            gossip.stop()
    finally:
        nodes.close()


def p99(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


def show_gossip(gossip: Gossip) -> None:
    for phase in ("idle", "raw TCP", "transfer"):
        print(
            f"  gossip, {phase}: median {gossip.median_ms(phase):.1f} ms, p99 {gossip.p99_ms(phase):.1f} ms "
            f"({gossip.count(phase)} updates)",
            flush=True,
        )


def congestion_control() -> str:
    return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
