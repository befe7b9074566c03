"""Can each folder of a task be mounted in an image, whatever the image has at that path?"""

from __future__ import annotations

import os
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harch.base.errors import HarchError, InvariantBroken
from harch.execution.isolation import root_fs
from harch.execution.isolation.root_fs import MountPoint, RootFs, mount_points, plan_root, root_arguments
from harch.execution.isolation.sandbox import HostLayout, Sandbox, SandboxView, bubblewrap_arguments, gpu_driver

HOME = "/home"
HOST = HostLayout((), ())


@pytest.fixture
def image(tmp_path: Path) -> Path:
    root = tmp_path / "rootfs"
    for folder in ("etc", "home/somebody", "usr/lib", "var/lib"):
        (root / folder).mkdir(parents=True)
    (root / "etc" / "hosts").write_text("")
    (root / "bin").symlink_to("usr/bin")
    (root / "var" / "run").symlink_to("/run")
    return root


def plan(image: Path, *points: tuple[str, bool]) -> root_fs.RootPlan:
    return plan_root(RootFs(str(image)), [MountPoint(path, is_folder) for path, is_folder in points])


def view(work: Path, image: Path | None, **changes: object) -> SandboxView:
    fields: dict[str, object] = {
        "work_dir": str(work),
        "work_dir_shared": False,
        "writable": (),
        "readable": (),
        "hidden": (),
        "gpu_indexes": (),
        "env": {"PATH": "/usr/bin:/bin"},
        "rootfs": RootFs(str(image)) if image is not None else None,
    }
    return SandboxView(**{**fields, **changes})  # type: ignore[arg-type]


def test_what_lies_behind_a_link_is_not_of_the_image(image: Path, tmp_path: Path) -> None:
    (tmp_path / "passwd").touch()
    (image / "out").symlink_to(tmp_path)
    root = RootFs(str(image))
    assert root.mode_of("/out/passwd") is None
    assert root.mode_of("/out") is not None
    assert not root.is_folder("/out")


def test_a_folder_that_the_image_has_is_mounted_on(image: Path) -> None:
    assert plan(image, ("/var/lib", True), ("/etc/hosts", False)).replaced == ()


def test_only_the_folder_in_which_something_is_missing_is_replaced(image: Path) -> None:
    assert plan(image, (f"{HOME}/me/work", True)).replaced == ("/home",)
    assert plan(image, ("/opt/data", True)).replaced == ("/",)
    assert plan(image, ("/etc/resolv.conf", False), ("/srv", True)).replaced == ("/", "/etc")


def test_what_lies_below_another_mount_needs_no_room_in_the_image(image: Path) -> None:
    assert plan(image, ("/home", True), (f"{HOME}/me/work", True)).replaced == ()


def test_a_link_at_or_above_a_mount_point_gives_way_and_is_never_followed(image: Path) -> None:
    found = plan(image, ("/var/run/secrets", True))
    assert (found.replaced, found.left_out) == (("/var",), {"/var/run"})
    (image / "home" / "me").symlink_to("/etc")
    found = plan(image, (f"{HOME}/me", True))
    assert (found.replaced, found.left_out) == (("/home",), {f"{HOME}/me"})


def test_a_file_in_place_of_a_folder_gives_way_and_the_other_way_round(image: Path) -> None:
    assert plan(image, ("/etc/hosts/x", True)).left_out == {"/etc/hosts"}
    assert plan(image, ("/var/lib", False)).left_out == {"/var/lib"}


def test_what_else_a_replaced_folder_has_stays_in_it(image: Path) -> None:
    (image / "home" / "file").touch()
    (image / "home" / "link").symlink_to("somebody")
    os.mkfifo(image / "home" / "pipe")
    before, after = root_arguments(RootFs(str(image)), ["--bind", "/tmp", f"{HOME}/me"])
    assert before == [
        *("--ro-bind", str(image), "/", "--tmpfs", "/home"),
        *("--ro-bind", f"{image}/home/file", f"{HOME}/file"),
        *("--symlink", "somebody", f"{HOME}/link"),
        *("--ro-bind", f"{image}/home/somebody", f"{HOME}/somebody"),
    ]
    assert after == ["--remount-ro", "/home"]


def test_a_name_that_no_launch_file_can_hold_is_left_out(image: Path) -> None:
    (Path(os.fsdecode(os.fsencode(str(image / "home")) + b"/\xff"))).mkdir()
    before, _ = root_arguments(RootFs(str(image)), ["--bind", "/tmp", f"{HOME}/me"])
    assert all(word.isascii() for word in before)
    assert f"{image}/home/somebody" in before


