"""How does an image come from a registry? With skopeo, by its digest, and as it is: nothing is converted on the way.

A tag is resolved to a digest once, with one request. Everything after that is by digest, so that what was looked at is
what is fetched, and every byte of it is compared.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from harch.base.errors import HarchError
from harch.content.image_reference import RegistryImage
from harch.execution.images.limits import AUTH_SETTING, DiskWatch, ImageSettings, in_words, too_large
from harch.execution.images.manifest import (
    Manifest,
    Platform,
    damaged,
    digest_of,
    is_index,
    read_manifest,
    select,
)
from harch.execution.images.tools import Hooks, ToolResult, ToolRunner, ToolView

INDEX_DEPTH_MAX = 3
RETRIES = 2
ARCHIVE_ENTRIES_MAX = 100_000
_SCRATCH, _SOURCE, _AUTH = "/scratch", "/source", "/auth.json"
_TAR_BLOCK = 512
_COPY_BYTES = 1024 * 1024
# What skopeo says, and what helps. The first that fits.
_EXPLANATIONS: tuple[tuple[str, str, str], ...] = (
    (
        r"unauthorized|authentication required|denied|no basic auth|403 \(Forbidden\)|invalid username/password",
        "the registry asks for credentials, or has no such image",
        "check the name; credentials stand in the file that HARCH_REGISTRY_AUTH_FILE of the agent names",
    ),
    (
        r"manifest unknown|name unknown|name invalid|not found|404",
        "the registry has no such image",
        "check repository and tag, e.g. with `skopeo list-tags docker://REGISTRY/REPOSITORY`",
    ),
    (
        r"HTTP response to HTTPS client|x509|certificate|tls:",
        "the registry does not prove who it is",
        "install its certificate authority on the node, or list it in HARCH_INSECURE_REGISTRIES of the agent",
    ),
    (
        r"no such host|connection refused|network is unreachable|no route to host|timeout|EOF|reset by peer",
        "the registry does not answer",
        "see whether it runs and whether the node can reach it; an image in a data object needs no registry",
    ),
    (
        r"toomanyrequests|429",
        "the registry is asked too often from here",
        "wait, use credentials, or a mirror in /etc/containers/registries.conf of the node",
    ),
    (
        r"[Ss]ignature|policy|rejected",
        "the node's policy for signatures does not allow it",
        "see /etc/containers/policy.json of the node",
    ),
    (r"no space left", "the disk of this node is full", "free some of it, or run the work on another node"),
)


@dataclass(frozen=True, slots=True)
class ResolvedImage:
    """What a reference stands for now. `indexes`: as they are, those that list it for several platforms."""

    image: RegistryImage  # by the digest of its own manifest
    manifest: Manifest
    indexes: tuple[bytes, ...] = ()

    @property
    def digests(self) -> tuple[str, ...]:
        return (self.image.digest, *(digest_of(index) for index in self.indexes))


@dataclass(frozen=True, slots=True)
class Skopeo:
    """`path`: of the program."""

    path: str
    runner: ToolRunner
    settings: ImageSettings

    def resolve(self, image: RegistryImage, platform: Platform, scratch: Path, hooks: Hooks) -> ResolvedImage:
        """Raises E1132 if the registry does not hand it out, and E1133 if nothing here can unpack it."""
        indexes: list[bytes] = []
        at = image
        for _ in range(INDEX_DEPTH_MAX + 1):
            data = self._inspect(at, scratch, hooks)
            digest = digest_of(data)
            if at.digest and digest != at.digest:
                raise HarchError(
                    "E1132",
                    f"the registry handed out {digest} where {at} was requested",
                    hint="somebody has changed it on its way or in the registry: do not use that registry",
                )
            if not is_index(data):
                manifest = read_manifest(data)
                if manifest.size_bytes > self.settings.bytes_max:
                    limit = in_words(self.settings.bytes_max)
                    raise too_large(f"it has {in_words(manifest.size_bytes)}, of at most {limit}")
                return ResolvedImage(image.at(digest), manifest, tuple(indexes))
            indexes.append(data)
            at = image.at(select(data, platform).digest)
        raise damaged("its indexes are nested too deeply")

    def pull(self, resolved: ResolvedImage, scratch: Path, hooks: Hooks) -> Path:
        """The image as skopeo's `dir:` lays it down, below `scratch`. Raises E1132."""
        image, total = resolved.image, resolved.manifest.size_bytes
        watch = DiskWatch(
            scratch,
            self.settings,
            bytes_max=2 * self.settings.bytes_max,
            progress=lambda done: hooks.progress(f"{in_words(min(done, total))} of {in_words(total)}"),
        )
        command = [
            *("copy", "--retry-times", str(RETRIES)),
            *self._access(image.registry, "src-"),
            *(f"docker://{image}", f"dir:{_SCRATCH}/copied"),
        ]
        view = self._view(scratch, network=True)
        done = self._run(command, view, hooks, timeout_s=self.settings.pull_s_max, watch=watch)
        if done.status:
            raise explained(f"the image {image}", done.message)
        return scratch / "copied"

    def read_archive(self, archive: Path, scratch: Path, hooks: Hooks) -> Path:
        """The same, from an archive on the node. Raises E1133."""
        watch = DiskWatch(scratch, self.settings, bytes_max=self.settings.unpacked_bytes_max)
        plain = decompressed(archive, scratch / "archive.tar", hooks, watch)
        inside = f"{_SOURCE}/archive"  # its own name may have a colon, which skopeo would take for something else
        view = self._view(scratch, ((inside, str(plain)),))
        command = ["copy", f"{archive_kind(plain)}:{inside}", f"dir:{_SCRATCH}/copied"]
        done = self._run(command, view, hooks, timeout_s=self.settings.pull_s_max, watch=watch)
        if done.status:
            raise damaged(f"its archive {archive.name} cannot be read: {done.message}")
        return scratch / "copied"

    def _inspect(self, image: RegistryImage, scratch: Path, hooks: Hooks) -> bytes:
        command = ["inspect", "--raw", "--retry-times", str(RETRIES), *self._access(image.registry)]
        command.append(f"docker://{image.at(image.digest) if image.digest else image}")
        view = self._view(scratch, network=True)
        done = self._run(command, view, hooks, timeout_s=self.settings.resolve_s_max)
        if done.status:
            raise explained(f"the image {image}", done.message)
        return done.output

    def _access(self, registry: str, prefix: str = "") -> list[str]:
        file = self.settings.auth_file
        if file and not os.access(file, os.R_OK):
            sentence = f"the agent cannot read {file}, where credentials of registries should be"
            raise HarchError("E1132", sentence, hint=f"make it with `skopeo login --authfile`, or unset {AUTH_SETTING}")
        tls = f"--{prefix}tls-verify={str(self.settings.speaks_tls(registry)).lower()}"
        return [tls, f"--authfile={_AUTH}" if self.settings.auth_file else f"--{prefix}no-creds"]

    def _view(self, scratch: Path, readable: Sequence[tuple[str, str]] = (), *, network: bool = False) -> ToolView:
        auth = ((_AUTH, self.settings.auth_file),) if network and self.settings.auth_file else ()
        return ToolView(((_SCRATCH, str(scratch)),), (*readable, *auth), network)

    def _run(
        self, command: list[str], view: ToolView, hooks: Hooks, *, timeout_s: float, watch: DiskWatch | None = None
    ) -> ToolResult:
        # Not in the sandbox's /tmp, which is memory: whole layers are laid down there.
        whole = [self.path, "--tmpdir", _SCRATCH, *command]
        if watch is None:
            return self.runner.run(whole, view, hooks, timeout_s=timeout_s)
        return self.runner.run(whole, view, hooks, timeout_s=timeout_s, watch=watch)


