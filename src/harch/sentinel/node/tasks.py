"""What does running work use? Processor and memory of its processes, summed by task.

Processes of a task share a session. What a process used before it ended is not counted once it is gone: the figures are
samples, not a bill.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from harch.sentinel.node.readings import Reading, series

_SESSION, _USER, _SYSTEM, _RSS = 3, 11, 12, 21  # fields of /proc/PID/stat behind the name, counted from the state


class RunningTask(NamedTuple):
    workload: str
    pid: int
    type: str = ""  # training, inference, ...; empty if the hub did not say


class _Use(NamedTuple):
    cpu_s: float
    memory_bytes: int


class TaskUsage:
    """Reads all processes once and adds them up by session. `tasks` says which work runs here."""

    def __init__(
        self, tasks: Callable[[], Iterable[RunningTask]], monotonic_s: Callable[[], float], proc: Path = Path("/proc")
    ) -> None:
        self._tasks, self._monotonic_s, self._proc = tasks, monotonic_s, proc
        self._ticks, self._page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
        self._before: dict[str, tuple[float, float]] = {}  # by workload: when, and its CPU seconds then

    def read(self) -> Iterator[Reading]:
        tasks = list(self._tasks())
        if not tasks:
            self._before.clear()
            return
        sessions, session_of = self._processes()
        used: dict[str, _Use] = {}
        types: dict[str, str] = {}
        for task in tasks:
            use = sessions.get(session_of.get(task.pid, -1), _Use(0.0, 0))
            known = used.get(task.workload, _Use(0.0, 0))
            types[task.workload] = task.type
            used[task.workload] = _Use(known.cpu_s + use.cpu_s, known.memory_bytes + use.memory_bytes)
        now_s = self._monotonic_s()
        for workload, use in used.items():
            pairs = {"job": "harchos-workload", "workload_name": workload, "type": types[workload]}
            yield Reading(series("harchos_workload_memory_used_bytes", pairs), float(use.memory_bytes))
            then = self._before.get(workload)
            if then is not None and now_s > then[0]:
                cores = max(0.0, use.cpu_s - then[1]) / (now_s - then[0])
                yield Reading(series("harchos_workload_cpu_usage_cores", pairs), cores)
        self._before = {workload: (now_s, use.cpu_s) for workload, use in used.items()}

    def _processes(self) -> tuple[dict[int, _Use], dict[int, int]]:
        """Use by session, and the session of each process."""
        sessions: dict[int, _Use] = {}
        session_of: dict[int, int] = {}
        for entry in os.listdir(self._proc):
            if not entry.isdecimal():
                continue
            try:
                fields = (self._proc / entry / "stat").read_text().rpartition(")")[2].split()
                session = int(fields[_SESSION])
                cpu_s = (int(fields[_USER]) + int(fields[_SYSTEM])) / self._ticks
                memory = int(fields[_RSS]) * self._page
            except (OSError, ValueError, IndexError):
                continue  # it has just ended
            known = sessions.get(session, _Use(0.0, 0))
            sessions[session] = _Use(known.cpu_s + cpu_s, known.memory_bytes + memory)
            session_of[int(entry)] = session
        return sessions, session_of
