"""A hub and a cache in miniature, of which each remembers what it was asked for."""

from __future__ import annotations

import hashlib
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path

from harch.base.errors import HarchError
from harch.execution.images.limits import ImageSettings
from harch.execution.images.manifest import platform_of
from harch.execution.images.prepared import PreparedImage
from harch.execution.images.store import ImageStore, Make, TaskImage
from harch.execution.images.support import find_support
from harch.execution.images.tools import Hooks
from harch.execution.isolation.sandbox import Sandbox, choose
from harch.wire.content import TreeView


@dataclass
class MemoryHub:
    """What a hub has of images. Blobs are stored by their hash, so equal ones are sent once."""

    folder: Path
    names: dict[str, TreeView] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    blobs_sent: list[str] = field(default_factory=list)
    refuses: HarchError | None = None

    def image(self, reference: str) -> TreeView | None:
        self.requests.append(reference)
        return self.names.get(reference)

    def keep_image(self, reference: str, image_digest: str, digest: str) -> TreeView:
        view = TreeView(ref=digest, digest=digest, name=image_digest, size_bytes=1)
        self.names[reference] = view
        return view

    def download(self, view: TreeView, folder: Path) -> None:
        shutil.copytree(self.folder / view.ref, folder, symlinks=True)

    def upload(self, folder: Path) -> str:
        if self.refuses is not None:
            raise self.refuses
        names = sorted(path.name for path in (folder / "blobs" / "sha256").iterdir())
        digest = hashlib.sha256(repr(names).encode()).hexdigest()
        known = {path.name for path in self.folder.glob("*/blobs/sha256/*")}
        self.blobs_sent += [name for name in names if name not in known]
        shutil.copytree(folder, self.folder / digest, dirs_exist_ok=True)
        return digest


@dataclass
class FolderCache:
    """As the cache of a node: one makes an image, the others wait."""

    folder: Path
    made: list[str] = field(default_factory=list)
    reserved: list[int] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def borrow(self, name: str, make: Make) -> Path:
        with self._lock:
            path = self.folder / name
            if not path.exists():
                make(path, self.reserved.append)
                self.made.append(name)
            return path


class Node:
    """One node with its cache; `lines` is the log of what it has prepared."""

    def __init__(self, folder: Path, **settings: object) -> None:
        for name in ("cache", "work"):
            (folder / name).mkdir(parents=True)
        self.folder = folder
        self.sandbox: Sandbox = choose("auto", folder)
        support = find_support(self.sandbox)
        self.cache = FolderCache(folder / "cache")
        self.scratch = folder / "scratch"
        fields = {"disk_free_bytes_min": 0, **settings}
        self.store = ImageStore(
            self.scratch,
            support,
            self.sandbox,
            platform_of("x86_64"),
            ImageSettings(**fields),  # type: ignore[arg-type]
            {},
        )
        self.store.open()
        self.lines: list[str] = []
        self.details: list[str] = []
        self.stop: Exception | None = None

    def prepare(self, image: TaskImage, hub: MemoryHub | None = None) -> PreparedImage:
        try:
            return self.store.prepare(image, hub=hub, borrow=self.cache.borrow, hooks=self.hooks)
        finally:
            assert list(self.scratch.iterdir()) == [], "nothing is left behind, however it ends"

    @property
    def hooks(self) -> Hooks:
        return Hooks(self.lines.append, self.details.append, self._check)

    def _check(self) -> None:
        if self.stop is not None:
            raise self.stop