def explained(what: str, message: str) -> HarchError:
    """E1132, in words that a person can act on, and in those of the tool."""
    for pattern, why, hint in _EXPLANATIONS:
        if re.search(pattern, message):
            return HarchError("E1132", f"{what} could not be fetched: {why} ({message[:500]})", hint=hint)
    return HarchError("E1132", f"{what} could not be fetched: {message[:500]}", hint="`harch logs ID --preparation`")


def decompressed(archive: Path, target: Path, hooks: Hooks, watch: Callable[[], None]) -> Path:
    """The archive itself if it is not compressed; else what is in it, at `target`. skopeo 1.9.3 cannot read archives of
    Docker that are compressed. Raises E1133."""
    with _opened(archive) as file:
        if file.read(2) != b"\x1f\x8b":
            return archive
        file.seek(0)
        try:
            with gzip.open(file) as plain, target.open("xb") as out:
                while data := plain.read(_COPY_BYTES):
                    out.write(data)
                    hooks.check()
                    watch()
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise damaged(f"its archive {archive.name} cannot be decompressed: {error}") from error
    return target


def archive_kind(archive: Path) -> str:
    """What skopeo calls it, by the names of the files in it. Raises E1133 for an archive of something else."""
    with _opened(archive) as file:
        size, at = os.fstat(file.fileno()).st_size, 0
        names: set[str] = set()
        while at < size and len(names) < ARCHIVE_ENTRIES_MAX:
            file.seek(at)
            head = file.read(_TAR_BLOCK)
            length = _tar_size(head)
            if length is None:
                break
            names.add(os.path.normpath(head[:100].rstrip(b"\0").decode(errors="replace")))
            at += _TAR_BLOCK + -(-length // _TAR_BLOCK) * _TAR_BLOCK
    if {"oci-layout", "index.json"} <= names:
        return "oci-archive"
    if "manifest.json" in names:
        return "docker-archive"
    raise damaged(
        f"{archive.name} is no archive of an image", "make one with `docker save` or `skopeo copy … oci-archive:`"
    )


def _opened(archive: Path) -> IO[bytes]:
    return os.fdopen(os.open(archive, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


def _tar_size(head: bytes) -> int | None:
    """How long the file is whose head this is; none at the end of a tar, or if this is none."""
    field = head[124:136]
    if len(head) < _TAR_BLOCK or not head.strip(b"\0"):
        return None
    if field[:1] == b"\x80":  # GNU's way to write sizes of 8 GB and more
        return int.from_bytes(field[1:], "big")
    try:
        return int(field.rstrip(b"\0 ") or b"0", 8)
    except ValueError:
        return None
