"""What a task is given: its environment and its view of the machine are pure functions of what was asked."""

from __future__ import annotations

import itertools

from harch.execution.isolation.sandbox import HostLayout, SandboxView, bubblewrap_arguments, is_inside
from harch.execution.preparation import Folders, task_environment
from harch.execution.protocol import TaskKey, TaskSpec

HOST = HostLayout((("/bin", "usr/bin"), ("/lib64", "")), ("/opt/python",))
FOLDERS = Folders("/state/tasks/t/work", "/state/checkpoints/wl", "/dev/shm/harch/t")


def spec(**changes) -> TaskSpec:
    fields = {
        "key": TaskKey("wl", 2, 1),
        "name": "n",
        "tenant": "t",
        "node_id": "n1",
        "gpu_ids": ("g2", "g3"),
        "gpu_indexes": (2, 3),
        "gpus_modelled": False,
    }
    return TaskSpec(**{**fields, **changes})


def view(**changes) -> SandboxView:
    fields = {
        "work_dir": "/state/tasks/t/work",
        "work_dir_shared": False,
        "writable": ("/state/checkpoints/wl",),
        "readable": ("/dev/shm/harch/t",),
        "hidden": ("/state",),
        "gpu_indexes": (),
        "env": {"A": "1"},
    }
    return SandboxView(**{**fields, **changes})


def test_real_gpus_are_visible_by_index_and_modelled_ones_are_not():
    assert task_environment(spec(), FOLDERS, python_bin="/p")["CUDA_VISIBLE_DEVICES"] == "2,3"
    env = task_environment(spec(gpus_modelled=True), FOLDERS, python_bin="/p")
    assert (env["CUDA_VISIBLE_DEVICES"], env["HARCH_GPUS"]) == ("", "g2,g3")


def test_the_users_variables_win_except_those_that_say_what_was_allocated():
    env = task_environment(
        spec(env={"PATH": "/mine", "HARCH_RANK": "7", "HARCH_X": "1", "CUDA_VISIBLE_DEVICES": "0"}),
        FOLDERS,
        python_bin="/p",
    )
    assert (env["PATH"], env["HARCH_RANK"], env["CUDA_VISIBLE_DEVICES"]) == ("/mine", "1", "2,3")
    assert "HARCH_X" not in env


def test_secrets_are_named_by_folder_and_never_by_value():
    env = task_environment(spec(secrets={"TOKEN": "hidden-value"}), FOLDERS, python_bin="/p")
    assert env["HARCH_SECRETS"] == FOLDERS.secrets
    assert "hidden-value" not in " ".join(env.values())
    assert "HARCH_SECRETS" not in task_environment(spec(), Folders("/w", "/c", ""), python_bin="/p")


def test_the_sandbox_shares_nothing_but_the_network():
    args = bubblewrap_arguments(HOST, view())
    assert {"--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent"} <= set(args)
    assert "--unshare-net" not in args
    assert args[args.index("--cap-drop") + 1] == "ALL"
    bound = {args[i + 1] for i, arg in enumerate(args) if arg in ("--bind", "--ro-bind", "--dev-bind")}
    assert bound == {
        "/usr",
        "/lib64",
        "/opt/python",
        "/state/tasks/t/work",
        "/state/checkpoints/wl",
        "/dev/shm/harch/t",
    }
    writable = {args[i + 1] for i, arg in enumerate(args) if arg == "--bind"}
    assert writable == {"/state/tasks/t/work", "/state/checkpoints/wl"}


def test_state_inside_a_shared_folder_is_covered_after_it_is_bound_and_own_folders_come_last():
    args = bubblewrap_arguments(HOST, view(work_dir="/srv/u", work_dir_shared=True, hidden=("/srv/u/.harch",)))
    pairs = list(itertools.pairwise(args))
    shared, covered = pairs.index(("--bind", "/srv/u")), pairs.index(("--tmpfs", "/srv/u/.harch"))
    assert shared < covered < pairs.index(("--bind", "/state/checkpoints/wl"))


def test_devices_are_bound_for_real_gpus_only():
    assert not [arg for arg in bubblewrap_arguments(HOST, view()) if "nvidia" in arg]
    args = bubblewrap_arguments(HOST, view(gpu_indexes=(3,)))
    assert "/dev/nvidia3" in args
    assert "/dev/nvidia0" not in args


def test_a_neighbour_with_a_longer_name_is_not_inside():
    assert is_inside("/a/b", "/a")
    assert is_inside("/a", "/a")
    assert not is_inside("/ab", "/a")


def test_content_has_its_variables_and_an_environment_of_packages_comes_first():
    folders = Folders("/w", "/c", "", code="/w", data="/t/data", environment="/e")
    env = task_environment(
        spec(env={"PATH": "/mine", "PYTHONPATH": "/own", "VIRTUAL_ENV": "/x"}), folders, python_bin="/p"
    )
    assert (env["HARCH_CODE"], env["HARCH_DATA"], env["VIRTUAL_ENV"]) == ("/w", "/t/data", "/e")
    assert (env["PATH"], env["PYTHONPATH"]) == ("/e/bin:/mine", "/own")
    assert "/p" not in task_environment(spec(), folders, python_bin="/p")["PATH"], "its pip is not that of the agent"
    bare = task_environment(spec(), Folders("/w", "/c", ""), python_bin="/p")
    assert not {"HARCH_CODE", "HARCH_DATA", "VIRTUAL_ENV", "PYTHONPATH"} & set(bare)


def test_data_is_mounted_read_only_where_the_task_looks_for_it():
    args = bubblewrap_arguments(HOST, view(mounts=(("/state/content/trees/abc", "/state/tasks/t/data/corpus v1"),)))
    at = args.index("/state/content/trees/abc")
    assert args[at - 1 : at + 2] == ["--ro-bind", "/state/content/trees/abc", "/state/tasks/t/data/corpus v1"]
    assert at > args.index("/state/checkpoints/wl")
