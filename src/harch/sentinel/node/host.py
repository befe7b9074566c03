"""How is the machine? Processors, memory, disks and network from /proc, under the names of the usual node exporter."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from harch.sentinel.model.labels import Labels
from harch.sentinel.node.readings import Reading, series

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

    def read(self) -> Iterator[Reading]:
        """What cannot be read is left out: a sensor that is missing is no reason to lose the others."""
        for part in (self._processors, self._memory, self._network, self._disks, self._filesystems, self._load):
            try:
                yield from part()
            except (OSError, ValueError, IndexError):
                continue

    def _processors(self) -> Iterator[Reading]:
        for line in self._lines("stat"):
            words = line.split()
            if words[0].startswith("cpu") and words[0] != "cpu":
                for mode, ticks in zip(_MODES, words[1:], strict=False):
                    yield Reading(_cpu(words[0][3:], mode), int(ticks) / self._ticks)
            elif words[0] == "btime":
                yield Reading(_plain("node_boot_time_seconds"), float(words[1]))

    def _memory(self) -> Iterator[Reading]:
        for line in self._lines("meminfo"):
            name, _, rest = line.partition(":")
            if name in _MEMORY:
                yield Reading(_plain(_MEMORY[name]), float(rest.split()[0]) * 1024)

    def _network(self) -> Iterator[Reading]:
        for line in self._lines("net/dev")[2 : 2 + _DEVICES_MAX]:
            device, _, rest = line.partition(":")
            words = rest.split()
            device = device.strip()
            if device == "lo":
                continue
            yield Reading(_of_device("node_network_receive_bytes_total", device), float(words[0]))
            yield Reading(_of_device("node_network_receive_errs_total", device), float(words[2]))
            yield Reading(_of_device("node_network_transmit_bytes_total", device), float(words[8]))
            yield Reading(_of_device("node_network_transmit_errs_total", device), float(words[10]))

    def _disks(self) -> Iterator[Reading]:
        for line in self._lines("diskstats")[:_DEVICES_MAX]:
            words = line.split()
            device = words[2]
            if device.startswith(("loop", "ram", "dm-")) or not any(word != "0" for word in words[3:]):
                continue
            yield Reading(_of_device("node_disk_read_bytes_total", device), float(words[5]) * _SECTOR_BYTES)
            yield Reading(_of_device("node_disk_written_bytes_total", device), float(words[9]) * _SECTOR_BYTES)
            yield Reading(_of_device("node_disk_io_time_seconds_total", device), float(words[12]) / 1000)

    def _filesystems(self) -> Iterator[Reading]:
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
            yield Reading(_named("node_filesystem_size_bytes", named), float(found.f_blocks * found.f_frsize))
            yield Reading(_named("node_filesystem_avail_bytes", named), float(found.f_bavail * found.f_frsize))
            yield Reading(_named("node_filesystem_files_free", named), float(found.f_ffree))

    def _load(self) -> Iterator[Reading]:
        words = self._lines("loadavg")[0].split()
        for name, word in zip(("node_load1", "node_load5", "node_load15"), words, strict=False):
            yield Reading(_plain(name), float(word))

    def _lines(self, name: str) -> list[str]:
        return (self._proc / name).read_text().splitlines()


# The same few labels are told every 15 seconds for as long as the node runs.


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
