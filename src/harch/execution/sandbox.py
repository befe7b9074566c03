"""What may a task see of the machine? The arguments of bubblewrap: least privilege, as a pure function.

A task sees system programs and libraries, the running Python with this package, some harmless files of /etc, its own
folders, and nothing else: no other user's files, no state of hub or agent. It keeps the network: gangs talk over it.

Where there is no bubblewrap, or it may not make namespaces, work runs as plain processes and says so; with the mode
`required` it does not run at all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from harch.base.errors import HarchError

SandboxMode = Literal["auto", "off", "required"]
MODES: tuple[SandboxMode, ...] = get_args(SandboxMode)
SETTING = "HARCH_SANDBOX"  # of agents and hubs
WORKERS_SETTING = "HARCH_PIPELINE_SANDBOX"  # of workers of pipelines, if it is to be another one
PROBE_TIMEOUT_S = 10.0
_SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# Of /etc/ssl and /etc/pki only what is public: their private keys stay outside.
_ETC = (
    *("ld.so.cache", "passwd", "group", "hosts", "resolv.conf", "nsswitch.conf", "localtime", "alternatives"),
    *("ssl/certs", "ssl/openssl.cnf", "ca-certificates", "pki/tls/certs", "pki/ca-trust/extracted"),
)
_GPU_DEVICES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps")
_GPU_TOPOLOGY = ("/sys/devices", "/sys/bus/pci", "/sys/class/net", "/sys/module/nvidia")  # NVML and NCCL read these


@dataclass(frozen=True, slots=True)
class HostLayout:
    """How this machine lays out its system folders: (path, target of the link, or empty for a real folder)."""

    system: tuple[tuple[str, str], ...]
    python: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SandboxView:
    """What one task gets to see and to write. Paths are the same inside and outside."""

    work_dir: str
    work_dir_shared: bool  # a folder of the node's, not one made for the task
    writable: tuple[str, ...]
    readable: tuple[str, ...]
    hidden: tuple[str, ...]
    gpu_indexes: tuple[int, ...]  # of real GPUs; modelled ones have no device
    env: dict[str, str]


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The chosen way to run tasks: `program` is bubblewrap's path, or empty for plain processes, and why. Where it is
    `required` and has no program, nothing may run."""

    program: str
    host: HostLayout
    detail: str
    required: bool = False

    @property
    def refusal(self) -> str:
        """Why nothing may run; empty where it may."""
        return f"work must run in a sandbox here, and {self.detail}" if self.required and not self.program else ""

    def check(self) -> None:
        """Raises E0312 where nothing may run."""
        if self.refusal:
            hint = f"`harch doctor` shows how to fix it; {SETTING}=auto would run work without a sandbox"
            raise HarchError("E0312", self.refusal, hint=hint)

    def features(self) -> dict[str, str]:
        return {"sandbox": "bubblewrap" if self.program else "plain", "sandbox_detail": self.detail}

    def arguments(self, view: SandboxView) -> list[str]:
        return bubblewrap_arguments(self.host, view) if self.program else []


def bubblewrap_arguments(host: HostLayout, view: SandboxView) -> list[str]:
    """Later arguments lie on top of earlier ones, so the order is: system, shared, hidden, own."""
    args = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    args += ["--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    args += ["--ro-bind", "/usr", "/usr"]
    for path, target in host.system:
        args += ["--symlink", target, path] if target else ["--ro-bind", path, path]
    for name in _ETC:
        args += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    args += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/var/tmp"]  # noqa: S108 - private ones
    if view.gpu_indexes:
        for device in (*_GPU_DEVICES, *(f"nvidia{index}" for index in view.gpu_indexes)):
            args += ["--dev-bind-try", f"/dev/{device}", f"/dev/{device}"]
        for path in _GPU_TOPOLOGY:
            args += ["--ro-bind-try", path, path]
    for path in host.python:
        args += ["--ro-bind", path, path]
    visible = ["/usr", *host.python]
    if view.work_dir_shared:
        args += ["--bind", view.work_dir, view.work_dir]
        visible.append(view.work_dir)
    for path in view.hidden:
        if any(is_inside(path, visible_path) for visible_path in visible):
            args += ["--tmpfs", path]
    if not view.work_dir_shared:
        args += ["--bind", view.work_dir, view.work_dir]
    for path in view.writable:
        args += ["--bind", path, path]
    for path in view.readable:
        args += ["--ro-bind", path, path]
    args += ["--remount-ro", "/", "--chdir", view.work_dir, "--clearenv"]
    for name, value in view.env.items():
        args += ["--setenv", name, value]
    return args


def is_inside(path: str, folder: str) -> bool:
    """True for the folder itself and all below it; both must be absolute and free of links."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def host_layout() -> HostLayout:
    system = []
    for path in _SYSTEM_FOLDERS:
        if os.path.islink(path):
            system.append((path, os.readlink(path)))
        elif os.path.isdir(path):
            system.append((path, ""))
    package = str(Path(__file__).parent.parent)  # outside of the prefix in a development install
    prefixes = dict.fromkeys(os.path.realpath(prefix) for prefix in (sys.base_prefix, sys.prefix, package))
    return HostLayout(tuple(system), tuple(prefix for prefix in prefixes if not is_inside(prefix, "/usr")))


def choose(mode: SandboxMode, scratch: Path) -> Sandbox:
    """`off`: plain processes. `auto`: bubblewrap, if it is there and a trial run in folder `scratch` works.
    `required`: the same, or nothing."""
    host, required = host_layout(), mode == "required"
    if mode == "off":
        return Sandbox("", host, "switched off")
    program = shutil.which("bwrap")
    if program is None:
        return Sandbox("", host, "bubblewrap (bwrap) is not installed", required)
    if failure := why_it_fails(program, host, scratch):
        return Sandbox("", host, f"bubblewrap does not work here: {failure}", required)
    return Sandbox(program, host, program, required)


def why_it_fails(program: str, host: HostLayout, scratch: Path) -> str:
    """A trial run with all that tasks get; empty if it works."""
    view = SandboxView(str(scratch), False, (), (), (), (), {"PATH": "/usr/bin:/bin"})
    command = [program, *bubblewrap_arguments(host, view), "--", "true"]
    try:
        trial = subprocess.run(command, env={}, capture_output=True, timeout=PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    output = trial.stderr.decode(errors="replace").strip().splitlines()
    return (output[-1] if output else f"exit status {trial.returncode}") if trial.returncode else ""


def agent_mode(environment: Mapping[str, str]) -> SandboxMode:
    """What agents are set to, unless their command line says it. Raises E0201."""
    return mode_named(environment.get(SETTING) or "auto", SETTING)


def workers_mode(environment: Mapping[str, str]) -> SandboxMode:
    """What workers of pipelines are set to. Raises E0201: a word that nobody knows must not mean less than it says."""
    if word := environment.get(WORKERS_SETTING):
        return mode_named(word, WORKERS_SETTING)
    return agent_mode(environment)


def mode_named(word: str, where: str = "the sandbox") -> SandboxMode:
    for mode in MODES:
        if word == mode:
            return mode
    raise HarchError("E0201", f"{where} is `{word}`", hint=f"use one of: {', '.join(MODES)}")
