"""What does a process see that runs in an image? The files of the image, its own folders, and nothing of the node."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from image_fakes import Node

from harch.execution.images.prepared import PreparedImage
from harch.execution.images.store import HeldImage
from harch.execution.isolation.root_fs import RootFs
from harch.execution.isolation.sandbox import SandboxView
from harch.testing.images import LayerFile, LayoutWriter, folder, layer, programs, symlink

HOME = "/home"
pytestmark = pytest.mark.needs("bubblewrap", "skopeo", "umoci")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Node:
    return Node(tmp_path_factory.mktemp("images") / "node")


@pytest.fixture(scope="module")
def image(node: Node) -> PreparedImage:
    files = [
        *programs("sh", "ls", "cat", "id", "touch", "env", "sleep"),
        *(
            folder("etc"),
            LayerFile("etc/passwd", b"root:x:0:0::/root:/bin/sh\n"),
            LayerFile("etc/issue", b"of the image"),
        ),
        *(folder("opt"), folder("opt/bin"), LayerFile("opt/bin/train", b"#!/bin/sh\necho trained\n", mode=0o755)),
        *(symlink("var", "/opt"), folder("home"), folder("home/maker"), LayerFile("su", b"x", mode=0o4755)),
    ]
    config = {"Env": ["PATH=/opt/bin:/bin", "CUDA=12", "HOME=/root"]}
    layout = LayoutWriter(node.folder / "image", config).write(layer(files))
    return node.prepare(HeldImage("image", "0" * 64, layout.folder))


class Task:
    """A command in the sandbox of a task; `folder` has its work."""

    def __init__(self, node: Node, image: PreparedImage, folder: Path, **changes: object) -> None:
        self.folder, self._node = folder, node
        for name in ("work", "checkpoint", "data"):
            (folder / name).mkdir(parents=True)
        (folder / "data" / "file").write_text("data")
        env = image.environment({"PATH": "/agent/bin", "HOME": str(folder / "work"), "LANG": "C.UTF-8"}, {})
        fields: dict[str, object] = {
            "work_dir": str(folder / "work"),
            "work_dir_shared": False,
            "writable": (str(folder / "checkpoint"),),
            "readable": (str(folder / "data"),),
            "hidden": (str(folder),),
            "gpu_indexes": (),
            "env": env,
            "rootfs": image.rootfs,
        }
        self.view = SandboxView(**{**fields, **changes})  # type: ignore[arg-type]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        words = [self._node.sandbox.program, *self._node.sandbox.arguments(self.view), "--", *command]
        return subprocess.run(words, capture_output=True, text=True, check=False, env={})


@pytest.fixture
def task(node: Node, image: PreparedImage, tmp_path: Path) -> Task:
    return Task(node, image, tmp_path / "task")


def output(task: Task, script: str) -> list[str]:
    done = task.run("sh", "-c", script)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_command_is_looked_up_in_the_path_of_the_image(task: Task) -> None:
    assert task.run("train").stdout == "trained\n"
    missing = task.run("python3")
    assert missing.returncode != 0
    assert "No such file" in missing.stderr


def test_the_files_are_those_of_the_image_and_its_folders_those_of_the_task(task: Task) -> None:
    assert output(task, "cat /etc/issue") == ["of", "the", "image"]
    assert output(task, "ls /home") == ["maker"]
    assert output(task, "test -e /usr/share || echo absent") == ["absent"]
    work = str(task.folder / "work")
    script = "pwd; echo $HOME; echo result > out; cat out; cat ../data/file"
    assert output(task, script) == [work, work, "result", "data"]
    assert (task.folder / "work" / "out").read_text() == "result\n"


def test_nothing_of_the_image_can_be_written_and_what_is_private_can(task: Task) -> None:
    for path in ("/x", "/etc/x", "/opt/x", f"{HOME}/x", f"{HOME}/maker/x", "/bin/sh", "/usr/x"):
        done = task.run("touch", path)
        assert done.returncode != 0, path
    script = "for d in /tmp /var/tmp /run /dev/shm ../checkpoint .; do touch $d/x && echo $d; done"
    assert len(output(task, script)) == 6
    assert task.run("touch", str(task.folder / "data" / "x")).returncode != 0


def test_a_path_of_the_image_that_is_a_link_does_not_lead_a_mount_astray(task: Task, image: PreparedImage) -> None:
    """/var of the image is a link to /opt; the private /var/tmp must not appear there."""
    assert output(task, "touch /var/tmp/x; ls /opt; ls /var") == ["bin", "tmp"]
    assert not (Path(image.rootfs.path) / "opt" / "tmp").exists()


def test_the_node_stays_out_of_sight(task: Task, node: Node) -> None:
    looks = f"test -e {node.folder} && echo node; test -e /etc/shadow && echo shadow"
    names = output(task, f"ls {task.folder}; ls /home; {looks}; ls /proc")
    assert names[:4] == ["checkpoint", "data", "work", "maker"]
    assert not {"node", "shadow"} & set(names)
    assert len([name for name in names if name.isdecimal()]) <= 4


def test_the_user_has_a_name_and_no_rights(task: Task) -> None:
    assert output(task, "id -un") == ["root" if os.getuid() == 0 else "harch"]
    status = output(task, "cat /proc/self/status")
    at = status.index("CapEff:")
    assert status[at + 1] == "0" * 16
    assert status[status.index("NoNewPrivs:") + 1] == "1"
    mounts = [line.split() for line in task.run("cat", "/proc/self/mounts").stdout.splitlines()]
    options = {mount[1]: mount[3].split(",") for mount in mounts}
    for path in ("/su", "/etc", "/opt"):  # each a part of the image
        assert {"ro", "nosuid", "nodev"} <= set(options[path])


def test_the_environment_is_the_images_below_the_tasks(task: Task) -> None:
    env = dict(line.split("=", 1) for line in task.run("env").stdout.splitlines())
    assert (env["PATH"], env["CUDA"]) == ("/opt/bin:/bin", "12")
    assert env["HOME"] == str(task.folder / "work")


def test_names_of_the_network_are_the_nodes(task: Task) -> None:
    for name in ("hosts", "resolv.conf"):
        if Path(f"/etc/{name}").exists():
            assert task.run("cat", f"/etc/{name}").stdout == Path(f"/etc/{name}").read_text()


def test_a_shared_folder_is_at_the_same_path_and_state_in_it_stays_hidden(
    node: Node, image: PreparedImage, tmp_path: Path
) -> None:
    share = tmp_path / "share"
    (share / "state").mkdir(parents=True)
    (share / "state" / "secret").touch()
    task = Task(
        node,
        image,
        tmp_path / "task",
        work_dir=str(share),
        work_dir_shared=True,
        hidden=(str(share / "state"),),
    )
    assert output(task, "pwd; ls; ls state; echo x > out") == [str(share), "state"]
    assert (share / "out").exists()


def test_tasks_in_one_image_do_not_see_each_other(node: Node, image: PreparedImage, tmp_path: Path) -> None:
    first, second = (Task(node, image, tmp_path / name) for name in ("first", "second"))
    assert output(first, "touch /tmp/x /run/x; ls /tmp /run | cat").count("x") == 2
    assert "x" not in output(second, f"ls /tmp /run | cat; ls {tmp_path} | cat")
    assert output(second, f"ls {tmp_path}") == ["second"]


def test_an_account_of_the_agent_is_shown_in_place_of_the_images_file(task: Task, image: PreparedImage) -> None:
    names = task.folder / "passwd"
    names.write_text(f"root:x:0:0::/root:/bin/sh\nharch:x:{os.getuid()}:0::/:/bin/sh\n")
    rootfs = RootFs(image.rootfs.path, (("passwd", str(names)),))
    other = Task(task._node, image, task.folder / "other", rootfs=rootfs)
    assert other.run("cat", "/etc/passwd").stdout == names.read_text()
    assert output(other, "cat /etc/issue") == ["of", "the", "image"]
