"""Does a store notice that its disk lied? Flips a bit or cuts a file, opens the store again, and compares.

A fault is harmless if all that is read is as before, and found if the product said so: an error, a line in its log, or
a file that was set aside. A difference without any of these is silent, and the one thing that must not be.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from harch.base.errors import HarchError
from harch.base.state_files import set_aside_files

FLIPS = 0.7  # of all faults; the others cut a file off
KEEPS_TIME = 0.5  # of all faults: a disk that forgets does not change when a file was written, a program does
_NO_CONTENT = (".lock", "-shm", "lock")


class FaultVerdict(StrEnum):
    HARMLESS = "harmless"
    FOUND = "found"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class FaultyStore:
    """A kind of store. `make` fills a folder as a killed process leaves it; `read` opens it as a start does, and gives
    back all that is in it as a value that can be compared. HarchError and sqlite3.Error from `read` are refusals."""

    name: str
    make: Callable[[Path], None]
    read: Callable[[Path], object]


@dataclass(frozen=True, slots=True)
class StoreFault:
    file: str
    size: int
    place: int  # of the byte with the flipped bit, or where the file ends now
    bit: int | None = None  # None: the file is cut off
    keeps_time: bool = True

    def __str__(self) -> str:
        what = f"bit {self.bit} of byte {self.place} flipped" if self.bit is not None else f"cut off at {self.place}"
        return f"{self.file} ({self.size} bytes): {what}"

    def inject(self, folder: Path) -> None:
        path = folder / self.file
        before = path.stat()
        if self.bit is None:
            os.truncate(path, self.place)
        else:
            with path.open("r+b") as file:
                file.seek(self.place)
                byte = file.read(1)[0]
                file.seek(self.place)
                file.write(bytes((byte ^ (1 << self.bit),)))
        if self.keeps_time:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@dataclass(frozen=True, slots=True)
class Tried:
    store: str
    fault: StoreFault
    verdict: FaultVerdict
    reported: str  # the first thing that the product said


def as_killed(folder: Path, fill: Callable[[Path], Callable[[], None]]) -> None:
    """Fills another folder and takes a copy while everything is open there, as if the process were killed then.

    `fill` gives back what closes it."""
    live = folder.with_name(f"{folder.name}-live")
    live.mkdir()
    close = fill(live)
    shutil.rmtree(folder)
    shutil.copytree(live, folder)
    close()
    shutil.rmtree(live)


class StoreBench:
    """One store, made once; each fault hits a copy of it."""

    def __init__(self, store: FaultyStore, folder: Path) -> None:
        self.store = store
        self._made, self._copy = folder / "made", folder / "copy"
        self._made.mkdir(parents=True)
        store.make(self._made)
        self._copy_anew()
        with _listening() as reported:
            self._expected = store.read(self._copy)
            self._copy_anew()
            is_same = store.read(self._copy) == self._expected
        if reported or not is_same:
            raise AssertionError(f"{store.name} is not read twice alike before anything is damaged: {reported[:1]}")

    def files(self) -> list[Path]:
        found = (path.relative_to(self._made) for path in self._made.rglob("*") if path.is_file())
        return sorted(
            path for path in found if not path.name.endswith(_NO_CONTENT) and (self._made / path).stat().st_size
        )

    def random_fault(self, rng: random.Random) -> StoreFault:
        """Any file is as likely as any other, so that small ones are not forgotten beside large ones."""
        path = rng.choice(self.files())
        size = (self._made / path).stat().st_size
        keeps_time = rng.random() < KEEPS_TIME
        if rng.random() < FLIPS:
            return StoreFault(str(path), size, rng.randrange(size), rng.randrange(8), keeps_time)
        return StoreFault(str(path), size, rng.randrange(size), None, keeps_time)

    def attempt(self, fault: StoreFault) -> Tried:
        self._copy_anew()
        fault.inject(self._copy)
        with _listening() as reported:
            try:
                found: object = self.store.read(self._copy)
            except (HarchError, sqlite3.Error) as refused:
                reported.append(str(refused))
                found = None
        reported += [f"set aside: {path.name}" for path in set_aside_files(self._copy)]
        if reported:
            return Tried(self.store.name, fault, FaultVerdict.FOUND, reported[0])
        is_equal = found == self._expected
        return Tried(self.store.name, fault, FaultVerdict.HARMLESS if is_equal else FaultVerdict.SILENT, "")

    def _copy_anew(self) -> None:
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self._made, self._copy)
        for path in self._copy.rglob("*-shm"):  # the memory of a process that is gone
            path.unlink()


def attempts(benches: Sequence[StoreBench], rng: random.Random, count: int) -> Iterator[Tried]:
    """So many faults, one store after the other in turn."""
    for number in range(count):
        bench = benches[number % len(benches)]
        yield bench.attempt(bench.random_fault(rng))


class _Ear(logging.Handler):
    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(record.getMessage())


@contextmanager
def _listening() -> Iterator[list[str]]:
    """What the product logs as an error meanwhile, and no warning: those tell of what crashes leave."""
    messages: list[str] = []
    ear, root = _Ear(messages), logging.getLogger("harch")
    root.addHandler(ear)
    propagates, root.propagate = root.propagate, False
    try:
        yield messages
    finally:
        root.removeHandler(ear)
        root.propagate = propagates
