"""Does content survive kill -9? Hub, agent and uploader are killed in turn, at random moments, while all of them work.

Each round uploads a folder with `harch data add`, runs code that leaves an artifact, removes an older object and
collects what nobody needs, all at once; then one process is killed and started again. After each round everything that
was acknowledged is read back and compared; in the end, and once more when all is removed, the store may hold no chunk
that no object needs.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from bytes_attempts import client_of
from bytes_files import MB, Noise, Text, size_of, write_file, wrong_bytes
from bytes_goals import KILLS, LEAKED, WRONG
from bytes_hub import HUB, TAG, QuietHub
from harch.base.errors import HarchError
from harch.cli.content.fetching import fetch_data
from harch.cli.content.sending import HubRemote
from harch.content.exchange import read_tree
from harch.sdk import Client
from harch.testing.samples import TINY_FLEET_TOML
from harch.wire.content import TreeView
from verdict import Verdict

VICTIMS = ("hub", "agent", "uploader")
AGENT = "agent"
KILL_AFTER_S = (0.05, 2.5)
LIVE_MAX = 8  # objects that are kept; the oldest are removed
GRACE = "5s"  # chunks younger than this are spared while uploads go on
ENDS_WITHIN_S = 180.0
NOISE_FILES, NOISE_MB_MAX, TEXT_FILES = 3, 3, 20
ARTIFACT_BYTES = 2 * MB
TRAIN = """\
import pathlib, random, time
out = pathlib.Path("out")
out.mkdir()
(out / "model.bin").write_bytes(random.Random({seed}).randbytes({size}))
time.sleep({seconds})
"""


def measure(verdict: Verdict, chosen: argparse.Namespace) -> None:
    began_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="harch-bytes-kills-") as folder,
        QuietHub(TINY_FLEET_TOML, HUB, _made(Path(folder) / "home"), agents={AGENT: ()}) as world,
    ):
        rounds = Rounds(world, Path(folder), chosen.seed)
        for number in range(chosen.kills):
            rounds.one(number)
        leaked = rounds.leaked()
    found = rounds.found
    kills = ", ".join(f"{victim} {count}" for victim, count in found.kills.items())
    print(
        f"{chosen.kills} rounds in {time.monotonic() - began_s:.0f} s; killed: {kills}; acknowledged: "
        f"{found.uploads} uploads, {found.artifacts} artifacts, {found.removals} removals, {found.collections} "
        f"collections; read back {found.bytes_read / MB:,.0f} MB in {found.objects_read} objects",
        flush=True,
    )
    KILLS.met(verdict, sum(found.kills.values()))
    WRONG.met(verdict, found.wrong)
    LEAKED.met(verdict, leaked)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@dataclass
class Found:
    kills: Counter[str] = field(default_factory=Counter)
    uploads: int = 0
    artifacts: int = 0
    removals: int = 0
    collections: int = 0
    objects_read: int = 0
    bytes_read: int = 0
    wrong: int = 0  # bytes


class Rounds:
    """`live`: acknowledged objects by name, with the files that they were made of."""

    def __init__(self, world: QuietHub, folder: Path, seed: int) -> None:
        self.found = Found()
        self._world, self._folder, self._chance = world, folder, random.Random(seed)
        self._noise, self._text = Noise(seed), Text(seed)
        self._live: dict[str, Path] = {}
        self._gone: list[str] = []
        self._running: dict[str, tuple[str, Path]] = {}  # work that was acknowledged: its artifact's name and files
        self._shared = folder / "shared.bin"
        write_file(self._shared, 2 * MB, self._noise)
        self._environment = {**world.environment, "XDG_CACHE_HOME": str(folder / "cache"), "NO_COLOR": "1"}

    def one(self, number: int) -> None:
        victim = VICTIMS[number % len(VICTIMS)]
        name, files = f"data-{number}", self._upload_of(number)
        code, made = self._code_of(number)
        add = self._start("data", "add", name, "--files", str(files), *TAG)
        words = ("--name", f"work-{number}", "--code", str(code), "--artifact", f"made-{number}=out")
        run = self._start("run", "-d", *words, "--", "python3", "train.py")
        oldest = list(self._live)[: max(0, len(self._live) - LIVE_MAX)]
        remove = self._start("data", "rm", *oldest) if oldest else None
        collect = self._start("content", "collect", "--grace", GRACE)
        time.sleep(self._chance.uniform(*KILL_AFTER_S))
        self._kill(victim, add)
        said = {one: one.communicate(timeout=ENDS_WITHIN_S) for one in (add, run, remove, collect) if one is not None}
        if add.returncode == 0:
            self._live[name] = files
            self.found.uploads += 1
        if run.returncode == 0:
            self._running[said[run][0].split()[0]] = (f"made-{number}", made)
        for one in oldest:
            shutil.rmtree(self._live.pop(one))
            if remove is not None and remove.returncode == 0:  # else nobody knows
                self._gone.append(one)
                self.found.removals += 1
        self.found.collections += collect.returncode == 0
        self._take_artifacts()
        before = self.found.wrong
        self._read_back()
        ended = ", ".join(str(one.returncode) for one in (add, run, remove, collect) if one is not None)
        if number % 10 == 9 or self.found.wrong > before:
            print(f"  round {number + 1}: killed the {victim}; commands ended with {ended}; ", end="")
            print(f"{len(self._live)} objects, {self.found.wrong} wrong bytes", flush=True)

    def leaked(self) -> int:
        """Chunks that no object needs, after a collection: now, and when there are no objects any more."""
        client = client_of(self._world)
        self._finish_all(client)
        kept = self._leaked_now(client)
        for data in client.data.list():
            client.data.remove(data.id)
        empty = self._leaked_now(client)
        left = size_of(self._world.home / HUB / "content")
        checked = client.content.check()
        print(f"  leaked chunks: {kept}, and {empty} when all was removed; {left / MB:.2f} MB are on the disk then")
        self.found.wrong += len(checked.damaged) + len(checked.missing)
        return max(kept, empty)

    def _leaked_now(self, client: Client) -> int:
        needed: set[bytes] = set()
        for data in client.data.list():
            if data.content:
                view = client.content.tree(data.id)
                if not isinstance(view, TreeView):
                    raise TypeError(f"{data.name} is not here")
                root, entries = read_tree(view.digest, HubRemote(client, view.ref))
                needed |= {bytes.fromhex(view.digest), *(chunk.id for chunk in root.manifest)}
                needed |= {chunk.id for entry in entries for chunk in entry.chunks}
        self._harch("content", "collect", "--grace", "0s")
        return sum(tenant.chunks for tenant in client.content.status().tenants) - len(needed)

    def _finish_all(self, client: Client) -> None:
        for work in client.workloads.list(per_page=100).items:
            if not work.is_final:
                client.workloads.wait(work.id)

    # What a round does

    def _upload_of(self, number: int) -> Path:
        """New noise, text, and a file that all uploads have in common."""
        files = self._folder / "uploads" / str(number)
        for part in range(NOISE_FILES):
            write_file(files / f"noise-{part}.bin", self._chance.randint(1, NOISE_MB_MAX * MB), self._noise)
        for part in range(TEXT_FILES):
            write_file(files / f"text/{part}.txt", self._chance.randint(1, 40_000), self._text)
        shutil.copyfile(self._shared, files / "shared.bin")
        return files

    def _code_of(self, number: int) -> tuple[Path, Path]:
        """A folder of code, and what it will leave."""
        code, made = self._folder / "code" / str(number), self._folder / "made" / str(number)
        code.mkdir(parents=True)
        made.mkdir(parents=True)
        seconds = self._chance.uniform(0, 1.5)
        (code / "train.py").write_text(TRAIN.format(seed=number, size=ARTIFACT_BYTES, seconds=f"{seconds:.2f}"))
        write_file(code / "lib.bin", self._chance.randint(1, MB), self._noise)
        (made / "model.bin").write_bytes(random.Random(number).randbytes(ARTIFACT_BYTES))
        return code, made

    def _kill(self, victim: str, uploader: subprocess.Popen[str]) -> None:
        self.found.kills[victim] += 1
        if victim == "hub":
            self._world.kill_hub()
            self._world.start_hub()
        elif victim == "agent":
            self._world.kill_agent(AGENT)
            self._world.start_agent(AGENT)
        else:
            uploader.kill()
        self._world.wait_for_agents()

    def _take_artifacts(self) -> None:
        """Work that has ended well has left its artifact; that which runs still is looked at in the next round."""
        client = client_of(self._world)
        for work_id, (name, made) in list(self._running.items()):
            work = client.workloads.get(work_id)
            if not work.is_final:
                continue
            del self._running[work_id]
            kept = [one.name for one in client.workloads.artifacts(work_id)]
            if work.status == "completed" and name in kept:
                self._live[name] = made
                self.found.artifacts += 1
            else:
                self.found.wrong += size_of(made)
                ends = "; ".join(end.detail or end.reason for end in work.task_ends)
                print(f"  lost: the artifact of {work.name}, {work.status}: {ends}", file=sys.stderr, flush=True)
                lines = self._harch("events", "--tail", "400").splitlines()
                print(*(line for line in lines if work.id in line), sep="\n", file=sys.stderr, flush=True)

    def _read_back(self) -> None:
        client = client_of(self._world)
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            for ref, files in self._live.items():
                there = Path(name) / ref
                there.mkdir()
                try:
                    fetch_data(client, ref, there, as_json=True)
                except HarchError as error:
                    print(f"  lost: {ref}: {error.code} {error.message}", file=sys.stderr, flush=True)
                wrong = wrong_bytes(files, there)
                if wrong:
                    print(f"  wrong: {wrong} bytes of {ref}", file=sys.stderr, flush=True)
                self.found.wrong += wrong
                self.found.objects_read += 1
                self.found.bytes_read += size_of(there)
        for ref in self._gone:
            try:
                client.data.get(ref)
            except HarchError:
                continue
            print(f"  {ref} was removed, and is there again", file=sys.stderr, flush=True)
            self.found.wrong += 1

    def _start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "harch", *words],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _harch(self, *words: str) -> str:
        process = self._start(*words)
        output, errors = process.communicate(timeout=ENDS_WITHIN_S)
        if process.returncode:
            raise RuntimeError(f"`harch {' '.join(words)}` exits with {process.returncode}: {output}{errors}")
        return output
