"""Is an image in a data object unpacked, whatever made it, and does a hostile one reach nothing?"""

from __future__ import annotations

import gzip
import os
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest
from image_fakes import Node

from harch.base.errors import HarchError
from harch.execution.images import unpacking
from harch.execution.images.store import HeldImage
from harch.testing.images import LayerFile, LayoutWriter, folder, layer, symlink

pytestmark = pytest.mark.needs("bubblewrap", "skopeo", "umoci")

TREE = "ab" * 32


class Stopped(Exception):
    pass


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "node")


def held(path: Path) -> HeldImage:
    return HeldImage("corpus", TREE, path)


def unpack(node: Node, path: Path) -> Path:
    return Path(node.prepare(held(path)).rootfs.path)


def image_of(path: Path, *files: LayerFile) -> Path:
    return LayoutWriter(path).write(layer(files)).folder


def archive(tmp_path: Path, layout: Path, kind: str, *, compress: bool = False) -> Path:
    path = tmp_path / "data" / "image.tar"
    path.parent.mkdir()
    name = ":team/x:1" if kind == "docker-archive" else ":image"
    subprocess.run(["skopeo", "copy", "-q", f"oci:{layout}:image", f"{kind}:{path}{name}"], check=True)
    if compress:
        (path.parent / "image.tar.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
        path.unlink()
    return path.parent


@pytest.mark.parametrize("compress", [True, False])
def test_a_layout_is_an_image(node: Node, tmp_path: Path, compress: bool) -> None:
    LayoutWriter(tmp_path / "image").write(layer([LayerFile("a", b"1")]), compress=compress)
    root = unpack(node, tmp_path / "image")
    assert (root / "a").read_bytes() == b"1"
    for name in ("proc", "tmp", "etc/resolv.conf"):
        assert (root / name).exists(), "so that no task has to replace a folder in which it is missing"


def test_the_user_that_work_runs_as_has_a_name_in_its_image(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = image_of(tmp_path / "image", LayerFile("etc/passwd", b"root:x:0:0::/root:/bin/sh\n"))
    monkeypatch.setattr("harch.execution.images.unpacking.os.getuid", lambda: 54321)
    files = dict(node.prepare(held(path)).rootfs.etc)
    assert "harch:x:54321:" in Path(files["passwd"]).read_text()


def test_an_image_above_the_limit_is_not_unpacked(tmp_path: Path) -> None:
    path = image_of(tmp_path / "image", LayerFile("x", os.urandom(50_000)))
    with pytest.raises(HarchError, match="too large for this node"):
        unpack(Node(tmp_path / "node", bytes_max=10_000), path)


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("kind", ["docker-archive", "oci-archive"])
def test_an_archive_is_an_image(node: Node, tmp_path: Path, kind: str, compress: bool) -> None:
    layout = LayoutWriter(tmp_path / "image", {"Env": ["A=1"]}).write(
        layer([LayerFile("a", b"1"), LayerFile("gone")]), layer([LayerFile(".wh.gone")])
    )
    prepared = node.prepare(held(archive(tmp_path, layout.folder, kind, compress=compress)))
    assert {"a", "gone"} & set(os.listdir(prepared.rootfs.path)) == {"a"}
    assert prepared.record.env == {"A": "1"}
    assert prepared.cache_name == f"data-{TREE}", "so nobody gets at it by the digest of the image"


def test_an_image_of_a_data_object_is_not_copied_or_changed(node: Node, tmp_path: Path) -> None:
    path = image_of(tmp_path / "image", LayerFile("a", b"1"))
    before = {str(one): one.stat().st_mtime_ns for one in path.rglob("*")}
    for one in path.rglob("*"):
        one.chmod(0o555 if one.is_dir() else 0o444)
    unpack(node, path)
    assert {str(one): one.stat().st_mtime_ns for one in path.rglob("*")} == before


def test_a_data_object_with_something_else_is_refused(node: Node, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.csv").write_text("1")
    with pytest.raises(HarchError, match="neither an OCI layout nor exactly one archive") as refused:
        unpack(node, tmp_path / "data")
    assert refused.value.code == "E1133"
    assert "oci:DIR" in (refused.value.hint or "")


def test_an_archive_that_skopeo_cannot_read_says_why(node: Node, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "image.tar").write_bytes(layer([LayerFile("manifest.json", b"[{]")]))
    with pytest.raises(HarchError, match=r"its archive image\.tar cannot be read") as refused:
        unpack(node, tmp_path / "data")
    assert refused.value.code == "E1133"


def test_a_damaged_layer_is_noticed_and_leaves_nothing(node: Node, tmp_path: Path) -> None:
    writer = LayoutWriter(tmp_path / "image").write(layer([LayerFile("x", os.urandom(50_000))]), compress=False)
    path = writer.folder / "blobs" / "sha256" / writer.layer_digests[0].removeprefix("sha256:")
    data = bytearray(path.read_bytes())
    data[20_000] ^= 1  # a byte of the file, which tar does not check
    path.write_bytes(bytes(data))
    with pytest.raises(HarchError) as refused:
        unpack(node, writer.folder)
    assert refused.value.code == "E1133"
    assert os.listdir(node.cache.folder) == []


def test_no_layer_writes_or_deletes_outside_of_its_files(node: Node, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    root = unpack(
        node,
        image_of(
            tmp_path / "image",
            LayerFile("../../../escaped", b"1"),
            LayerFile("/absolute", b"1"),
            symlink("link", str(outside)),
            LayerFile("link/through", b"1"),
            LayerFile("link/.wh.kept"),
            symlink("up", "../../../../../../../.."),
            LayerFile(f"up{outside}/again", b"1"),
        ),
    )
    assert os.listdir(outside) == ["kept"]
    assert (root / "escaped").read_bytes() == b"1"
    assert (root / "absolute").read_bytes() == b"1"
    assert not (tmp_path / "escaped").exists()


@pytest.mark.parametrize("name", [".wh...", ".wh..", ".wh.", "a/.wh...", "../.wh.cache"])
def test_no_whiteout_deletes_what_is_beside_the_image(node: Node, tmp_path: Path, name: str) -> None:
    """umoci 0.4.7 deletes the parent of its target for the first of these names."""
    (node.cache.folder / "other").mkdir()
    (node.folder / "work" / "file").touch()
    path = image_of(tmp_path / "image", folder("a"), LayerFile("a/b", b"1"), LayerFile(name))
    try:
        unpack(node, path)
    except HarchError as refused:
        assert refused.code == "E1133"  # noqa: PT017 - either it is refused or it is harmless
    assert {"other"} <= set(os.listdir(node.cache.folder))
    assert os.listdir(node.folder / "work") == ["file"]
    assert os.listdir(node.scratch) == []
    assert (path / "index.json").exists()


@pytest.mark.parametrize(
    "file",
    [
        LayerFile("stolen", kind=tarfile.LNKTYPE, link="../../../../../../etc/passwd"),
        LayerFile(".", kind=tarfile.SYMTYPE, link="/tmp"),
    ],
    ids=["hard link", "root as a link"],
)
def test_a_layer_that_reaches_for_the_node_is_refused(node: Node, tmp_path: Path, file: LayerFile) -> None:
    with pytest.raises(HarchError) as refused:
        unpack(node, image_of(tmp_path / "image", file, LayerFile("x", b"1")))
    assert refused.value.code == "E1133"


def test_a_hard_link_through_a_link_stays_inside(node: Node, tmp_path: Path) -> None:
    path = image_of(
        tmp_path / "image",
        symlink("out", "/etc"),
        folder("etc"),
        LayerFile("etc/passwd", b"mine"),
        LayerFile("stolen", kind=tarfile.LNKTYPE, link="out/passwd"),
    )
    assert (unpack(node, path) / "stolen").read_bytes() == b"mine"


def test_devices_pipes_and_bits_that_give_rights_are_not_unpacked(node: Node, tmp_path: Path) -> None:
    path = image_of(
        tmp_path / "image",
        LayerFile("disk", kind=tarfile.BLKTYPE),
        LayerFile("null", kind=tarfile.CHRTYPE),
        LayerFile("pipe", kind=tarfile.FIFOTYPE),
        LayerFile("su", b"x", mode=0o6755),
        folder("closed", 0o100),
        LayerFile("closed/file", b"1", mode=0o400),
    )
    root = unpack(node, path)
    for found in (root, *root.rglob("*")):
        mode = found.lstat().st_mode
        assert stat.S_ISREG(mode) or stat.S_ISDIR(mode)
        assert not mode & (stat.S_ISUID | stat.S_ISGID)
        assert found.lstat().st_uid == os.getuid()
    assert not (root / "pipe").exists()
    assert (root / "closed" / "file").read_bytes() == b"1"


def test_an_image_that_unpacks_to_more_than_it_may_is_stopped(tmp_path: Path) -> None:
    bomb = image_of(tmp_path / "image", *(LayerFile(f"zeros{number}", bytes(8_000_000)) for number in range(8)))
    assert sum(one.stat().st_size for one in bomb.rglob("*") if one.is_file()) < 1_000_000
    node = Node(tmp_path / "node", unpacked_bytes_max=10_000_000)
    with pytest.raises(HarchError, match="too large for this node: it takes more than 10 MB") as refused:
        unpack(node, bomb)
    assert refused.value.code == "E1133"
    assert os.listdir(node.cache.folder) == []


def test_an_image_with_more_files_than_it_may_have_is_stopped(tmp_path: Path) -> None:
    bomb = image_of(tmp_path / "image", *(LayerFile(f"f{number}") for number in range(50)))
    with pytest.raises(HarchError, match="more than 20 files"):
        unpack(Node(tmp_path / "node", entries_max=20), bomb)


def test_an_image_that_is_thousands_of_folders_deep_is_refused(node: Node, tmp_path: Path) -> None:
    deep = [folder("/".join("d" * number)) for number in range(1, unpacking.DEPTH_MAX + 100)]
    with pytest.raises(HarchError, match="folders inside of each other") as refused:
        unpack(node, image_of(tmp_path / "image", *deep))
    assert refused.value.code == "E1133"


def test_an_image_for_another_machine_is_refused(node: Node, tmp_path: Path) -> None:
    LayoutWriter(tmp_path / "image", architecture="arm64").write(layer([LayerFile("a")]))
    with pytest.raises(HarchError, match="not made for linux/amd64, but for linux/arm64"):
        unpack(node, tmp_path / "image")


def test_stopping_a_task_stops_the_unpacking(node: Node, tmp_path: Path) -> None:
    path = image_of(tmp_path / "image", LayerFile("a", b"1"))
    node.stop = Stopped()
    with pytest.raises(Stopped):
        unpack(node, path)
    assert os.listdir(node.cache.folder) == []


def test_an_agent_that_was_killed_leaves_scratch_that_the_next_one_removes(node: Node) -> None:
    (node.scratch / "left" / "closed").mkdir(parents=True)
    (node.scratch / "left" / "closed").chmod(0)
    node.store.open()
    assert os.listdir(node.scratch) == []