def test_a_folder_with_too_many_files_to_mount_one_by_one_is_refused(
    image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(root_fs, "CHILDREN_MAX", 3)
    for number in range(3):
        (image / "home" / str(number)).mkdir()
    with pytest.raises(HarchError, match="the image has 4 files in /home") as refused:
        root_arguments(RootFs(str(image)), ["--bind", "/tmp", f"{HOME}/me"])
    assert refused.value.code == "E1133"


def test_mounts_that_the_node_has_not_need_no_mount_point() -> None:
    assert mount_points(["--ro-bind-try", "/nowhere", "/etc/nowhere", "--tmpfs", "/run/", "--bind", "/etc", "/x"]) == [
        MountPoint("/run", True),
        MountPoint("/x", True),
    ]


def test_a_task_in_an_image_gets_nothing_that_the_machine_has_installed(image: Path, tmp_path: Path) -> None:
    host = HostLayout((("/lib", "usr/lib"),), ("/opt/python",))
    words = bubblewrap_arguments(host, view(tmp_path, image, hidden=("/usr/state",)))
    assert "/usr/state" not in words, "there is nothing to hide"
    shown = {source for option, source in pairwise(words) if option.endswith("bind")}
    assert not {"/usr", "/opt/python"} & shown
    assert "usr/lib" not in words
    assert {"/usr", "/opt/python"} <= set(bubblewrap_arguments(host, view(tmp_path, None)))


def test_a_task_in_an_image_never_runs_without_a_sandbox(image: Path, tmp_path: Path) -> None:
    with pytest.raises(InvariantBroken, match="would run outside of it"):
        Sandbox("", HOST, "switched off").arguments(view(tmp_path, image))
    assert Sandbox("", HOST, "switched off").arguments(view(tmp_path, None)) == []


def test_a_task_with_gpus_gets_the_driver_of_the_node_in_its_image(image: Path, tmp_path: Path) -> None:
    libraries = tmp_path / "lib"
    libraries.mkdir()
    for name in ("libcuda.so.1", "libnvidia-ml.so.1", "libc.so.6", "libcudart.so.12"):
        (libraries / name).touch()
    (libraries / "libcuda.so").symlink_to("nowhere")
    found = gpu_driver([str(libraries), str(tmp_path / "absent")])
    assert [Path(path).name for path in found] == ["libcuda.so.1", "libnvidia-ml.so.1"]
    host = HostLayout((), (), found)
    env = {"PATH": "/bin", "LD_LIBRARY_PATH": "/own"}
    words = bubblewrap_arguments(host, view(tmp_path, image, gpu_indexes=(0,), env=env))
    at = words.index("/usr/local/nvidia/lib64/libcuda.so.1")
    assert words[at - 2 : at] == ["--ro-bind", f"{libraries}/libcuda.so.1"]
    assert words[-3:] == ["--setenv", "LD_LIBRARY_PATH", "/own:/usr/local/nvidia/lib64"]
    assert "libcuda.so.1" not in " ".join(bubblewrap_arguments(host, view(tmp_path, image)))


_NAMES = st.sampled_from("ab")
_PATHS = st.lists(_NAMES, min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))
_KINDS = st.sampled_from(["folder", "file", "link", "absolute link"])


@pytest.mark.needs("bubblewrap")
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(entries=st.lists(st.tuples(_PATHS, _KINDS), max_size=8), targets=st.lists(_PATHS, min_size=1, max_size=3))
def test_bubblewrap_takes_every_plan_and_shows_all_that_did_not_give_way(
    tmp_path: Path, entries: list[tuple[str, str]], targets: list[str]
) -> None:
    root, mounted = tmp_path / "rootfs", tmp_path / "mounted"
    shutil.rmtree(root, ignore_errors=True)
    mounted.mkdir(exist_ok=True)
    (mounted / "own").touch()
    for folder in ("usr", "outside"):
        (root / folder).mkdir(parents=True)
    targets = sorted(set(targets), key=len)  # what is mounted later hides what lies below it
    for path, kind in entries:
        _make(root, path, kind)
    mounts = ["--tmpfs", "/outside", *(word for path in targets for word in ("--bind", str(mounted), path))]
    for folder in ("/usr", "/lib", "/lib64", "/bin"):  # so that something runs
        mounts += ["--ro-bind-try", folder, folder]
    before, after = root_arguments(RootFs(str(root)), mounts)
    shows = " && ".join(f"test -e {path}/own" for path in targets)
    kept = [path for path, _ in entries if _is_kept(root, path, targets)]
    shows += "".join(f" && test -L {path} -o -e {path}" for path in kept)
    command = [shutil.which("bwrap") or "", "--unshare-user", *before, *mounts, *after, "--", "/bin/sh", "-c", shows]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stderr, command)
    for name in ("own", *(path[1:] for path in targets)):
        assert not (root / "outside" / name).exists(), "nothing is made in the image"


def _make(root: Path, path: str, kind: str) -> None:
    target = root / path[1:]
    if any(parent.is_symlink() or parent.is_file() for parent in (target, *target.parents)) or target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    match kind:
        case "folder":
            target.mkdir()
        case "file":
            target.touch()
        case "link":
            target.symlink_to("../outside")
        case _:
            target.symlink_to("/outside")


def _is_kept(root: Path, path: str, targets: list[str]) -> bool:
    """Neither at, nor below, nor above a mount point."""
    return (root / path[1:]).is_symlink() | (root / path[1:]).exists() and not any(
        f"{target}/".startswith(f"{path}/") or f"{path}/".startswith(f"{target}/") for target in targets
    )
