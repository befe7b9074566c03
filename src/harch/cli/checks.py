"""Can this machine run HarchOS, and do the hubs answer?

Checks of Python, sandbox, limits, state folder, disk, ports, hubs and clocks: one finding each, with the exact fix.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path

import httpx
from msgspec import Struct

from harch.base.clock import Clock
from harch.base.config import Home, Ports
from harch.base.errors import EXIT_ERROR, EXIT_OK, HarchError
from harch.base.state_files import set_aside_files
from harch.cli.compiling import pending_jobs
from harch.cli.output import age_text
from harch.execution.images.support import missing_packages, not_installed
from harch.execution.isolation.sandbox import agent_mode, host_layout, why_it_fails, workers_mode
from harch.sdk import Client, Hub
from harch.sdk.exchange import RetryPolicy


class CheckMark(StrEnum):
    OK = "ok"
    WARNING = "warning"  # it works, but less well than it could
    BROKEN = "broken"


class CheckFinding(Struct, frozen=True):
    check: str
    mark: CheckMark
    detail: str
    fix: str = ""


def exit_code_of(findings: Iterable[CheckFinding]) -> int:
    return EXIT_ERROR if any(finding.mark is CheckMark.BROKEN for finding in findings) else EXIT_OK


# Can this machine run HarchOS? Checks of Python, sandbox, limits, state folder, disk and ports.


PYTHON_MIN = (3, 11)
DISK_GB_LOW, DISK_GB_LEAST = 5.0, 1.0
PORTS_CHECKED = 5  # the shipped federation


def machine_findings(home: Home, ports: Ports) -> Iterator[CheckFinding]:
    yield check_python(sys.version_info[:2])
    yield check_sandbox(shutil.which("bwrap"), os.environ)
    yield check_images(shutil.which)
    yield check_cgroups(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    yield from check_home(home)
    yield check_damage(home)
    yield check_disk(home)
    yield check_kernels([job.what for job in pending_jobs()])
    yield check_ports(ports)


def check_python(version: tuple[int, ...]) -> CheckFinding:
    text = ".".join(map(str, version))
    if version >= PYTHON_MIN:
        return CheckFinding("python", CheckMark.OK, text)
    return CheckFinding(
        "python", CheckMark.BROKEN, f"{text} is too old", "install Python 3.11 or newer, then `make install`"
    )


def check_sandbox(bwrap: str | None, environment: Mapping[str, str]) -> CheckFinding:
    """Without bubblewrap, tasks run as plain process groups: they can read what the agent's user can read. Where it is
    required, they do not run."""
    try:
        modes = {agent_mode(environment), workers_mode(environment)}
    except HarchError as error:
        return CheckFinding("sandbox", CheckMark.BROKEN, error.message, error.hint or "")
    mark = CheckMark.BROKEN if "required" in modes else CheckMark.WARNING
    so = "it is required, so no work runs" if "required" in modes else "tasks run without a sandbox"
    if bwrap is None:
        fix = "apt-get install bubblewrap, or dnf install bubblewrap"
        return CheckFinding("sandbox", mark, f"bubblewrap is not installed: {so}", fix)
    with tempfile.TemporaryDirectory() as scratch:
        failure = why_it_fails(bwrap, host_layout(), Path(scratch))
    if not failure:
        return CheckFinding(
            "sandbox", CheckMark.OK, f"bubblewrap at {bwrap}" + (", required" if "required" in modes else "")
        )
    fix = "sysctl -w kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0"
    return CheckFinding(
        "sandbox", mark, f"bubblewrap does not work here ({failure[:200]}): {so}", f"{fix} (those that exist)"
    )


def check_images(which: Callable[[str], str | None]) -> CheckFinding:
    """Optional: without these programs, work that names an image is refused, and all other work runs."""
    missing = missing_packages(which)
    if not missing:
        return CheckFinding("images", CheckMark.OK, "skopeo and umoci are installed")
    detail = f"no image can run: {not_installed(missing)}"
    return CheckFinding("images", CheckMark.WARNING, detail, f"apt-get install {' '.join(missing)}")


def check_cgroups(membership: Path, mount: Path) -> CheckFinding:
    """Limits on CPU and memory need a control group that we may write to; v1 and v2 differ in where it stands."""
    for version, folder in _own_cgroups(membership, mount):
        if os.access(folder, os.W_OK):
            return CheckFinding("cgroups", CheckMark.OK, f"{version}, writable at {folder}")
    return CheckFinding(
        "cgroups",
        CheckMark.WARNING,
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


def check_home(home: Home) -> Iterator[CheckFinding]:
    if not home.root.exists():
        yield CheckFinding("state folder", CheckMark.OK, f"{home.root} does not exist yet; `harch up` creates it")
        return
    if not home.root.is_dir() or not os.access(home.root, os.R_OK | os.W_OK | os.X_OK):
        fix = f"chown -R $(id -un) {home.root}, or set HARCH_HOME to another folder"
        yield CheckFinding("state folder", CheckMark.BROKEN, f"{home.root} cannot be written", fix)
        return
    yield CheckFinding("state folder", CheckMark.OK, str(home.root))
    yield check_key_file(home.admin_key)


def check_key_file(path: Path) -> CheckFinding:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return CheckFinding(
            "key file", CheckMark.WARNING, f"{path} is missing", "start a hub (`harch up`), or set HARCH_API_KEY"
        )
    if mode & 0o077:
        return CheckFinding(
            "key file", CheckMark.BROKEN, f"{path} is open to others (mode {mode:04o})", f"chmod 600 {path}"
        )
    if not os.access(path, os.R_OK):
        return CheckFinding("key file", CheckMark.BROKEN, f"{path} cannot be read", f"chown $(id -un) {path}")
    return CheckFinding("key file", CheckMark.OK, f"{path}, mode {mode:04o}")


def check_damage(home: Home) -> CheckFinding:
    """Files that a start or a query found to be others than were written."""
    found = set_aside_files(home.root)
    if not found:
        return CheckFinding("damage", CheckMark.OK, "no file was set aside as damaged")
    more = f" and {len(found) - 1} more" if found[1:] else ""
    fix = "check the disk (`dmesg`, `smartctl -a`), restore what is lost from a backup, then delete the files"
    return CheckFinding("damage", CheckMark.WARNING, f"set aside as damaged: {found[0]}{more}", fix)


def check_disk(home: Home) -> CheckFinding:
    folder = next(path for path in (home.root, *home.root.parents) if path.exists())
    free_gb = shutil.disk_usage(folder).free / 1e9
    detail = f"{free_gb:.1f} GB free for the state folder"
    fix = f"free some space on the disk of {folder}, or set HARCH_HOME to another one"
    if free_gb < DISK_GB_LEAST:
        return CheckFinding("disk", CheckMark.BROKEN, detail, fix)
    return (
        CheckFinding("disk", CheckMark.WARNING, detail, fix)
        if free_gb < DISK_GB_LOW
        else CheckFinding("disk", CheckMark.OK, detail)
    )


def check_kernels(pending: Sequence[str]) -> CheckFinding:
    """`pending`: which kernels were never compiled on this machine. Hubs start without them, and compile."""
    if not pending:
        return CheckFinding("kernels", CheckMark.OK, "compiled, or not installed")
    return CheckFinding(
        "kernels",
        CheckMark.WARNING,
        f"not compiled yet: {', '.join(pending)}; the first start takes a minute longer",
        f"{sys.executable} -m harch.cli.compiling",
    )


def check_ports(ports: Ports) -> CheckFinding:
    """A port is fine if it is free, or if a hub answers on it."""
    numbers = [ports.api(index) for index in range(PORTS_CHECKED)]
    taken = [port for port in numbers if _listens(port) and not _is_hub(port)]
    if taken:
        listed = ", ".join(map(str, taken))
        fix = f"stop what `ss -ltnp 'sport = :{taken[0]}'` shows, or move all ports: export HARCH_PORT_BASE=8700"
        return CheckFinding("ports", CheckMark.BROKEN, f"another program listens on {listed}", fix)
    return CheckFinding("ports", CheckMark.OK, f"{numbers[0]}-{numbers[-1]} are free or answered by hubs")


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


# Do the hubs answer, do they know us, and do their clocks agree with ours?


CLOCK_SKEW_S_MAX = 5.0
PEER_AGE_S_MAX = 30.0
_TIMEOUT_S = 3.0


def hub_findings(home: Home, clock: Clock, transport: httpx.BaseTransport | None = None) -> Iterator[CheckFinding]:
    with _client(None, transport) as client:
        try:
            health = client.health()
        except HarchError as error:
            yield _no_answer(error, home)
            return
        yield CheckFinding(
            "hub", CheckMark.OK, f"{client.settings.url} answers: {health.status}, version {health.version or '?'}"
        )
        yield check_clock(client.settings.url, health.timestamp, clock.now())
        try:
            who = client.me()
            hubs = client.hubs.list()
        except HarchError as error:
            fix = error.hint or "set HARCH_API_KEY to a key of this hub"
            yield CheckFinding("key", CheckMark.BROKEN, f"from {client.settings.key_source}: {error.message}", fix)
            return
        role = f", role {who.role}" if who.role else ""
        yield CheckFinding(
            "key", CheckMark.OK, f"from {client.settings.key_source}: tenant {who.tenant or who.name}{role}"
        )
    for hub in hubs:
        if not hub.own:
            yield from _peer_findings(hub, clock, transport)


def check_clock(url: str, theirs: datetime | None, ours: datetime) -> CheckFinding:
    """Leases and residency records carry times: hubs that disagree by seconds look dead or early to each other."""
    if theirs is None:
        return CheckFinding("clock", CheckMark.WARNING, f"{url} does not report its time", "upgrade that hub")
    skew_s = (theirs - ours).total_seconds()
    if abs(skew_s) > CLOCK_SKEW_S_MAX:
        detail = f"{url} is {age_text(abs(skew_s))} {'ahead' if skew_s > 0 else 'behind'}"
        return CheckFinding("clock", CheckMark.BROKEN, detail, "on both machines: timedatectl set-ntp true")
    return CheckFinding("clock", CheckMark.OK, f"{url} agrees within {abs(skew_s):.1f} s")


def check_peer(hub: Hub, error: str = "") -> CheckFinding:
    """`error`: why it did not answer this machine; empty if it did. A hub can be silent to its peers and yet be up."""
    name = f"hub {hub.id}"
    if not hub.reachable and error:
        detail = f"does not answer at {hub.endpoint or 'an unknown address'}; last contact: {age_text(hub.age_s)}"
        return CheckFinding(
            name, CheckMark.BROKEN, detail, f"start it again (`harch up`, or `harch hub serve {hub.id}`)"
        )
    if not hub.reachable:
        return CheckFinding(
            name,
            CheckMark.WARNING,
            f"answers at {hub.endpoint}, but its peers last heard from it {age_text(hub.age_s)} ago",
            "look again in a few seconds; if it stays silent, check its peer port, and how busy its machine is",
        )
    if error:  # its peers reach it and we do not: a matter of this machine's network, not of the hub
        return CheckFinding(name, CheckMark.WARNING, f"not reachable from here: {error}", "check the route")
    if hub.status not in ("ready", ""):
        detail = hub.summary.status_detail if hub.summary else ""
        return CheckFinding(
            name, CheckMark.WARNING, f"{hub.status}: {detail}".rstrip(": "), f"harch events --hub {hub.id}"
        )
    if hub.age_s is not None and hub.age_s > PEER_AGE_S_MAX:
        return CheckFinding(name, CheckMark.WARNING, f"its data is {age_text(hub.age_s)} old", "check the link to it")
    return CheckFinding(name, CheckMark.OK, f"{hub.status or 'ready'}, {age_text(hub.age_s)} ago, at {hub.endpoint}")


def _peer_findings(hub: Hub, clock: Clock, transport: httpx.BaseTransport | None) -> Iterator[CheckFinding]:
    if not hub.endpoint:
        yield check_peer(hub, "" if hub.reachable else "its address is unknown")
        return
    with _client(hub.endpoint, transport) as client:
        try:
            theirs = client.health().timestamp
        except HarchError as error:
            yield check_peer(hub, error.message)
            return
        yield check_peer(hub)
        yield check_clock(client.settings.url, theirs, clock.now())


def _client(url: str | None, transport: httpx.BaseTransport | None) -> Client:
    return Client(url, timeout_s=_TIMEOUT_S, retry=RetryPolicy(retries_max=1), transport=transport)


def _no_answer(error: HarchError, home: Home) -> CheckFinding:
    """Nothing was ever started here: then there is nothing broken, only something to do."""
    never_started = not home.root.exists() and "HARCH_URL" not in os.environ
    return CheckFinding("hub", CheckMark.WARNING if never_started else CheckMark.BROKEN, error.message, "harch up")
