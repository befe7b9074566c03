"""Where does the image of a task come from? From this node, from the hub, or from its registry, in this order.

A reference with a digest needs no registry once the hub has the image. A tag is resolved to a digest when a task
starts: by the hub, if it has pinned it for this work, so that all ranks and attempts run the same; else by the
registry, with one request. What came from a registry is given to the hub as an OCI layout, whose blobs are the layers:
it has each only once.

Images of a registry are known by the digest of their manifest, images of data objects by the digest of the tree: who
has no access to a data object does not get at an image in it by knowing a hash.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harch.base.errors import HarchError
from harch.content.image_reference import RegistryImage
from harch.execution.images.layout import LayoutImage, archive_in, is_layout, read_layout, write_layout
from harch.execution.images.limits import ImageSettings, in_words, too_large
from harch.execution.images.manifest import Platform, damaged, is_digest
from harch.execution.images.prepared import PreparedImage, read_prepared, write_record
from harch.execution.images.registry import ResolvedImage, Skopeo
from harch.execution.images.support import ImageSupport
from harch.execution.images.tools import Hooks, ToolRunner
from harch.execution.images.unpacking import Umoci, remove_tree
from harch.execution.isolation.sandbox import Sandbox
from harch.wire.content import TreeView

UNPACKED_RATIO = 3  # of a usual image: what it takes on disk, its layers included, to what it has compressed
REFUSED_HINT = "see `harch doctor` on the node, or leave `image` out"

Reserve = Callable[[int], None]  # says how large it will be; raises E1113 if there is no room for that
Make = Callable[[Path, Reserve], None]  # puts the image at a path where nothing is
Borrow = Callable[[str, Make], Path]  # where the node's cache has an image, made by whoever comes first


class HubImages(Protocol):
    """What the hub has of images, for the tenant of one task."""

    def image(self, reference: str) -> TreeView | None:
        """The OCI layout for this reference, if the hub has one; its `name` is the digest of the image."""

    def keep_image(self, reference: str, image_digest: str, digest: str) -> TreeView: ...

    def download(self, view: TreeView, folder: Path) -> None:
        """Puts the files of a tree at a folder that does not exist yet, verified."""

    def upload(self, folder: Path) -> str:
        """Returns the digest of the tree."""


@dataclass(frozen=True, slots=True)
class HeldImage:
    """An image in a data object, whose files are on this node. `digest`: of their tree."""

    name: str
    digest: str
    folder: Path


TaskImage = RegistryImage | HeldImage


class ImageStore:
    """`scratch`: a folder of its own, on the disk of the cache. From any thread."""

    def __init__(
        self,
        scratch: Path,
        support: ImageSupport,
        sandbox: Sandbox,
        platform: Platform,
        settings: ImageSettings,
        environment: Mapping[str, str],
    ) -> None:
        self._scratch, self._support, self._platform, self._settings = scratch, support, platform, settings
        runner = ToolRunner(sandbox.program, sandbox.host, environment)
        self._skopeo = Skopeo(support.skopeo, runner, settings)
        self._umoci = Umoci(support.umoci, runner, settings)

    def open(self) -> None:
        """Removes what an agent that was killed has left."""
        remove_tree(self._scratch)
        self._scratch.mkdir(mode=0o700, parents=True)

    def prepare(self, image: TaskImage, *, hub: HubImages | None, borrow: Borrow, hooks: Hooks) -> PreparedImage:
        """Blocks until the image is on this node. Raises E1131, E1132, E1133, E1113, and what the check raises."""
        if self._support.refusal:
            raise HarchError("E1131", self._support.refusal, hint=REFUSED_HINT)
        try:
            prepared = self._prepare(image, hub, borrow, hooks)
        except OSError as error:
            hint = "see whether the disk of the node is full or damaged"
            raise HarchError("E1113", f"the image could not be prepared: {error}", hint=hint) from error
        for line in prepared.unused():
            hooks.log(line)
        return prepared

    def _prepare(self, image: TaskImage, hub: HubImages | None, borrow: Borrow, hooks: Hooks) -> PreparedImage:
        if isinstance(image, HeldImage):
            name = f"data-{image.digest}"
            return read_prepared(borrow(name, lambda path, reserve: self._import(image, path, reserve, hooks)), name)
        fetch = _Fetch(image, self._skopeo, self._platform, hub, hooks)
        with self._folder() as scratch:
            digest = fetch.digest(scratch)
            name = digest.removeprefix("sha256:")
            path = borrow(name, lambda path, reserve: self._fetch(fetch, path, reserve, hooks))
            prepared = read_prepared(path, name)
            fetch.prove(prepared.record.digests, scratch)
        fetch.pin()
        return prepared

    def _import(self, image: HeldImage, path: Path, reserve: Reserve, hooks: Hooks) -> None:
        """From the files of a data object."""
        hooks.log(f"image: data object {image.name}")
        with self._folder() as scratch:
            folder = image.folder
            if not is_layout(folder):
                archive = archive_in(folder)
                if archive is None:
                    raise HarchError(
                        "E1133",
                        f"data object {image.name} holds neither an OCI layout nor exactly one archive of an image",
                        hint="make one with `skopeo copy docker://… oci:DIR` or `docker save -o DIR/image.tar NAME`",
                    )
                folder = scratch / "layout"
                write_layout(self._skopeo.read_archive(archive, scratch, hooks), folder)
            self._unpack(read_layout(folder, self._platform), path, scratch, reserve, hooks)

    def _fetch(self, fetch: _Fetch, path: Path, reserve: Reserve, hooks: Hooks) -> None:
        """From the hub or the registry."""
        with self._folder() as scratch:
            image = fetch.layout(scratch)
            self._unpack(image, path, scratch, reserve, hooks)
            fetch.share(image)

    def _unpack(self, image: LayoutImage, path: Path, scratch: Path, reserve: Reserve, hooks: Hooks) -> None:
        size = image.manifest.size_bytes
        if size > self._settings.bytes_max:
            raise too_large(f"it has {in_words(size)}, of at most {in_words(self._settings.bytes_max)}")
        reserve(UNPACKED_RATIO * size)
        hooks.log(f"unpacking {image.digest}: {len(image.manifest.layers)} layers, {in_words(size)}")
        folder, files = scratch / "unpacked", scratch / "files"
        folder.mkdir()
        files.mkdir()
        self._umoci.unpack(image, folder, files, hooks)
        write_record(folder, image)
        os.rename(folder, path)

    @contextlib.contextmanager
    def _folder(self) -> Iterator[Path]:
        folder = Path(tempfile.mkdtemp(dir=self._scratch))
        try:
            yield folder
        finally:
            remove_tree(folder)


class _Fetch:
    """One image of a registry, for one task. `digest` comes first."""

    def __init__(
        self, image: RegistryImage, skopeo: Skopeo, platform: Platform, hub: HubImages | None, hooks: Hooks
    ) -> None:
        self._image = image.at(image.digest) if image.digest else image
        self._skopeo, self._platform, self._hub, self._hooks = skopeo, platform, hub, hooks
        self._pinned = self._image  # by the digest of the manifest for this platform, once that is known
        self._resolved: ResolvedImage | None = None  # what the registry says
        self._view: TreeView | None = None  # what the hub has
        self._known: set[RegistryImage] = set()  # what it has it as

    def digest(self, scratch: Path) -> str:
        """Of the image for this platform."""
        if self._find_at_hub(self._image):
            self._hooks.log(f"image: {self._image} is {self._pinned.digest}, which the hub has")
            return self._pinned.digest
        self._resolve(self._image, scratch)
        self._hooks.log(f"image: {self._image} is {self._pinned.digest}, says its registry")
        if self._pinned != self._image:
            self._find_at_hub(self._pinned)
        return self._pinned.digest

    def layout(self, scratch: Path) -> LayoutImage:
        """Its layers and all else, below `scratch`, checked up to its configuration."""
        try:
            if found := self._from_hub(scratch):
                return found
        except HarchError as error:  # the registry may still have it
            self._hooks.log(f"what the hub has is of no use: {error.code} {error.message}")
            self._view = None
            self._known.clear()
        resolved = self._resolved or self._confirm(scratch)
        self._hooks.log(f"fetching {in_words(resolved.manifest.size_bytes)} from {self._image.registry}")
        folder = scratch / "from-registry"
        write_layout(self._skopeo.pull(resolved, scratch, self._hooks), folder, resolved.indexes)
        return self._checked(read_layout(folder, self._platform, digest=resolved.digests[-1]))

    def prove(self, digests: tuple[str, ...], scratch: Path) -> None:
        """What has run here as another digest may only run as the requested one if that is known to be the same."""
        if self._image.digest and self._image.digest not in digests and self._resolved is None:
            self._confirm(scratch)

    def share(self, image: LayoutImage) -> None:
        """Gives to the hub what came from the registry. If that fails, work goes on: others fetch it themselves."""
        if self._hub is None or self._view is not None:
            return
        try:
            digest = self._hub.upload(image.folder)
            for one in image.digests:
                self._keep(self._image.at(one), image.digest, digest)
        except HarchError as error:
            self._hooks.log(f"the hub does not keep the image for others: {error.code} {error.message}")

    def pin(self) -> None:
        """Says to the hub what a tag stands for, so that other ranks and attempts of this work run the same."""
        if self._view is not None and self._image not in self._known:
            try:
                self._keep(self._image, self._pinned.digest, self._view.digest)
            except HarchError as error:
                self._hooks.log(f"the hub does not pin the image: {error.code} {error.message}")

    def _resolve(self, image: RegistryImage, scratch: Path) -> ResolvedImage:
        self._resolved = self._skopeo.resolve(image, self._platform, scratch, self._hooks)
        self._pinned = self._resolved.image
        return self._resolved

    def _confirm(self, scratch: Path) -> ResolvedImage:
        """Lets the registry say that an image is what the hub has it as; a tag may have moved on since."""
        found = self._pinned
        resolved = self._resolve(self._image if self._image.digest else found, scratch)
        if resolved.image != found:
            raise HarchError(
                "E1132",
                f"the hub has {found.digest} as {self._image}, and its registry {resolved.image.digest}",
                hint=f"name the image by its digest for one platform: {resolved.image}",
            )
        return resolved

    def _find_at_hub(self, image: RegistryImage) -> bool:
        view = self._hub.image(self._key(image)) if self._hub is not None else None
        if view is None or not is_digest(view.name):
            return False
        if self._resolved is not None and view.name != image.digest:  # the registry has said what it is
            return False
        self._view, self._pinned = view, self._image.at(view.name)
        self._known.add(image)
        return True

    def _from_hub(self, scratch: Path) -> LayoutImage | None:
        if self._view is None or self._hub is None:
            return None
        self._hooks.log(f"fetching {in_words(self._view.size_bytes)} from the hub")
        folder = scratch / "from-hub"
        self._hub.download(self._view, folder)
        wanted = self._pinned.digest if self._resolved is not None else self._image.digest or self._pinned.digest
        return self._checked(read_layout(folder, self._platform, digest=wanted))

    def _checked(self, image: LayoutImage) -> LayoutImage:
        if image.digest != self._pinned.digest:
            raise damaged(f"its digest is {image.digest}, and {self._pinned.digest} was requested")
        return image

    def _keep(self, image: RegistryImage, image_digest: str, digest: str) -> None:
        if self._hub is not None:
            self._view = self._hub.keep_image(self._key(image), image_digest, digest)
            self._known.add(image)

    def _key(self, image: RegistryImage) -> str:
        """One reference is several images, if it is for several platforms."""
        return f"{image}#{self._platform}"
