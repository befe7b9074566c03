"""Can this machine run HarchOS? Checks of Python, sandbox, limits, state folder, disk and ports."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from harch.base.config import Home, Ports
from harch.base.errors import HarchError
from harch.base.set_aside import set_aside_files
from harch.cli.findings import Finding, Mark
from harch.execution.sandbox import agent_mode, host_layout, why_it_fails, workers_mode

PYTHON_MIN = (3, 11)
DISK_GB_LOW, DISK_GB_LEAST = 5.0, 1.0
PORTS_CHECKED = 5  # the shipped federation


def machine_findings(home: Home, ports: Ports) -> Iterator[Finding]:
    yield check_python(sys.version_info[:2])
    yield check_sandbox(shutil.which("bwrap"), os.environ)
    yield check_cgroups(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    yield from check_home(home)
    yield check_damage(home)
    yield check_disk(home)
    yield check_ports(ports)


def check_python(version: tuple[int, ...]) -> Finding:
    text = ".".join(map(str, version))
    if version >= PYTHON_MIN:
        return Finding("python", Mark.OK, text)
    return Finding("python", Mark.BROKEN, f"{text} is too old", "install Python 3.11 or newer, then `make install`")


def check_sandbox(bwrap: str | None, environment: Mapping[str, str]) -> Finding:
    """Without bubblewrap, tasks run as plain process groups: they can read what the agent's user can read. Where it is
    required, they do not run."""
    try:
        modes = {agent_mode(environment), workers_mode(environment)}
    except HarchError as error:
        return Finding("sandbox", Mark.BROKEN, error.message, error.hint or "")
    mark = Mark.BROKEN if "required" in modes else Mark.WARNING
    so = "it is required, so no work runs" if "required" in modes else "tasks run without a sandbox"
    if bwrap is None:
        fix = "apt-get install bubblewrap, or dnf install bubblewrap"
        return Finding("sandbox", mark, f"bubblewrap is not installed: {so}", fix)
    with tempfile.TemporaryDirectory() as scratch:
        failure = why_it_fails(bwrap, host_layout(), Path(scratch))
    if not failure:
        return Finding("sandbox", Mark.OK, f"bubblewrap at {bwrap}" + (", required" if "required" in modes else ""))
    fix = "sysctl -w kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0"
    return Finding(
        "sandbox", mark, f"bubblewrap does not work here ({failure[:200]}): {so}", f"{fix} (those that exist)"
    )


def check_cgroups(membership: Path, mount: Path) -> Finding:
    """Limits on CPU and memory need a control group that we may write to; v1 and v2 differ in where it stands."""
    for version, folder in _own_cgroups(membership, mount):
        if os.access(folder, os.W_OK):
            return Finding("cgroups", Mark.OK, f"{version}, writable at {folder}")
    return Finding(
        "cgroups",
        Mark.WARNING,
        "no writable control group: CPU and memory limits are not enforced",
        "systemd-run --user --scope -p Delegate=yes harch agent serve, or `Delegate=yes` in the agent's unit",
    )


def _own_cgroups(membership: Path, mount: Path) -> Iterator[tuple[str, Path]]:
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers and (mount / "cgroup.controllers").exists():
            yield "v2", mount / path.lstrip("/")
        elif "memory" in controllers.split(","):
            # In a container the path of the host is mounted as the root.
            yield "v1", mount / "memory" / path.lstrip("/")
            yield "v1", mount / "memory"


def check_home(home: Home) -> Iterator[Finding]:
    if not home.root.exists():
        yield Finding("state folder", Mark.OK, f"{home.root} does not exist yet; `harch up` makes it")
        return
    if not home.root.is_dir() or not os.access(home.root, os.R_OK | os.W_OK | os.X_OK):
        fix = f"chown -R $(id -un) {home.root}, or set HARCH_HOME to another folder"
        yield Finding("state folder", Mark.BROKEN, f"{home.root} cannot be written", fix)
        return
    yield Finding("state folder", Mark.OK, str(home.root))
    yield check_key_file(home.admin_key)


def check_key_file(path: Path) -> Finding:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return Finding("key file", Mark.WARNING, f"{path} is missing", "start a hub (`harch up`), or set HARCH_API_KEY")
    if mode & 0o077:
        return Finding("key file", Mark.BROKEN, f"{path} is open to others (mode {mode:04o})", f"chmod 600 {path}")
    if not os.access(path, os.R_OK):
        return Finding("key file", Mark.BROKEN, f"{path} cannot be read", f"chown $(id -un) {path}")
    return Finding("key file", Mark.OK, f"{path}, mode {mode:04o}")


def check_damage(home: Home) -> Finding:
    """Files that a start or a query found to be others than were written."""
    found = set_aside_files(home.root)
    if not found:
        return Finding("damage", Mark.OK, "no file was set aside as damaged")
    more = f" and {len(found) - 1} more" if found[1:] else ""
    fix = "look at the disk (`dmesg`, `smartctl -a`), bring back what is lost from a copy, then delete the files"
    return Finding("damage", Mark.WARNING, f"set aside as damaged: {found[0]}{more}", fix)


def check_disk(home: Home) -> Finding:
    folder = next(path for path in (home.root, *home.root.parents) if path.exists())
    free_gb = shutil.disk_usage(folder).free / 1e9
    detail = f"{free_gb:.1f} GB free for the state folder"
    fix = f"free some space on the disk of {folder}, or set HARCH_HOME to another one"
    if free_gb < DISK_GB_LEAST:
        return Finding("disk", Mark.BROKEN, detail, fix)
    return Finding("disk", Mark.WARNING, detail, fix) if free_gb < DISK_GB_LOW else Finding("disk", Mark.OK, detail)


def check_ports(ports: Ports) -> Finding:
    """A port is fine if it is free, or if a hub answers on it."""
    numbers = [ports.api(index) for index in range(PORTS_CHECKED)]
    taken = [port for port in numbers if _listens(port) and not _is_hub(port)]
    if taken:
        listed = ", ".join(map(str, taken))
        fix = f"stop what `ss -ltnp 'sport = :{taken[0]}'` shows, or move all ports: export HARCH_PORT_BASE=8700"
        return Finding("ports", Mark.BROKEN, f"another program listens on {listed}", fix)
    return Finding("ports", Mark.OK, f"{numbers[0]}-{numbers[-1]} are free or answered by hubs")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_hub(port: int) -> bool:
    from harch.base.errors import HarchError
    from harch.sdk import Client
    from harch.sdk.exchange import RetryPolicy

    with Client(f"http://127.0.0.1:{port}", timeout_s=2.0, retry=RetryPolicy(retries_max=0)) as client:
        try:
            return bool(client.health().status)
        except HarchError:
            return False
