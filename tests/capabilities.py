"""What may a test need of the machine beyond Python and a shell? Each thing has a name, and none is a condition.

A test says so with a mark; `tests/skips.txt` lists those that are skipped without it (`tests/expected_skips.py`):

    @pytest.mark.needs("strace")      it is skipped, with the reason, where that is absent
    @pytest.mark.uses("bubblewrap")   it passes with it and without it, and is worth running both ways

Optional programs are on the PATH of the tests of those files only that name them. So a test that needs one and does not
say so fails on the machine of its author, not on that of a newcomer who does not have the program.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

HIDE = "HARCH_TEST_HIDE"  # names of what is treated as absent, separated by commas; `programs` means every program
PROBE_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Capability:
    """`why_not` tells why it does not work here, and nothing where it does; asked only if all programs are found."""

    name: str
    how_to_get: str
    programs: tuple[str, ...] = ()
    why_not: Callable[[], str] = lambda: ""


def _bubblewrap_fails() -> str:
    from harch.execution.isolation.sandbox import choose

    with tempfile.TemporaryDirectory() as folder:
        chosen = choose("auto", Path(folder))
    return "" if chosen.program else chosen.detail


def _strace_fails() -> str:
    tried = _tried("strace", "-o", "/dev/null", "true")
    return f"strace may not trace here: {tried}" if tried else ""


def _postgresql_fails() -> str:
    """PostgreSQL refuses root, so root needs somebody else to run it."""
    try:
        if os.geteuid() == 0:
            pwd.getpwnam("postgres")
    except KeyError:
        return "root cannot run PostgreSQL, and there is no user `postgres`"
    return ""


def _wan_fails() -> str:
    from harch.testing.wan import why_not_permitted

    return why_not_permitted() or ""


def _tmpfs_fails() -> str:
    with tempfile.TemporaryDirectory() as folder:
        tried = _tried("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder)
        if not tried:
            subprocess.run(["umount", folder], check=True, capture_output=True)
    return f"this user may not mount a tmpfs: {tried}" if tried else ""


def _cgroup_fails(controller: str) -> str:
    from harch.execution.isolation import cgroups

    found = cgroups.detect("probe")
    told = found.features()[f"{controller}_limit"]
    found.close()
    return told if "not enforced" in told else ""


def _foreign_proc_fails() -> str:
    return "" if os.geteuid() == 0 else "a process that may not be dumped shows its files to root only"


CAPABILITIES = {
    one.name: one
    for one in (
        Capability("bubblewrap", "apt-get install bubblewrap", ("bwrap",), _bubblewrap_fails),
        Capability("serf", "apt-get install serf", ("serf",)),
        Capability("amtool", "apt-get install prometheus-alertmanager", ("amtool",)),
        Capability("alertmanager", "apt-get install prometheus-alertmanager", ("prometheus-alertmanager",)),
        Capability("curl", "apt-get install curl", ("curl",)),
        Capability("skopeo", "apt-get install skopeo", ("skopeo",)),
        Capability("umoci", "apt-get install umoci", ("umoci",)),
        Capability("docker-registry", "apt-get install docker-registry", ("docker-registry",)),
        Capability("strace", "apt-get install strace", ("strace",), _strace_fails),
        Capability("postgresql", "apt-get install postgresql", ("initdb", "postgres"), _postgresql_fails),
        Capability("chromium", "apt-get install chromium", ("chromium",)),
        Capability("wan", "run as root where /dev/net/tun is", (), _wan_fails),
        Capability("tmpfs", "run as root", (), _tmpfs_fails),
        Capability("memory-cgroup", "run where cgroups are writable", (), lambda: _cgroup_fails("memory")),
        Capability("cpu-cgroup", "run where cgroups are writable", (), lambda: _cgroup_fails("cpu")),
        Capability("foreign-proc", "run as root", (), _foreign_proc_fails),
    )
}
PROGRAMS = {program: one.name for one in CAPABILITIES.values() for program in one.programs}


class UnknownCapability(pytest.UsageError):
    """Ends the run before it begins."""


class Machine:
    """What is here, and what of it the processes that a test starts may find."""

    def __init__(self, *, path: str, hide: str = "", folder: Path) -> None:
        names = {name.strip() for name in hide.split(",")} - {""}
        if "programs" in names:
            names = names - {"programs"} | set(PROGRAMS.values())
        known(names)
        self.hidden = frozenset(names)
        self._folder = folder
        self._found = {program: found for program in PROGRAMS if (found := _find(program, path))}
        self._path = os.pathsep.join(self._without_programs(number, part) for number, part in enumerate(_parts(path)))
        self._why: dict[str, str] = {}
        for program, found in self._found.items():
            (own := folder / PROGRAMS[program]).mkdir(exist_ok=True)
            (own / program).symlink_to(found)

    def path_with(self, names: Iterable[str]) -> str:
        """A PATH with the programs of these and of no other capabilities."""
        shown = sorted(name for name in names if CAPABILITIES[name].programs and name not in self.hidden)
        return os.pathsep.join([*(str(self._folder / name) for name in shown), self._path])

    def why_missing(self, name: str) -> str:
        """One sentence where a capability is absent; empty where it is there. Asked once."""
        if name not in self._why:
            self._why[name] = self._look(CAPABILITIES[name])
        return self._why[name]

    def _look(self, one: Capability) -> str:
        if one.name in self.hidden:
            return f"hidden by {HIDE}"
        if absent := [program for program in one.programs if program not in self._found]:
            return f"`{absent[0]}` is not installed ({one.how_to_get})"
        before = os.environ["PATH"]
        os.environ["PATH"] = self.path_with([one.name])
        try:
            why = one.why_not()
        finally:
            os.environ["PATH"] = before
        return f"{why} ({one.how_to_get})" if why else ""

    def _without_programs(self, number: int, part: str) -> str:
        """This folder of the PATH, or one of links to all that is in it but the optional programs."""
        if not any(os.path.lexists(os.path.join(part, program)) for program in PROGRAMS):
            return part
        links = self._folder / f"path-{number}"
        links.mkdir()
        for entry in os.scandir(part):
            if entry.name not in PROGRAMS:
                (links / entry.name).symlink_to(os.path.abspath(entry.path))
        return str(links)


def known(names: Iterable[str]) -> None:
    for name in sorted(names):
        if name not in CAPABILITIES:
            raise UnknownCapability(f"`{name}` is no capability; tests/capabilities.py has {', '.join(CAPABILITIES)}")


def _find(program: str, path: str) -> str | None:
    # Debian keeps PostgreSQL's programs beside the PATH.
    beside = sorted(map(str, Path("/usr/lib/postgresql").glob(f"*/bin/{program}")))
    return shutil.which(program, path=path) or next(iter(beside), None)


def _parts(path: str) -> list[str]:
    return [part for part in path.split(os.pathsep) if part]


def _tried(*command: str) -> str:
    """What went wrong; empty if nothing did."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return (said[-1] if said else f"exit {done.returncode}") if done.returncode else ""
