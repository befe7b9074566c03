"""What does the next version of a folder cost? `harch data add` and `restic backup` in turns, rsync beside.

A folder of 500 MB is stored; then 1 MB is inserted in the middle of its file of 50 MB, and it is stored again. Both
programs have just stored the version before, so both have their caches, and the files are in the page cache. How much
is sent again depends on where the cuts happen to lie, by a factor of three: so there are several rounds, each with
another large file, and what counts is the sum of all.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from bytes_files import MB, Noise, count_of, insert_in_the_middle, size_of, write_file, write_mixed
from bytes_goals import EDITED_BYTES, EDITED_CPU
from bytes_hub import Sender, Sent, sender
from bytes_programs import Ran, Restic, is_there, rsync
from verdict import Verdict

FILES_PER_MB = 2
LARGE_SHARE = 10  # the file that changes is a tenth of the folder


def measure(verdict: Verdict, chosen: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="harch-dedupe-") as name:
        folder = Path(name)
        files = folder / "corpus"
        large = write_mixed(
            files,
            megabytes=chosen.megabytes,
            files=FILES_PER_MB * chosen.megabytes,
            large_megabytes=chosen.megabytes // LARGE_SHARE,
            seed=chosen.seed,
        )
        print(
            f"{count_of(files):,} files, {size_of(files) / MB:.0f} MB, one of them {large.stat().st_size / MB:.0f} MB"
        )
        with sender(folder / "hub") as user:
            stores = Stores(folder, files, user)
            stores.first()
            rounds = [stores.edited(large, number, chosen.seed) for number in range(chosen.rounds)]
    theirs = [(grown, ran) for _, grown, ran in rounds if ran is not None]
    if theirs:
        ours = [sent for sent, _, _ in rounds]
        sent, grown = sum(one.bytes_up for one in ours), sum(grown for grown, _ in theirs)
        cpu_s, their_cpu_s = sum(one.cpu_s for one in ours), sum(ran.cpu_s for _, ran in theirs)
        print(f"{len(ours)} rounds: {sent / MB:.1f} MB and {cpu_s:.2f} s of CPU;", end=" ")
        print(f"{Restic.version()} {grown / MB:.1f} MB and {their_cpu_s:.2f} s", flush=True)
        EDITED_BYTES.met(verdict, sent / grown)
        EDITED_CPU.met(verdict, cpu_s / their_cpu_s)


class Stores:
    """The same folder with HarchOS, restic and rsync."""

    def __init__(self, folder: Path, files: Path, user: Sender) -> None:
        self._files, self._copy, self._user = files, folder / "copy", user
        self._restic = Restic(folder / "restic") if is_there("restic") else None
        self._has_rsync = is_there("rsync")
        self._versions = 0

    def first(self) -> None:
        show("HarchOS, first version", self._add())
        if self._restic is not None:
            grown, ran = self._backup()
            print(f"  restic, first version: {grown / MB:.2f} MB, {ran.cpu_s:.2f} s of CPU")
        if self._has_rsync:
            print(f"  rsync, first version: {rsync(self._files, self._copy) / MB:.2f} MB", flush=True)

    def edited(self, large: Path, number: int, seed: int) -> tuple[Sent, int, Ran | None]:
        """What HarchOS sends, what restic stores, and what that costs it."""
        noise = Noise(seed * 1000 + number)
        write_file(large, large.stat().st_size if number == 0 else large.stat().st_size - MB, noise)
        self._add()
        if self._restic is not None:
            self._backup()
        if self._has_rsync:
            rsync(self._files, self._copy)
        insert_in_the_middle(large, MB, noise)
        sent = self._add()
        show(f"round {number + 1}", sent)
        grown, ran = 0, None
        if self._restic is not None:
            grown, ran = self._backup()
            print(f"    restic {grown / MB:.2f} MB, {ran.cpu_s:.2f} s of CPU", end="")
        if self._has_rsync:
            print(f"; rsync {rsync(self._files, self._copy) / MB:.2f} MB, both ways together", end="")
        print(flush=True)
        return sent, grown, ran

    def _add(self) -> Sent:
        self._versions += 1
        return self._user.add(f"corpus-{self._versions}", self._files)

    def _backup(self) -> tuple[int, Ran]:
        """By how much its repository has grown."""
        if self._restic is None:
            raise RuntimeError("there is no restic")
        before = self._restic.bytes
        ran = self._restic.backup(self._files)
        return self._restic.bytes - before, ran


def show(what: str, sent: Sent) -> None:
    print(
        f"  {what}: {sent.bytes_up / MB:.2f} MB sent, {sent.cpu_s:.2f} s of CPU (command {sent.client_cpu_s:.2f}, hub "
        f"{sent.hub_cpu_s:.2f}); it says: {sent.said}",
        flush=True,
    )
