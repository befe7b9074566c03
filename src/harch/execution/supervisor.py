"""Who watches one task for its whole life? A process of its own, so that the agent may die and come back.

Run as `python -I -S supervisor.py TASK_DIR`; standard library only, to start fast. In TASK_DIR it reads `spec.json`,
`stop.json` and `lease` (see lease_watch.py), and writes `lock` (held for life, with its pid), `started` (created once:
what makes an execution start at most once), `running.json`, `ended.json` and `log/`. The same facts go as JSON lines to
its standard output, for the agent that is its parent. SIGTERM stops the task, SIGUSR1 pauses it, SIGUSR2 resumes it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import sys

if __name__ == "__main__":  # isolated mode has no path to us; the standard library stays first
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from harch.base.seal import FIELD
from harch.execution.records import Records
from harch.execution.watch import TaskWatch

EXIT_REFUSED = 3  # another supervisor has, or had, this task


def main(task_dir: str) -> int:
    try:
        # Everything below is relative: a folder that was voided and made anew under our feet cannot be mixed up.
        os.chdir(task_dir)
        lock = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return EXIT_REFUSED
    records = Records()
    try:
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        with open("spec.json", "rb") as file:
            spec = json.loads(FIELD.unseal(file.read()))
        records.reserve()
        started = os.open("started", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.fsync(started)
        records.sync_folder()  # after a power cut, too, the marker is there before the command was
    except FileExistsError:
        return EXIT_REFUSED
    except OSError as error:
        # Nothing ran. Without a marker on disk the promise "at most once" would not hold, so nothing may.
        code = "E1002" if error.errno == errno.ENOSPC else "E0307"
        records.end("not_started", detail=f"{code} the task folder cannot be written: {error.strerror}")
        return EXIT_REFUSED
    except ValueError as damage:
        records.end("not_started", detail=f"E1030 what to run is not as it was written: {damage}")
        return EXIT_REFUSED
    TaskWatch(spec, records).run()
    return 0


if __name__ == "__main__":
    os._exit(main(sys.argv[1]))  # no teardown: the agent waits for this exit
