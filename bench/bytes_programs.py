"""What do restic, borg and rsync send and use for the same files? Run as their users run them, with their defaults."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bytes_files import size_of


@dataclass(frozen=True)
class Ran:
    """`cpu_s`: user and system time of the process and of those that it waited for."""

    cpu_s: float
    output: str
    errors: str


def run(words: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Ran:
    """Raises RuntimeError if it fails."""
    with subprocess.Popen(
        words, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        before = _cpu_of_children_s()
        output, errors = process.communicate()
        cpu_s = _cpu_of_children_s() - before
    if process.returncode:
        raise RuntimeError(f"`{' '.join(words)}` exits with {process.returncode}: {output}{errors}")
    return Ran(cpu_s, output, errors)


def _cpu_of_children_s() -> float:
    used = os.times()
    return used.children_user + used.children_system


def is_there(program: str) -> bool:
    if shutil.which(program) is None:
        print(f"{program} is not beside: apt-get install {program}", file=sys.stderr)
        return False
    return True


class Restic:
    """One repository on this disk, with the cache of its user."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        password = folder / "password"
        password.write_text("a password in a file\n")
        self._folder = folder
        self._words = ["restic", "--repo", str(folder / "repository"), "--password-file", str(password)]
        self._words += ["--cache-dir", str(folder / "cache")]
        self.told = run([*self._words, "init"]).output

    def backup(self, what: Path) -> Ran:
        return run([*self._words, "backup", str(what)])

    @property
    def bytes(self) -> int:
        return size_of(self._folder / "repository")

    @staticmethod
    def version() -> str:
        return " ".join(run(["restic", "version"]).output.split()[:2])


class Borg:
    """As `Restic`. `compression` is its own default, or ours."""

    def __init__(self, folder: Path, compression: str) -> None:
        folder.mkdir(parents=True)
        self._repository, self._compression = folder / "repository", compression
        home = {"BORG_BASE_DIR": str(folder), "BORG_PASSPHRASE": "a passphrase"}
        self._environment = {**os.environ, **home}
        run(["borg", "init", "--encryption", "repokey-blake2", str(self._repository)], env=self._environment)

    def create(self, name: str, what: Path) -> Ran:
        words = ["borg", "create", "--compression", self._compression, f"{self._repository}::{name}", str(what)]
        return run(words, env=self._environment)

    @staticmethod
    def version() -> str:
        return run(["borg", "--version"]).output.strip()


def rsync(what: Path, copy: Path) -> int:
    """Bytes that it sends and receives, as if the copy were on another machine."""
    told = run(["rsync", "-a", "--delete", "--no-whole-file", "--stats", f"{what}/", f"{copy}/"]).output
    found = {name: int(count.replace(",", "")) for name, count in re.findall(r"Total bytes (\w+): ([\d,]+)", told)}
    return found["sent"] + found["received"]
