"""What does an image consist of? A manifest and a configuration, as the OCI specifies them and as Docker writes them.

The digest of an image is the hash of its manifest, the manifest names configuration and layers by theirs: from the
digest on, every byte can be checked. An image for several machines is an index of manifests, one for each of them.
"""

# harch: pure

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec import Struct, field

from harch.base.errors import HarchError

MANIFEST_BYTES_MAX = 4 * 1024 * 1024  # as registries have it
CONFIG_BYTES_MAX = 4 * 1024 * 1024
LAYERS_MAX = 256
MANIFESTS_MAX = 200  # of an index
ENV_ENTRIES_MAX = 512
ENV_BYTES_MAX = 64 * 1024
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_INDEXES, _MANIFESTS = frozenset({OCI_INDEX, DOCKER_INDEX}), frozenset({OCI_MANIFEST, DOCKER_MANIFEST})
_Decoded = TypeVar("_Decoded", bound=Struct)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}  # the kernel's word for it, and that of images
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


@dataclass(frozen=True, slots=True)
class Platform:
    """What an image must be made for."""

    os: str = "linux"
    architecture: str = "amd64"

    def __str__(self) -> str:
        return f"{self.os}/{self.architecture}"


def platform_of(machine: str) -> Platform:
    """`machine`: as the kernel says it."""
    return Platform(architecture=_MACHINES.get(machine, machine))


class _Platform(Struct, frozen=True):
    os: str = ""
    architecture: str = ""


class Descriptor(Struct, frozen=True, rename="camel"):
    """A blob by its digest."""

    digest: str
    size: int
    media_type: str = ""
    platform: _Platform | None = None
    urls: tuple[str, ...] = ()

    @property
    def hex(self) -> str:
        return self.digest.removeprefix("sha256:")


class _Index(Struct, frozen=True, rename="camel"):
    manifests: tuple[Descriptor, ...]


class Manifest(Struct, frozen=True, rename="camel"):
    """One image for one platform."""

    config: Descriptor
    layers: tuple[Descriptor, ...]

    @property
    def blobs(self) -> tuple[Descriptor, ...]:
        return (self.config, *self.layers)

    @property
    def size_bytes(self) -> int:
        """Compressed, as it travels. A layer that is there twice is fetched once."""
        return sum({blob.digest: blob.size for blob in self.blobs}.values())


class _Kind(Struct, frozen=True, rename="camel"):
    media_type: str = ""
    schema_version: int = 0
    manifests: tuple[msgspec.Raw, ...] | None = None


class _Process(Struct, frozen=True, rename="pascal"):
    env: tuple[str, ...] | None = None
    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None
    working_dir: str | None = None
    user: str | None = None


class _Config(Struct, frozen=True):
    os: str = ""
    architecture: str = ""
    config: _Process | None = field(default=None)


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """What the maker of an image has set for processes in it."""

    platform: Platform
    env: dict[str, str]
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]
    workdir: str
    user: str


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def is_index(data: bytes) -> bool:
    """Whether these bytes list images for several platforms. Raises E1133 for what is no manifest at all."""
    kind = _decoded(data, _Kind, "manifest")
    if kind.schema_version != 2:
        raise damaged("its manifest has a format that was given up years ago", "push it again with a current tool")
    return kind.media_type in _INDEXES or (kind.media_type not in _MANIFESTS and kind.manifests is not None)


def select(data: bytes, platform: Platform) -> Descriptor:
    """The manifest for this platform, from an index. Raises E1133 if there is none."""
    manifests = _decoded(data, _Index, "index").manifests
    if len(manifests) > MANIFESTS_MAX:
        raise damaged(f"its index has {len(manifests)} entries; at most {MANIFESTS_MAX} are allowed")
    usable = [one for one in manifests if one.media_type in _MANIFESTS | _INDEXES | {""} and is_digest(one.digest)]
    for one in usable:
        found = one.platform
        if found is not None and (found.os, found.architecture) == (platform.os, platform.architecture):
            return one
    if len(usable) == 1 and usable[0].platform is None:  # a layout of one image, as most tools write it
        return usable[0]
    if usable and all(one.platform is None for one in usable):
        raise damaged(f"there are {len(usable)} images in it, and nothing says which", "keep one image in each object")
    known = sorted({f"{one.platform.os}/{one.platform.architecture}" for one in usable if one.platform is not None})
    raise damaged(
        f"it is not made for {platform}, but for {', '.join(known[:20]) or 'nothing that it names'}",
        "build it for this platform, or restrict the work to hubs with nodes of another one",
    )


