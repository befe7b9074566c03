"""What may a task see of the machine? The arguments of bubblewrap: least privilege, as a pure function.

A task sees system programs and libraries, the running Python with this package, some harmless files of /etc, its own
folders, and nothing else: no other user's files, no state of hub or agent. It keeps the network: gangs talk over it.
A task in an image sees the files of the image, read-only, in place of all that the machine has installed.

Where there is no bubblewrap, or it may not make namespaces, work runs as plain processes and says so; with the mode
`required` it does not run at all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from harch.base.errors import HarchError, InvariantBroken
from harch.execution.isolation.root_fs import RootFs, root_arguments

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
_ETC_OF_NETWORK = ("hosts", "resolv.conf")  # the same inside of an image
_GPU_DEVICES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps")
_GPU_TOPOLOGY = ("/sys/devices", "/sys/bus/pci", "/sys/class/net", "/sys/module/nvidia")  # NVML and NCCL read these
# What talks to a GPU's kernel module must be of its version, so it comes from the node and never from an image.
_DRIVER_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
_DRIVER_FILES = ("libcuda.so*", "libcudadebugger.so*", "libnvcuvid.so*", "libnvidia-*.so*")
_DRIVER_IN_IMAGE = "/usr/local/nvidia/lib64"  # where images for GPUs look for it


@dataclass(frozen=True, slots=True)
class HostLayout:
    """How this machine lays out its system folders: (path, target of the link, or empty for a real folder)."""

    system: tuple[tuple[str, str], ...]
    python: tuple[str, ...]
    gpu_driver: tuple[str, ...] = ()  # libraries of the GPUs' driver


@dataclass(frozen=True, slots=True)
class SandboxView:
    """What one task gets to see and to write. Paths are the same inside and outside. `rootfs`: the image that it runs
    in; none: it runs in what the machine has installed."""

    work_dir: str
    work_dir_shared: bool  # a folder of the node's, not one made for the task
    writable: tuple[str, ...]
    readable: tuple[str, ...]
    hidden: tuple[str, ...]
    gpu_indexes: tuple[int, ...]  # of real GPUs; modelled ones have no device
    env: dict[str, str]
    rootfs: RootFs | None = None
    mounts: tuple[tuple[str, str], ...] = ()  # also readable, but elsewhere: (path outside, path inside)


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
        if not self.program and view.rootfs is not None:  # the command of an image must never meet the node's files
            raise InvariantBroken("sandbox", f"a task in the image {view.rootfs.path} would run outside of it")
        return bubblewrap_arguments(self.host, view) if self.program else []


def bubblewrap_arguments(host: HostLayout, view: SandboxView) -> list[str]:
    """Later arguments lie on top of earlier ones, so the order is: system or image, shared, hidden, own."""
    args = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    args += ["--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    if view.rootfs is None:
        args += [*_system_mounts(host, view), *_own_mounts(host, view)]
    else:
        mounts = [*_image_mounts(host, view, view.rootfs), *_own_mounts(host, view)]
        before, after = root_arguments(view.rootfs, mounts)
        args += [*before, *mounts, *after]
    args += ["--remount-ro", "/", "--chdir", view.work_dir, "--clearenv"]
    for name, value in view.env.items():
        args += ["--setenv", name, value]
    if view.rootfs is not None and view.gpu_indexes and host.gpu_driver:
        known = view.env.get("LD_LIBRARY_PATH", "")
        args += ["--setenv", "LD_LIBRARY_PATH", f"{known}:{_DRIVER_IN_IMAGE}".lstrip(":")]
    return args


def _system_mounts(host: HostLayout, view: SandboxView) -> list[str]:
    mounts = ["--ro-bind", "/usr", "/usr"]
    for path, target in host.system:
        mounts += ["--symlink", target, path] if target else ["--ro-bind", path, path]
    for name in _ETC:
        mounts += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    mounts += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/var/tmp"]  # noqa: S108 - private ones
    mounts += _gpu_mounts(view)
    for path in host.python:
        mounts += ["--ro-bind", path, path]
    return mounts


def _image_mounts(host: HostLayout, view: SandboxView, rootfs: RootFs) -> list[str]:
    """What an image does not bring: devices, private folders in memory, names of the network, the GPUs' driver."""
    mounts = ["--proc", "/proc", "--dev", "/dev"]
    for path in ("/tmp", "/var/tmp", "/run"):  # noqa: S108 - private ones
        mounts += ["--tmpfs", path]
    for name in _ETC_OF_NETWORK:
        mounts += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for name, source in rootfs.etc:
        mounts += ["--ro-bind", source, f"/etc/{name}"]
    mounts += _gpu_mounts(view)
    for path in host.gpu_driver if view.gpu_indexes else ():
        mounts += ["--ro-bind", path, f"{_DRIVER_IN_IMAGE}/{os.path.basename(path)}"]
    return mounts


def _gpu_mounts(view: SandboxView) -> list[str]:
    mounts = []
    if view.gpu_indexes:
        for device in (*_GPU_DEVICES, *(f"nvidia{index}" for index in view.gpu_indexes)):
            mounts += ["--dev-bind-try", f"/dev/{device}", f"/dev/{device}"]
        for path in _GPU_TOPOLOGY:
            mounts += ["--ro-bind-try", path, path]
    return mounts


def _own_mounts(host: HostLayout, view: SandboxView) -> list[str]:
    """Options for mounts only: `root_fs` reads them."""
    mounts = []
    visible = ["/usr", *host.python] if view.rootfs is None else []
    if view.work_dir_shared:
        mounts += ["--bind", view.work_dir, view.work_dir]
        visible.append(view.work_dir)
    for path in view.hidden:
        if any(is_inside(path, visible_path) for visible_path in visible):
            mounts += ["--tmpfs", path]
    if not view.work_dir_shared:
        mounts += ["--bind", view.work_dir, view.work_dir]
    for path in view.writable:
        mounts += ["--bind", path, path]
    for path in view.readable:
        mounts += ["--ro-bind", path, path]
    for source, target in view.mounts:
        mounts += ["--ro-bind", source, target]
    return mounts


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
    package = str(Path(__file__).parents[2])  # outside of the prefix in a development install
    prefixes = dict.fromkeys(os.path.realpath(prefix) for prefix in (sys.base_prefix, sys.prefix, package))
    own = tuple(prefix for prefix in prefixes if not is_inside(prefix, "/usr"))
    return HostLayout(tuple(system), own, gpu_driver(_DRIVER_FOLDERS))


def gpu_driver(folders: Iterable[str]) -> tuple[str, ...]:
    """The libraries of the driver, by the names that programs load them by."""
    found = (path for folder in folders for pattern in _DRIVER_FILES for path in Path(folder).glob(pattern))
    return tuple(sorted({path.name: str(path) for path in found if path.is_file()}.values()))


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
