"""Which limits can this machine enforce, and in which cgroups do tasks live? Detected per controller, v1 and v2.

A machine may offer memory in version 1 and only `hugetlb` in version 2, or nothing that we may write. What cannot be
enforced is said so (`not enforced: …`) and the task runs without it; it is never an error.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harch.execution import kernel

CONTROLLERS = ("memory", "cpu", "pids")
CPU_PERIOD_US = 100_000
CPU_QUOTA_US_MIN = 1_000  # the least that the kernel takes
PIDS_MAX = 16_384  # processes and threads of one task: ends a fork bomb, disturbs no training job
GB = 10**9


@dataclass(frozen=True, slots=True)
class HostCapacity:
    """What the machine has; a modelled node may promise more, which no process can get."""

    cpus: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Cgroups:
    """Where to make the cgroups of tasks: one base folder per v1 controller, and one for v2, as far as writable."""

    host: HostCapacity
    v1: dict[str, Path] = field(default_factory=dict)
    v2: Path | None = None
    v2_controllers: frozenset[str] = frozenset()
    reason: str = ""

    def features(self) -> dict[str, str]:
        """What is enforced, and how, for `Hello`."""
        missing = f"not enforced: {self.reason}" if self.reason else "not enforced"
        found = {f"{name}_limit": self._version(name) or missing for name in CONTROLLERS}
        v2_freezes = self.v2 is not None and (self.v2 / "cgroup.freeze").exists()
        found["pause"] = "cgroup v1" if "freezer" in self.v1 else "cgroup v2" if v2_freezes else "signals"
        versions = [name for name, there in (("v1", self.v1), ("v2", self.v2)) if there]
        found["cgroup"] = "+".join(versions) or missing
        return found

    def close(self) -> None:
        """Removes the base folders, if no task is left in them."""
        kernel.remove_cgroups([str(base) for base in self._bases()])

    def create(self, name: str, *, cpus: float, memory_gb: float) -> list[str]:
        """Makes and limits the cgroups of one task; returns their folders, which are none where nothing is writable."""
        folders = []
        for base in self._bases():
            folder = base / name
            with contextlib.suppress(OSError):
                folder.mkdir(exist_ok=True)
                folders.append(folder)
        memory_bytes = int(min(memory_gb * GB, self.host.memory_bytes))
        quota_us = max(CPU_QUOTA_US_MIN, int(min(cpus, self.host.cpus) * CPU_PERIOD_US))
        for folder in folders:
            for file, value in _limits(memory_bytes, quota_us):
                if (folder / file).exists():
                    _try_write(folder / file, value)
        return [str(folder) for folder in folders]

    def leftovers(self) -> Iterator[str]:
        """Names of tasks that have a cgroup here."""
        for base in self._bases():
            with contextlib.suppress(OSError):
                yield from (entry.name for entry in os.scandir(base) if entry.is_dir())

    def folders_of(self, name: str) -> list[str]:
        return [str(base / name) for base in self._bases() if (base / name).is_dir()]

    def _bases(self) -> list[Path]:
        """Some v1 controllers share one hierarchy."""
        return list(dict.fromkeys([*self.v1.values(), *([self.v2] if self.v2 else [])]))

    def _version(self, controller: str) -> str:
        if controller in self.v1:
            return "cgroup v1"
        return "cgroup v2" if controller in self.v2_controllers else ""


def detect(tag: str, *, proc: Path = Path("/proc")) -> Cgroups:
    """Looks where this process stands and makes a base folder `harch-TAG` there, in every hierarchy that allows it."""
    host = host_capacity(proc)
    mounts_v1, mount_v2 = _mounts(kernel.read_text(f"{proc}/self/mountinfo"))
    own_v1, own_v2 = _own_groups(kernel.read_text(f"{proc}/self/cgroup"))
    v1: dict[str, Path] = {}
    reason = "no cgroup is mounted"
    for controller in (*CONTROLLERS, "freezer"):
        if controller in mounts_v1 and controller in own_v1:
            base = _inside(mounts_v1[controller], own_v1[controller]) / f"harch-{tag}"
            if failure := _make(base):
                reason = failure
            else:
                v1[controller] = base
    v2: Path | None = None
    v2_controllers: frozenset[str] = frozenset()
    if mount_v2 is not None and own_v2 is not None:
        own = _inside(mount_v2, own_v2)
        wanted = (frozenset(CONTROLLERS) & _words(own / "cgroup.controllers")) - v1.keys()
        # Each hierarchy that a process enters costs its start some milliseconds; v1's freezer serves to kill as well.
        if "freezer" in v1 and not wanted:
            return Cgroups(host, v1, reason=reason)
        if failure := _make(own / f"harch-{tag}"):
            reason = failure
        else:
            v2 = own / f"harch-{tag}"
            v2_controllers = _delegate(own, v2, wanted, tag)
    return Cgroups(host, v1, v2, v2_controllers, reason)


def host_capacity(proc: Path = Path("/proc")) -> HostCapacity:
    for line in kernel.read_text(f"{proc}/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return HostCapacity(len(os.sched_getaffinity(0)), int(line.split()[1]) * 1024)
    return HostCapacity(len(os.sched_getaffinity(0)), 1 << 62)


def _limits(memory_bytes: int, quota_us: int) -> list[tuple[str, str]]:
    """Files of both versions with their values; only those that exist in a folder are written there."""
    return [
        ("memory.limit_in_bytes", str(memory_bytes)),
        ("memory.memsw.limit_in_bytes", str(memory_bytes)),  # else swap would double the limit
        ("cpu.cfs_period_us", str(CPU_PERIOD_US)),
        ("cpu.cfs_quota_us", str(quota_us)),
        ("memory.max", str(memory_bytes)),
        ("memory.swap.max", "0"),
        ("memory.oom.group", "1"),  # half a task is worse than none
        ("cpu.max", f"{quota_us} {CPU_PERIOD_US}"),
        ("pids.max", str(PIDS_MAX)),
    ]


def _delegate(own: Path, base: Path, wanted: frozenset[str], tag: str) -> frozenset[str]:
    """Hands v2 controllers down to the tasks' folders; returns those that arrived.

    Version 2 lets a group have processes or limited children, not both. So where this process is alone in its group,
    as in a service of its own, it moves to a leaf first; where it is not, the limits are not enforced.
    """
    text = " ".join(f"+{name}" for name in sorted(wanted))
    handed_down = _try_write(own / "cgroup.subtree_control", text)
    if not handed_down and _words(own / "cgroup.procs") == {str(os.getpid())}:
        leaf = own / f"harch-agent-{tag}"
        if not _make(leaf) and _try_write(leaf / "cgroup.procs", "0"):
            _try_write(own / "cgroup.subtree_control", text)
    _try_write(base / "cgroup.subtree_control", text)
    return wanted & _words(base / "cgroup.subtree_control")


def _mounts(mountinfo: str) -> tuple[dict[str, tuple[Path, str]], tuple[Path, str] | None]:
    """(mount point, root of the mount) of each v1 controller, and of v2."""
    v1: dict[str, tuple[Path, str]] = {}
    v2: tuple[Path, str] | None = None
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        place = (Path(fields[4]), fields[3])
        if kind[0] == "cgroup2":
            v2 = place
        elif kind[0] == "cgroup":
            for option in kind[2].split(","):
                v1[option] = place
    return v1, v2


def _own_groups(text: str) -> tuple[dict[str, str], str | None]:
    v1: dict[str, str] = {}
    v2: str | None = None
    for line in text.splitlines():
        number, names, path = line.split(":", 2)
        if number == "0" and not names:
            v2 = path
        else:
            v1 |= dict.fromkeys(names.split(","), path)
    return v1, v2


def _inside(mount: tuple[Path, str], group: str) -> Path:
    point, root = mount
    if root != "/" and group.startswith(root):
        group = group[len(root) :]
    return point / group.lstrip("/")


def _make(folder: Path) -> str:
    """Empty, or why not."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        return f"{folder.parent}: {error.strerror}"
    return ""


def _words(path: Path) -> frozenset[str]:
    return frozenset(kernel.read_text(str(path)).split())


def _try_write(path: Path, text: str) -> bool:
    try:
        path.write_text(text)
    except OSError:
        return False
    return True
