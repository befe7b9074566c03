"""What is in a folder that holds an image? An OCI layout, read as the foreign thing that it is.

A layout comes from a registry, from a hub or from a data object. Nothing in it is believed: no path leads through a
link, and manifest and configuration are compared with their digests before they are read. Layers are compared while
they are unpacked, which reads them anyway.
"""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from harch.base.errors import HarchError
from harch.execution.images.manifest import (
    MANIFEST_BYTES_MAX,
    Descriptor,
    ImageConfig,
    Manifest,
    Platform,
    damaged,
    digest_of,
    index_of,
    is_digest,
    is_index,
    manifest_for_unpacking,
    media_type_of,
    read_config,
    read_manifest,
    select,
)

OCI_LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'
INDEX, MARKER = "index.json", "oci-layout"
INDEX_DEPTH_MAX = 3
MAGIC_BYTES = 4
ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz")


@dataclass(frozen=True, slots=True)
class LayoutImage:
    """One image of a layout, checked up to its configuration. `digests`: its own, first, and those of the indexes that
    led to it."""

    folder: Path
    digests: tuple[str, ...]
    manifest: Manifest
    config: ImageConfig

    @property
    def digest(self) -> str:
        return self.digests[0]


def is_layout(folder: Path) -> bool:
    return _is_file(folder / MARKER) and _is_file(folder / INDEX)


def archive_in(folder: Path) -> Path | None:
    """The one archive of a folder that has nothing else."""
    names = os.listdir(folder)
    if len(names) != 1 or not names[0].endswith(ARCHIVE_SUFFIXES):
        return None
    return folder / names[0] if _is_file(folder / names[0]) else None


def read_layout(folder: Path, platform: Platform, *, digest: str = "") -> LayoutImage:
    """`digest`: of the image or of an index that lists it; empty: whatever image the layout has. Raises E1133."""
    data = _read(folder, (INDEX,))
    digests: list[str] = []
    for _ in range(INDEX_DEPTH_MAX + 1):
        if not is_index(data):
            break
        chosen = select(data, platform)
        data = read_blob(folder, chosen)
        digests.insert(0, chosen.digest)
    else:
        raise damaged("its indexes are nested too deeply")
    manifest = read_manifest(data)
    if not digests:
        raise damaged("its layout has no index")
    if digest and digest not in digests:
        if not _leads_to(folder, digest, digests[0], platform):
            raise damaged(f"its digest is {digests[0]}, and {digest} was requested")
        digests.append(digest)
    config = read_config(read_blob(folder, manifest.config), platform)
    return LayoutImage(folder, tuple(digests), manifest, config)


def _leads_to(folder: Path, index_digest: str, digest: str, platform: Platform) -> bool:
    """Whether an index that lies beside the image, as `write_layout` puts it there, lists it for this platform."""
    try:
        index = read_blob(folder, Descriptor(index_digest, 0))
        return is_index(index) and select(index, platform).digest == digest
    except HarchError:  # it is not there, or not an index, or not for this platform
        return False


def write_layout(copied: Path, folder: Path, indexes: tuple[bytes, ...] = ()) -> str:
    """From what `skopeo copy … dir:COPIED` has left, a layout at `folder`; returns the digest of the image.

    `indexes` that led to the image are put beside it, so that whoever gets the layout can check their digests, too.
    """
    data = _read(copied, ("manifest.json",))
    manifest = read_manifest(data)
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for blob in {blob.digest: blob for blob in manifest.blobs}.values():
        os.rename(copied / blob.hex, blobs / blob.hex)
    for own in (data, *indexes):
        (blobs / digest_of(own).removeprefix("sha256:")).write_bytes(own)
    (folder / INDEX).write_bytes(index_of(data, media_type_of(data)))
    (folder / MARKER).write_bytes(OCI_LAYOUT)
    shutil.rmtree(copied)
    return digest_of(data)


@dataclass(frozen=True, slots=True)
class UnpackingView:
    """What umoci gets to see: files of `folder`, and blobs of the layout, each as (name inside, path)."""

    files: tuple[tuple[str, str], ...]
    tag: str


def view_for_unpacking(image: LayoutImage, scratch: Path) -> UnpackingView:
    """Writes to `scratch` what umoci needs beside the blobs. Raises E1133 for layers that it cannot read."""
    magics = [_magic(image.folder, layer) for layer in image.manifest.layers]
    manifest = manifest_for_unpacking(image.manifest, magics)
    own = {
        MARKER: OCI_LAYOUT,
        INDEX: index_of(manifest, media_type_of(manifest), tag="image"),
        f"blobs/sha256/{digest_of(manifest).removeprefix('sha256:')}": manifest,
    }
    files = []
    for number, (name, data) in enumerate(own.items()):
        path = scratch / str(number)
        path.write_bytes(data)
        files.append((name, str(path)))
    names = dict.fromkeys(f"blobs/sha256/{blob.hex}" for blob in image.manifest.blobs)
    files += [(name, str(image.folder / name)) for name in names]
    return UnpackingView(tuple(files), "image")


def read_blob(folder: Path, blob: Descriptor) -> bytes:
    """A small one: a manifest, an index, a configuration. Raises E1133 unless it is what its digest says."""
    if not is_digest(blob.digest):
        raise damaged("its index names a part that cannot be one")
    data = _read(folder, ("blobs", "sha256", blob.hex))
    if digest_of(data) != blob.digest:
        raise damaged(f"the part {blob.digest[:19]}… is not what its digest says")
    return data


def _magic(folder: Path, layer: Descriptor) -> bytes:
    fd = _open(folder, ("blobs", "sha256", layer.hex))
    try:
        return os.read(fd, MAGIC_BYTES)
    finally:
        os.close(fd)


def _read(folder: Path, parts: tuple[str, ...]) -> bytes:
    fd = _open(folder, parts)
    with os.fdopen(fd, "rb") as file:
        data = file.read(MANIFEST_BYTES_MAX + 1)
    if len(data) > MANIFEST_BYTES_MAX:
        raise damaged(f"its {parts[-1][:20]} is larger than {MANIFEST_BYTES_MAX} bytes")
    return data


def _open(folder: Path, parts: tuple[str, ...]) -> int:
    """A regular file, reached through real folders only. Raises E1133 for anything else."""
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for number, part in enumerate(parts, 1):
            kind = os.O_NONBLOCK if number == len(parts) else os.O_DIRECTORY  # a pipe would never open
            below = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind, dir_fd=at)
            os.close(at)
            at = below
        if not stat.S_ISREG(os.fstat(at).st_mode):
            raise damaged(f"`{'/'.join(parts)[:100]}` is no file")
    except BaseException as error:
        os.close(at)
        if isinstance(error, OSError):
            raise damaged(f"`{'/'.join(parts)[:100]}` cannot be read: {error.strerror}") from error
        raise
    return at


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False
