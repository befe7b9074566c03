"""What did a worker print? Pages of its log file, as a hub shows them."""

from __future__ import annotations

import re
from pathlib import Path

from harch.base.errors import HarchError
from harch.hub.views import LogPage

LOGS = "log"  # the folder of a pipeline that has them
KEPT_MAX = 20  # of workers that are gone
_WORKER = re.compile(r"[a-z]+-[0-9]{1,9}\Z")


def read_page(folder: Path, worker: str, offset: int, bytes_max: int) -> LogPage:
    """From `offset`, or from so many bytes before the end if it is negative. Raises E0710."""
    path = folder / LOGS / f"{worker}.log"
    if not _WORKER.match(worker) or not path.is_file():
        known = sorted(found.stem for found in (folder / LOGS).glob("*.log"))
        raise HarchError(
            "E0710",
            f"no worker `{worker[:64]}` has printed anything",
            hint=f"workers: {', '.join(known) or 'none yet'}",
        )
    size = path.stat().st_size
    start = max(0, size + offset) if offset < 0 else min(offset, size)
    with path.open("rb") as file:
        file.seek(start)
        data = file.read(bytes_max)
    return LogPage(data=data, offset=start, next_offset=start + len(data), eof=False)


def forget_old(folder: Path, named: set[Path]) -> None:
    """Deletes the oldest of those that nobody on the roster writes to."""
    logs = sorted((folder / LOGS).glob("*.log"), key=lambda path: path.stat().st_mtime)
    for path in [path for path in logs if path not in named][:-KEPT_MAX]:
        path.unlink(missing_ok=True)