def read_manifest(data: bytes) -> Manifest:
    """Raises E1133 for an image that nothing here can unpack."""
    manifest = _decoded(data, Manifest, "manifest")
    if len(manifest.layers) > LAYERS_MAX:
        raise damaged(f"it has {len(manifest.layers)} layers; at most {LAYERS_MAX} are allowed", "squash some of them")
    for blob in manifest.blobs:
        if not is_digest(blob.digest) or blob.size < 0:
            raise damaged("its manifest names a part that cannot be one")
        if "encrypted" in blob.media_type:
            raise damaged("its layers are encrypted", "decrypt it first, e.g. with `skopeo copy --decryption-key`")
        if blob.urls:
            raise damaged("its layers are kept at other addresses", "push it with `--allow-nondistributable-artifacts`")
    if manifest.config.size > CONFIG_BYTES_MAX:
        raise damaged("its configuration is too large")
    return manifest


def read_config(data: bytes, platform: Platform) -> ImageConfig:
    """Raises E1133 for a configuration of another platform, or none."""
    config = _decoded(data, _Config, "configuration")
    made_for = Platform(config.os or platform.os, config.architecture or platform.architecture)
    if made_for != platform:
        raise damaged(
            f"it is not made for {platform}, but for {made_for}",
            "build it for this platform, or restrict the work to hubs with nodes of another one",
        )
    process = config.config or _Process()
    return ImageConfig(
        made_for,
        _environment(process.env or ()),
        process.entrypoint or (),
        process.cmd or (),
        process.working_dir or "",
        process.user or "",
    )


def _environment(entries: Sequence[str]) -> dict[str, str]:
    if len(entries) > ENV_ENTRIES_MAX or sum(map(len, entries)) > ENV_BYTES_MAX:
        raise damaged("it sets too many environment variables")
    env = {}
    for entry in entries:
        name, _, value = entry.partition("=")
        if _ENV_NAME.fullmatch(name) and "\0" not in value:
            env[name] = value
    return env


def manifest_for_unpacking(manifest: Manifest, magics: Sequence[bytes]) -> bytes:
    """The same parts under OCI's own types, which is all that umoci reads. `magics`: how the bytes of each layer begin;
    archives of Docker call layers compressed that are not."""
    layers = [
        {"mediaType": OCI_LAYER + _compression(number, magic), "digest": layer.digest, "size": layer.size}
        for number, (layer, magic) in enumerate(zip(manifest.layers, magics, strict=True), 1)
    ]
    config = {"mediaType": OCI_CONFIG, "digest": manifest.config.digest, "size": manifest.config.size}
    return msgspec.json.encode({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": layers})


def _compression(number: int, magic: bytes) -> str:
    if magic.startswith(b"\x1f\x8b"):
        return "+gzip"
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        raise damaged(
            f"its layer {number} is compressed with zstd, which umoci cannot read", "build it with gzip layers"
        )
    return ""


def index_of(manifest: bytes, media_type: str, *, tag: str = "") -> bytes:
    """The index of a layout with this one image. Equal images make equal bytes."""
    entry: dict[str, object] = {"mediaType": media_type, "digest": digest_of(manifest), "size": len(manifest)}
    if tag:
        entry["annotations"] = {"org.opencontainers.image.ref.name": tag}
    return msgspec.json.encode({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry]})


def layout_digest(index: bytes) -> str:
    """The digest of the one image of a layout that a node has uploaded, from its `index.json`; empty if it has no such
    index. For hubs, which need not believe what a node calls it."""
    try:
        manifests = _decoded(index, _Index, "index").manifests
    except HarchError:
        return ""
    return manifests[0].digest if len(manifests) == 1 and is_digest(manifests[0].digest) else ""


def media_type_of(manifest: bytes) -> str:
    """As it says itself; OCI's if it does not say."""
    return _decoded(manifest, _Kind, "manifest").media_type or OCI_MANIFEST


def _decoded(data: bytes, kind: type[_Decoded], what: str) -> _Decoded:
    if len(data) > MANIFEST_BYTES_MAX:
        raise damaged(f"its {what} is larger than {MANIFEST_BYTES_MAX} bytes")
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise damaged(f"its {what} cannot be read: {error}") from error


def damaged(why: str, hint: str = "push or save the image again, and compare its digest") -> HarchError:
    return HarchError("E1133", f"the image cannot be unpacked: {why}", hint=hint)
