"""Which files are open? Those that were asked for lately; each is opened once, whoever asks."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

F = TypeVar("F")


class OpenFiles(Generic[F]):
    """Files by name. Beyond `files_max` those that were asked for longest ago are closed."""

    def __init__(self, open_file: Callable[[Path], F], files_max: int) -> None:
        self._open_file, self._files_max = open_file, files_max
        self._open: OrderedDict[str, F] = OrderedDict()
        self._lock = threading.Lock()

    def at(self, stem: Path) -> F:
        with self._lock:
            found = self._open.get(stem.name)
            if found is not None:
                self._open.move_to_end(stem.name)
                return found
        opened = self._open_file(stem)
        with self._lock:
            self._open[stem.name] = opened
            if len(self._open) > self._files_max:
                self._open.popitem(last=False)
        return opened

    def forget(self, name: str) -> None:
        with self._lock:
            self._open.pop(name, None)
