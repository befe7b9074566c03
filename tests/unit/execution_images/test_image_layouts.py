"""Is a layout read as what it is: somebody else's files, which are to be believed only by their hashes?"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.execution.images.layout import (
    archive_in,
    is_layout,
    read_layout,
    view_for_unpacking,
    write_layout,
)
from harch.execution.images.manifest import OCI_INDEX, digest_of, platform_of
from harch.testing.images import LayerFile, LayoutWriter, layer

HERE = platform_of("x86_64")
OTHER = "sha256:" + "1" * 64


def written(folder: Path) -> LayoutWriter:
    return LayoutWriter(folder, {"Env": ["A=1"]}, architecture="amd64").write(
        layer([LayerFile("a", b"1")]), layer([LayerFile("b", b"2")])
    )


def blob(writer: LayoutWriter, digest: str) -> Path:
    return writer.folder / "blobs" / "sha256" / digest.removeprefix("sha256:")


def test_a_layout_is_read_to_its_configuration(tmp_path: Path) -> None:
    writer = written(tmp_path / "image")
    assert is_layout(writer.folder)
    image = read_layout(writer.folder, HERE)
    assert image.digests == (writer.digest,)
    assert [one.digest for one in image.manifest.layers] == writer.layer_digests
    assert image.config.env == {"A": "1"}


def test_an_index_above_it_is_one_of_its_digests(tmp_path: Path) -> None:
    writer = written(tmp_path / "image")
    index = writer.write_platforms({"arm64": OTHER})
    assert read_layout(writer.folder, HERE).digests == (writer.digest, index)
    assert read_layout(writer.folder, HERE, digest=index).digest == writer.digest


def test_a_layout_with_another_image_than_requested_is_refused(tmp_path: Path) -> None:
    writer = written(tmp_path / "image")
    with pytest.raises(HarchError, match=f"its digest is {writer.digest}, and {OTHER} was requested") as refused:
        read_layout(writer.folder, HERE, digest=OTHER)
    assert refused.value.code == "E1133"


@pytest.mark.parametrize("what", ["manifest", "configuration"])
def test_a_part_that_is_not_what_its_digest_says_is_refused(tmp_path: Path, what: str) -> None:
    writer = written(tmp_path / "image")
    digest = writer.digest
    if what == "configuration":
        digest = json.loads(blob(writer, digest).read_bytes())["config"]["digest"]
    path = blob(writer, digest)
    path.write_bytes(path.read_bytes().replace(b"2", b"3"))
    with pytest.raises(HarchError, match="is not what its digest says") as refused:
        read_layout(writer.folder, HERE)
    assert refused.value.code == "E1133"


@pytest.mark.parametrize("name", ["index.json", "blobs", "blobs/sha256", "blob"])
def test_no_path_of_a_layout_leads_through_a_link(tmp_path: Path, name: str) -> None:
    writer = written(tmp_path / "image")
    path = blob(writer, writer.digest) if name == "blob" else writer.folder / name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HarchError, match="cannot be read") as refused:
        read_layout(writer.folder, HERE)
    assert refused.value.code == "E1133"


def test_a_pipe_in_place_of_a_part_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    writer = written(tmp_path / "image")
    blob(writer, writer.digest).unlink()
    os.mkfifo(blob(writer, writer.digest))
    with pytest.raises(HarchError, match="is no file"):
        read_layout(writer.folder, HERE)


def test_a_layer_that_is_a_link_or_missing_is_never_handed_to_umoci(tmp_path: Path) -> None:
    writer = written(tmp_path / "image")
    image = read_layout(writer.folder, HERE)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    path = blob(writer, writer.layer_digests[1])
    path.unlink()
    with pytest.raises(HarchError, match="cannot be read: No such file"):
        view_for_unpacking(image, scratch)
    path.symlink_to("/etc/passwd")
    with pytest.raises(HarchError, match="cannot be read"):
        view_for_unpacking(image, scratch)


def test_indexes_of_indexes_have_an_end(tmp_path: Path) -> None:
    writer = written(tmp_path / "image")
    inner = writer.write_platforms({})
    for number in range(4):
        if number == 1:
            assert read_layout(writer.folder, HERE).digest == writer.digest
        entry = {"mediaType": OCI_INDEX, "digest": inner, "size": 100}
        inner = str(writer.blob(json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode())["digest"])
        writer.write_index([{"mediaType": OCI_INDEX, "digest": inner, "size": 100}])
    with pytest.raises(HarchError, match="nested too deeply") as refused:
        read_layout(writer.folder, HERE)
    assert refused.value.code == "E1133"


def test_umoci_gets_the_layers_as_they_are_and_equal_images_make_equal_layouts(tmp_path: Path) -> None:
    digests = []
    for number in (1, 2):
        copied = tmp_path / f"copied{number}"
        copied.mkdir()
        writer = written(tmp_path / f"source{number}")
        index = (tmp_path / f"source{number}" / "index.json").read_bytes()
        for path in (writer.folder / "blobs" / "sha256").iterdir():
            path.rename(copied / path.name)
        (copied / writer.digest.removeprefix("sha256:")).rename(copied / "manifest.json")
        layout = tmp_path / f"layout{number}"
        assert write_layout(copied, layout, (index,)) == writer.digest
        assert not copied.exists()
        names = sorted(str(path.relative_to(layout)) for path in layout.rglob("*") if path.is_file())
        digests.append([(name, digest_of((layout / name).read_bytes())) for name in names])
    assert digests[0] == digests[1]
    image = read_layout(layout, HERE)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    view = view_for_unpacking(image, scratch)
    files = dict(view.files)
    assert {"oci-layout", "index.json"} <= set(files)
    for digest in writer.layer_digests:
        inside = f"blobs/sha256/{digest.removeprefix('sha256:')}"
        assert Path(files[inside]).parent == layout / "blobs" / "sha256"
        assert gzip.decompress(Path(files[inside]).read_bytes())
    tagged = json.loads(Path(files["index.json"]).read_bytes())["manifests"]
    assert [one["annotations"]["org.opencontainers.image.ref.name"] for one in tagged] == [view.tag]


def test_an_index_beside_an_image_proves_a_digest_only_if_it_lists_that_image(tmp_path: Path) -> None:
    writer = written(tmp_path / "image")
    index = writer.write_platforms({"arm64": OTHER})
    other = writer.blob(blob(writer, index).read_bytes().replace(writer.digest.encode(), OTHER.encode()))
    writer.write_index(
        [{"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": writer.digest, "size": 1}]
    )
    assert read_layout(writer.folder, HERE, digest=index).digests == (writer.digest, index)
    with pytest.raises(HarchError, match="was requested"):
        read_layout(writer.folder, HERE, digest=str(other["digest"]))


def test_an_archive_is_the_only_file_of_its_folder(tmp_path: Path) -> None:
    assert archive_in(tmp_path) is None
    (tmp_path / "image.tar").touch()
    assert archive_in(tmp_path) == tmp_path / "image.tar"
    (tmp_path / "notes.txt").touch()
    assert archive_in(tmp_path) is None
    (tmp_path / "notes.txt").unlink()
    (tmp_path / "image.tar").unlink()
    (tmp_path / "image.tar").symlink_to("/etc/passwd")
    assert archive_in(tmp_path) is None
