"""Is an unpacked image harmless, within its limits, and does a task get the environment that it expects?"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.execution.images import limits, unpacking
from harch.execution.images.layout import read_layout
from harch.execution.images.limits import DiskWatch, ImageSettings, folder_use, in_words, settings_from
from harch.execution.images.manifest import Platform
from harch.execution.images.prepared import DEFAULT_PATH, ImageRecord, PreparedImage, read_prepared
from harch.execution.images.tools import Hooks, ToolResult, ToolView
from harch.execution.images.unpacking import (
    ETC_FOLDER,
    Umoci,
    make_mount_points,
    remove_tree,
    root_of,
    tidy,
    write_accounts,
)
from harch.execution.isolation.root_fs import RootFs, root_arguments
from harch.testing.images import LayerFile, LayoutWriter, layer

SETTINGS = ImageSettings(disk_free_bytes_min=0)


def prepared(**changes: object) -> PreparedImage:
    fields: dict[str, object] = {
        "digests": ("sha256:x",),
        "env": {},
        "entrypoint": (),
        "cmd": (),
        "workdir": "",
        "user": "",
    }
    return PreparedImage("x", RootFs("/x"), ImageRecord(**{**fields, **changes}))  # type: ignore[arg-type]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_nothing_that_is_unpacked_gives_rights_blocks_readers_or_resists_deletion(tmp_path: Path) -> None:
    root = tmp_path / "rootfs"
    (root / "closed" / "inner").mkdir(parents=True)
    for name, mode in (("su", 0o4755), ("group", 0o2711), ("plain", 0o640)):
        (root / name).touch()
        (root / name).chmod(mode)
    os.mkfifo(root / "pipe")
    (root / "link").symlink_to("/etc/passwd")
    (root / "sticky").mkdir()
    (root / "sticky").chmod(0o3777)
    (root / "closed" / "inner").chmod(0)
    (root / "closed").chmod(0o511)
    tidy(root)
    assert (mode_of(root / "su"), mode_of(root / "group"), mode_of(root / "plain")) == (0o755, 0o711, 0o640)
    assert (mode_of(root / "closed"), mode_of(root / "closed" / "inner")) == (0o711, 0o700)
    assert mode_of(root / "sticky") == 0o1777
    assert not (root / "pipe").exists()
    assert os.readlink(root / "link") == "/etc/passwd"


def test_folders_that_are_too_deep_for_whoever_walks_them_are_refused_and_still_deleted(tmp_path: Path) -> None:
    root = tmp_path / "rootfs"
    root.mkdir()
    at = os.open(root, os.O_RDONLY)
    for _ in range(1500):  # deeper than Python recurses
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    assert folder_use(root).entries == 1500
    with pytest.raises(HarchError, match=f"more than {unpacking.DEPTH_MAX} folders"):
        tidy(root)
    remove_tree(root)
    assert not root.exists()


def test_removing_a_tree_spares_what_its_links_lead_to(tmp_path: Path) -> None:
    (tmp_path / "kept" / "folder").mkdir(parents=True)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "kept")
    remove_tree(tmp_path / "tree")
    remove_tree(tmp_path / "absent")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    remove_tree(tmp_path / "link")
    assert (tmp_path / "kept" / "folder").is_dir()


def test_a_file_with_two_names_counts_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 50_000)
    alone = folder_use(tmp_path).bytes
    os.link(tmp_path / "a", tmp_path / "b")
    assert folder_use(tmp_path).bytes == alone >= 50_000


def test_a_folder_that_grows_too_large_ends_what_fills_it(tmp_path: Path) -> None:
    done: list[int] = []
    watch = DiskWatch(tmp_path, SETTINGS, bytes_max=100_000, progress=done.append)
    (tmp_path / "a").write_bytes(b"x" * 50_000)
    watch()
    assert done == [folder_use(tmp_path).bytes]
    (tmp_path / "b").write_bytes(b"x" * 60_000)
    with pytest.raises(HarchError, match="more than 0 MB") as refused:
        watch.look()
    assert refused.value.code == "E1133"


def test_a_folder_with_too_many_files_ends_what_fills_it(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / str(number)).touch()
    DiskWatch(tmp_path, ImageSettings(disk_free_bytes_min=0, entries_max=4), bytes_max=1000)()
    with pytest.raises(HarchError, match="more than 3 files"):
        DiskWatch(tmp_path, ImageSettings(disk_free_bytes_min=0, entries_max=3), bytes_max=1000)()


def test_a_disk_that_is_nearly_full_ends_what_fills_it(tmp_path: Path) -> None:
    with pytest.raises(HarchError, match="nearly full") as refused:
        DiskWatch(tmp_path, ImageSettings(disk_free_bytes_min=1 << 62), bytes_max=1000)()
    assert refused.value.code == "E1113"


class StubRunner:
    """In place of umoci: writes for as long as nobody stops it, or at most so much."""

    def __init__(self, bytes_max: int, *, is_watched: bool) -> None:
        self.bytes_max, self.is_watched, self.written = bytes_max, is_watched, 0

    def run(self, command: object, view: ToolView, hooks: Hooks, *, timeout_s: float, watch: object) -> ToolResult:
        root = Path(view.writable[0][1]) / "rootfs"
        root.mkdir()
        while self.written < self.bytes_max:
            (root / str(self.written)).write_bytes(bytes(100_000))
            self.written += 100_000
            if self.is_watched:
                watch()  # type: ignore[operator]
        return ToolResult(0, b"", ())


@pytest.mark.parametrize("is_watched", [True, False])
def test_umoci_is_stopped_as_soon_as_it_has_written_too_much_and_what_was_missed_counts_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_watched: bool
) -> None:
    monkeypatch.setattr(DiskWatch, "LOOK_S_MIN", 0.0)
    monkeypatch.setattr(DiskWatch, "SHARE_MAX", 1e9)  # it looks each time
    writer = LayoutWriter(tmp_path / "image", architecture="amd64").write(layer([LayerFile("a")]))
    for name in ("out", "scratch"):
        (tmp_path / name).mkdir()
    runner = StubRunner(5_000_000, is_watched=is_watched)
    settings = ImageSettings(disk_free_bytes_min=0, unpacked_bytes_max=1_000_000)
    umoci = Umoci("umoci", runner, settings)  # type: ignore[arg-type]
    hooks = Hooks(lambda line: None, lambda detail: None, lambda: None)
    with pytest.raises(HarchError, match="too large for this node"):
        umoci.unpack(read_layout(writer.folder, Platform()), tmp_path / "out", tmp_path / "scratch", hooks)
    assert runner.written <= (1_500_000 if is_watched else 5_000_000)


def test_looks_at_a_large_folder_are_rare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(limits.time, "monotonic", lambda: now[0])
    looks: list[int] = []
    watch = DiskWatch(tmp_path, SETTINGS, bytes_max=1000, progress=looks.append)
    watch()
    watch()
    now[0] += DiskWatch.LOOK_S_MIN
    watch()
    assert len(looks) == 2


@pytest.mark.parametrize("registry", ["127.0.0.1:5000", "localhost", "lab.example:5000"])
def test_only_registries_of_this_machine_or_of_the_agents_list_may_do_without_tls(registry: str) -> None:
    settings = settings_from({"HARCH_INSECURE_REGISTRIES": " Lab.example:5000, ,x"})
    assert not settings.speaks_tls(registry)
    assert settings.speaks_tls("lab.example")
    assert settings.speaks_tls("registry.example:5000")
    assert ImageSettings().speaks_tls("lab.example:5000")


def test_an_image_gets_the_mount_points_that_every_task_needs(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "hosts").write_text("of the image")
    (tmp_path / "etc" / "resolv.conf").symlink_to("../run/resolv.conf")
    make_mount_points(RootFs(str(tmp_path)))
    assert (tmp_path / "var" / "tmp").is_dir()
    assert (tmp_path / "etc" / "hosts").read_text() == "of the image"
    mounts = ["--tmpfs", "/tmp", "--tmpfs", "/var/tmp", "--tmpfs", "/run", "--proc", "/proc", "--dev", "/dev"]
    mounts += ["--ro-bind", "/etc/hosts", "/etc/hosts", "--ro-bind", "/etc/hosts", "/etc/resolv.conf"]
    assert root_arguments(RootFs(str(tmp_path)), mounts)[0] == ["--ro-bind", str(tmp_path), "/"]


def test_mount_points_are_not_made_behind_links_of_the_image(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "rootfs").mkdir()
    for name in ("var", "etc", "tmp"):
        (tmp_path / "rootfs" / name).symlink_to(outside)
    make_mount_points(RootFs(str(tmp_path / "rootfs")))
    assert os.listdir(outside) == []


def test_the_user_of_the_agent_has_a_name_in_every_image_that_has_names(tmp_path: Path) -> None:
    etc = tmp_path / "rootfs" / "etc"
    etc.mkdir(parents=True)
    (etc / "passwd").write_text("root:x:0:0::/root:/bin/sh\napp:x:12:34::/app:/bin/sh")
    (tmp_path / "of the node").write_text("root:x:0:\n")
    (etc / "group").symlink_to(tmp_path / "of the node")
    write_accounts(tmp_path, 1000, 1000)
    files = dict(root_of(tmp_path).etc)
    assert list(files) == ["passwd"], "a link is not followed"
    assert Path(files["passwd"]).read_text().splitlines()[-2:] == [
        "app:x:12:34::/app:/bin/sh",
        "harch:x:1000:1000:task:/tmp:/bin/sh",
    ]


def test_an_image_that_knows_the_agents_user_or_nobody_keeps_its_files(tmp_path: Path) -> None:
    (tmp_path / "rootfs" / "etc").mkdir(parents=True)
    (tmp_path / "rootfs" / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    write_accounts(tmp_path, 0, 0)
    assert os.listdir(tmp_path / ETC_FOLDER) == []


def test_the_image_decides_what_its_maker_knows_better_and_nothing_else() -> None:
    image = prepared(
        env={
            "PATH": "/opt/bin",
            "LANG": "fr_FR",
            "HOME": "/root",
            "RANK": "7",
            "HARCH_NODE": "x",
            "X": "y",
            "LR": "1",
        }
    )
    task = {"PATH": "/agent/bin", "LANG": "C.UTF-8", "HOME": "/work", "RANK": "0", "HARCH_NODE": "n1", "LR": "2"}
    assert image.environment(task, {"LR": "2"}) == {
        "PATH": "/opt/bin",
        "LANG": "fr_FR",
        "HOME": "/work",
        "RANK": "0",
        "HARCH_NODE": "n1",
        "X": "y",
        "LR": "2",
    }
    assert image.environment(task, {"PATH": "/agent/bin"})["PATH"] == "/agent/bin", "its owner has set it"
    assert prepared().environment(task, {})["PATH"] == DEFAULT_PATH
    assert "HARCH_FORGED" not in prepared(env={"HARCH_FORGED": "1"}).environment(task, {})


def test_what_is_not_followed_of_an_image_is_said() -> None:
    assert list(prepared(workdir="/", user="root").unused()) == []
    said = " ".join(prepared(entrypoint=("/entry", "x"), workdir="/app", user="1000").unused())
    assert "/entry x" in said
    assert "/app" in said
    assert "1000" in said


def test_a_record_that_is_damaged_says_what_to_delete(tmp_path: Path) -> None:
    (tmp_path / "image.json").write_bytes(b"{")
    with pytest.raises(HarchError, match="is damaged") as refused:
        read_prepared(tmp_path, "x")
    assert refused.value.code == "E1113"
    assert f"rm -r {tmp_path}" in (refused.value.hint or "")


def test_sizes_are_written_for_people() -> None:
    assert [in_words(size) for size in (0, 5_400_000, 12_400_000_000)] == ["0 MB", "5 MB", "12.4 GB"]
