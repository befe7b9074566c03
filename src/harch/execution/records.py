"""What does a supervisor leave behind? Files for later, lines on its standard output for now. Standard library only."""

from __future__ import annotations

import contextlib
import json
import os
import time

from harch.base.seal import FIELD
from harch.execution import kernel

RECORD_BYTES = 4096  # reserved on disk at the start, so that a full disk cannot swallow the end
DETAIL_CHARS_MAX = 500


class Records:
    """Written into the current folder, which is the task's."""

    def reserve(self) -> None:
        fd = os.open("ended.tmp", os.O_WRONLY | os.O_CREAT, 0o600)
        os.posix_fallocate(fd, 0, RECORD_BYTES)
        os.close(fd)

    def running(self, pid: int, pgid: int, sandbox: str) -> None:
        record: dict[str, object] = {"pid": pid, "pgid": pgid, "start_ticks": kernel.start_ticks(pid)}
        record |= {"started_at": _wall_s(), "sandbox": sandbox}
        # Not synced: after a power cut nothing runs, whatever this file says. On a full disk the line below must do.
        with contextlib.suppress(OSError):
            with open("running.tmp", "wb") as file:
                file.write(FIELD.seal(json.dumps(record).encode()))
            os.rename("running.tmp", "running.json")
        _write_line({"state": "running", **record})

    def end(
        self,
        reason: str,
        exit_code: int | None = None,
        signum: int | None = None,
        *,
        detail: str = "",
        log_bytes_dropped: int = 0,
    ) -> None:
        record: dict[str, object] = {"reason": reason, "exit_code": exit_code, "signal": signum, "ended_at": _wall_s()}
        record |= {"detail": detail[:DETAIL_CHARS_MAX], "log_bytes_dropped": log_bytes_dropped}
        with contextlib.suppress(OSError):
            fd = os.open("ended.tmp", os.O_WRONLY | os.O_CREAT, 0o600)
            data = FIELD.seal(json.dumps(record).encode())
            os.pwrite(fd, data, 0)
            os.ftruncate(fd, len(data))
            os.fsync(fd)
            os.rename("ended.tmp", "ended.json")
            self.sync_folder()
        _write_line({"state": "ended", **record})

    def sync_folder(self) -> None:
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(fd)
        os.close(fd)


def _write_line(record: dict[str, object]) -> None:
    with contextlib.suppress(OSError):  # the agent is gone; it will read the files
        os.write(1, json.dumps(record).encode() + b"\n")


def _wall_s() -> float:
    return time.time()  # noqa: TID251 - a process of its own without harch.base; written down for people, never compared
