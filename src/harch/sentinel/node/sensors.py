"""How are the machine and its running work?

Processors, memory, disks and network from /proc, and what each task uses, under the names that dashboards know.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from harch.sentinel.model.labels import METRIC_NAME, Labels, labels


class SensorReading(NamedTuple):
    labels: Labels
    value: float


def series(name: str, pairs: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> Labels:
    items = pairs.items() if isinstance(pairs, Mapping) else pairs
    return labels([(METRIC_NAME, name), *items])


# How is the machine? Processors, memory, disks and network from /proc, under the names of the usual node exporter.


_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_MEMORY = {
    "MemTotal": "node_memory_MemTotal_bytes",
    "MemFree": "node_memory_MemFree_bytes",
    "MemAvailable": "node_memory_MemAvailable_bytes",
    "Buffers": "node_memory_Buffers_bytes",
    "Cached": "node_memory_Cached_bytes",
    "SwapTotal": "node_memory_SwapTotal_bytes",
    "SwapFree": "node_memory_SwapFree_bytes",
}
_REAL_FILESYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "nfs", "nfs4", "lustre", "ceph"})
_SECTOR_BYTES = 512
_DEVICES_MAX = 256


class Host:
    """Reads the machine's figures. `proc` is /proc; tests give a recorded one."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._ticks = os.sysconf("SC_CLK_TCK")

    def read(self) -> Iterator[SensorReading]:
        """What cannot be read is left out: a sensor that is missing is no reason to lose the others."""
        for part in (self._processors, self._memory, self._network, self._disks, self._filesystems, self._load):
            try:
                yield from part()
            except (OSError, ValueError, IndexError):
                continue

    def _processors(self) -> Iterator[SensorReading]:
        for line in self._lines("stat"):
            words = line.split()
            if words[0].startswith("cpu") and words[0] != "cpu":
                for mode, ticks in zip(_MODES, words[1:], strict=False):
                    yield SensorReading(_cpu(words[0][3:], mode), int(ticks) / self._ticks)
            elif words[0] == "btime":
                yield SensorReading(_plain("node_boot_time_seconds"), float(words[1]))

    def _memory(self) -> Iterator[SensorReading]:
        for line in self._lines("meminfo"):
            name, _, rest = line.partition(":")
            if name in _MEMORY:
                yield SensorReading(_plain(_MEMORY[name]), float(rest.split()[0]) * 1024)

    def _network(self) -> Iterator[SensorReading]:
        for line in self._lines("net/dev")[2 : 2 + _DEVICES_MAX]:
            device, _, rest = line.partition(":")
            words = rest.split()
            device = device.strip()
            if device == "lo":
                continue
            yield SensorReading(_of_device("node_network_receive_bytes_total", device), float(words[0]))
            yield SensorReading(_of_device("node_network_receive_errs_total", device), float(words[2]))
            yield SensorReading(_of_device("node_network_transmit_bytes_total", device), float(words[8]))
            yield SensorReading(_of_device("node_network_transmit_errs_total", device), float(words[10]))

    def _disks(self) -> Iterator[SensorReading]:
        for line in self._lines("diskstats")[:_DEVICES_MAX]:
            words = line.split()
            device = words[2]
            if device.startswith(("loop", "ram", "dm-")) or not any(word != "0" for word in words[3:]):
                continue
            yield SensorReading(_of_device("node_disk_read_bytes_total", device), float(words[5]) * _SECTOR_BYTES)
            yield SensorReading(_of_device("node_disk_written_bytes_total", device), float(words[9]) * _SECTOR_BYTES)
            yield SensorReading(_of_device("node_disk_io_time_seconds_total", device), float(words[12]) / 1000)

    def _filesystems(self) -> Iterator[SensorReading]:
        seen: set[str] = set()
        for line in self._lines("self/mounts"):
            device, point, kind, *_ = line.split()
            if kind not in _REAL_FILESYSTEMS or device in seen or len(seen) >= _DEVICES_MAX:
                continue
            seen.add(device)
            at = point.replace("\\040", " ")
            try:
                found = os.statvfs(at)
            except OSError:
                continue
            named = (("device", device), ("mountpoint", at), ("fstype", kind))
            yield SensorReading(_named("node_filesystem_size_bytes", named), float(found.f_blocks * found.f_frsize))
            yield SensorReading(_named("node_filesystem_avail_bytes", named), float(found.f_bavail * found.f_frsize))
            yield SensorReading(_named("node_filesystem_files_free", named), float(found.f_ffree))

    def _load(self) -> Iterator[SensorReading]:
        words = self._lines("loadavg")[0].split()
        for name, word in zip(("node_load1", "node_load5", "node_load15"), words, strict=False):
            yield SensorReading(_plain(name), float(word))

    def _lines(self, name: str) -> list[str]:
        return (self._proc / name).read_text().splitlines()


# The same few labels are reported every 15 seconds for as long as the node runs.


@lru_cache(maxsize=4096)
def _cpu(number: str, mode: str) -> Labels:
    return series("node_cpu_seconds_total", (("cpu", number), ("mode", mode)))


@lru_cache(maxsize=64)
def _plain(name: str) -> Labels:
    return series(name)


@lru_cache(maxsize=4096)
def _of_device(name: str, device: str) -> Labels:
    return series(name, (("device", device),))


@lru_cache(maxsize=1024)
def _named(name: str, pairs: tuple[tuple[str, str], ...]) -> Labels:
    return series(name, pairs)


# What does running work use? Processor and memory of its processes, summed by task.
#
# Processes of a task share a session. What a process used before it ended is not counted once it is gone: the figures
# are
# samples, not a bill.


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

    def read(self) -> Iterator[SensorReading]:
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
            yield SensorReading(series("harchos_workload_memory_used_bytes", pairs), float(use.memory_bytes))
            then = self._before.get(workload)
            if then is not None and now_s > then[0]:
                cores = max(0.0, use.cpu_s - then[1]) / (now_s - then[0])
                yield SensorReading(series("harchos_workload_cpu_usage_cores", pairs), cores)
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
