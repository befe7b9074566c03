"""How far has this user come in the tour of a federation? One small file beside that of contexts, so that it is found
from any folder and for remote federations as well.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import msgspec

from harch.base.errors import HarchError
from harch.cli.tour.stations import Station

FILE_BYTES_MAX = 256 * 1024
FEDERATIONS_MAX = 50  # the longest untouched goes first
_TAG_BYTES = 3  # as in `tour-5f3a9c`: two tours of one federation hardly ever share it


class TourProgress(msgspec.Struct, frozen=True):
    """`passed` need not be shown again. `tag` begins the names of what the latest call made.

    Each call has a tag of its own, as names of data are taken for good.
    """

    tag: str
    passed: tuple[str, ...] = ()

    def after(self, station: str) -> TourProgress:
        return self if station in self.passed else TourProgress(self.tag, (*self.passed, station))

    def resumed(self, before: TourProgress) -> TourProgress:
        return TourProgress(self.tag, before.passed)

    def todo(self, stations: tuple[Station, ...]) -> tuple[str, ...]:
        return tuple(station.name for station in stations if station.name not in self.passed)


def new_progress() -> TourProgress:
    return TourProgress(f"tour-{secrets.token_hex(_TAG_BYTES)}")


class ProgressFile:
    """By federation. A file that cannot be read is as good as none: the tour begins anew."""

    def __init__(self, path: Path, federation: str) -> None:
        self._path, self._federation = path, federation

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """One tour per user at a time: a second one would stop the work of the first. Raises E0304."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._path.with_suffix(".lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                hint = "end it with q in its terminal, or wait"
                raise HarchError("E0304", "another `harch tour` of yours is running", hint=hint) from error
            yield

    def read(self) -> TourProgress | None:
        return self._all().get(self._federation)

    def write(self, progress: TourProgress | None) -> None:
        """None: the tour is over, or begins anew. Raises E0202 where the file cannot be written."""
        known = {name: one for name, one in self._all().items() if name != self._federation}
        if progress is not None:
            known[self._federation] = progress
        kept = dict(list(known.items())[-FEDERATIONS_MAX:])
        beside = self._path.with_suffix(".new")
        try:
            with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(msgspec.json.encode(kept))
            beside.replace(self._path)
        except OSError as error:
            raise HarchError("E0202", f"{self._path} cannot be written: {error.strerror}") from error

    def _all(self) -> dict[str, TourProgress]:
        try:
            with self._path.open("rb") as file:
                return msgspec.json.decode(file.read(FILE_BYTES_MAX), type=dict[str, TourProgress])
        except (OSError, msgspec.DecodeError):
            return {}
