"""What must be on the node before a task can start? Its code, environment, image and data, fetched or built in turn.

What fails quickly comes first, so that a mistake is told before a large dataset has travelled. Before each piece the
tags are looked at again (gate 3). Content that may not rest here goes to the task's own folder and never to the cache;
what the cache has of it, from earlier work, is removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harch.base.errors import HarchError
from harch.content.exchange import download, read_tree, upload
from harch.content.image_reference import RegistryImage, parse_image
from harch.content.model import ENTRIES_MAX, TREE_BYTES_MAX
from harch.content.packing import pack, scan
from harch.execution.admission import Premises, check_tags
from harch.execution.content.cache import CacheKind, CacheUse, Make, NodeCache, Reserve
from harch.execution.content.cancellation import Cancellation, Slots
from harch.execution.content.copying import copy_tree
from harch.execution.content.environments import BuildSite, EnvironmentBuilder
from harch.execution.content.hub_client import HubClient
from harch.execution.images.prepared import PreparedImage
from harch.execution.images.store import HeldImage, ImageStore
from harch.execution.images.tools import Hooks
from harch.execution.preparation import PreparedContent
from harch.execution.protocol import ContentUse, TaskContent, TaskSpec
from harch.execution.taskdir import TaskDir
from harch.wire.content import TransferView, TreeView

MB = 10**6


class TaskReport(Protocol):
    """Where a task's preparation says how far it is. From the preparing thread, or one of its own."""

    def step(self, name: str) -> None: ...

    def detail(self, text: str) -> None: ...

    def write(self, data: bytes) -> None:
        """To its log."""


@dataclass(frozen=True, slots=True)
class Preparer:
    """Of one node. `connect` speaks to the hub on behalf of one task."""

    premises: Premises
    cache: NodeCache
    environments: EnvironmentBuilder
    images: ImageStore
    connect: Callable[[str, Cancellation, Callable[[str], None]], HubClient]
    transfers: Slots

    def prepare(
        self,
        task: TaskSpec,
        task_dir: TaskDir,
        cgroups: Sequence[str],
        report: TaskReport,
        cancellation: Cancellation,
        uses: list[CacheUse],
    ) -> PreparedContent:
        """Blocks until all is there. Adds to `uses` what it has borrowed from the cache, also if it fails.

        Raises HarchError, OSError, and Cancelled.
        """
        hub = self.connect(task.key.workload_id, cancellation, lambda text: report.write(f"{text}\n".encode()))
        return _Run(self, task, task_dir, cgroups, report, cancellation, uses, hub).run()


@dataclass(slots=True)
class _Run:
    """The preparation of one task."""

    node: Preparer
    task: TaskSpec
    task_dir: TaskDir
    cgroups: Sequence[str]
    report: TaskReport
    cancellation: Cancellation
    uses: list[CacheUse]
    hub: HubClient
    readable: list[str] = field(default_factory=list)

    def run(self) -> PreparedContent:
        contents = {use: [one for one in self.task.contents if one.use is use] for use in ContentUse}
        for code in contents[ContentUse.CODE]:
            self._step("code")
            self._place_code(code)
        environment = ""
        if self.task.environment is not None:
            self._step("environment")
            environment = self._build_environment()
        image = self._prepare_image(contents[ContentUse.IMAGE])
        data = []
        for one in contents[ContentUse.DATA]:
            self._step(f"data {one.name}")
            data.append((one.name, str(self._fetch(one, "data"))))
        self.report.step("starting")
        return PreparedContent(tuple(data), environment, tuple(self.readable), image)

    def _step(self, name: str) -> None:
        """Gate 3, again: what the agent declares of itself may have been looked at long ago."""
        self.cancellation.check()
        self.report.step(name)
        if reason := check_tags(self.task, self.node.premises):
            code, _, text = reason.partition(" ")
            raise HarchError(code, text, hint="nothing of it was fetched")

    def _place_code(self, code: TaskContent) -> None:
        if self.task.scrub_after:
            self._download(code, self.task_dir.work, _no_reserve, read_only=False)
            return
        copy_tree(self._fetch(code, "code"), self.task_dir.work, self.cancellation)

    def _build_environment(self) -> str:
        task = self.task
        site = BuildSite(
            work=Path(os.path.realpath(task.working_dir)) if task.working_dir is not None else self.task_dir.work,
            is_shared=task.working_dir is not None,
            private=self.task_dir.content,
            may_rest=not task.scrub_after,
            cgroups=self.cgroups,
        )
        prepared = self.node.environments.prepare(task, site, self.report.write, self.cancellation)
        self.uses += prepared.uses
        self.readable += prepared.readable
        return prepared.path

    def _prepare_image(self, held: list[TaskContent]) -> PreparedImage | None:
        if not held and not self.task.image:
            return None
        self._step("image")
        if held:
            image = HeldImage(held[0].name, held[0].digest, self._fetch(held[0], "image"))
            return self._prepared(image)
        reference = parse_image(self.task.image)
        if not isinstance(reference, RegistryImage):
            raise HarchError("E1102", f"the hub did not say what {self.task.image} is", hint="see `harch data ls`")
        return self._prepared(reference)

    def _prepared(self, image: RegistryImage | HeldImage) -> PreparedImage:
        hooks = Hooks(
            log=lambda line: self.report.write(f"{line}\n".encode()),
            progress=self.report.detail,
            check=self.cancellation.check,
        )
        return self.node.images.prepare(image, hub=_HubImages(self), borrow=self._borrow_image, hooks=hooks)

    def _borrow_image(self, name: str, make: Make) -> Path:
        return self._borrow(CacheUse(CacheKind.IMAGE, name), make)

    def _fetch(self, content: TaskContent, word: str) -> Path:
        """Where the files are, which nobody may change."""
        use = CacheUse(CacheKind.TREE, content.digest)

        def make(path: Path, reserve: Reserve) -> None:
            self._download(content, path, reserve, read_only=True)

        path = self._borrow(use, make)
        self.report.write(f"{word} {content.name}: {content.digest[:16]}\n".encode())
        return path

    def _borrow(self, use: CacheUse, make: Make) -> Path:
        """From the cache, or from the task's own folder what may not rest here."""
        if not self.task.scrub_after:
            path = self.node.cache.borrow(use, make, self.cancellation)
            self.uses.append(use)
            return path
        self.node.cache.expel(use)
        path = self.task_dir.content / use.kind / use.name
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            make(path, _no_reserve)
        return path

    def _download(self, content: TaskContent, folder: Path, reserve: Reserve, *, read_only: bool) -> None:
        view = self.hub.tree(content.data_id, progress=self._coming)
        if view.digest != content.digest:
            sentence = f"{content.name} at the hub is {view.digest[:16]}, and not {content.digest[:16]} any more"
            raise HarchError("E1102", sentence, hint="start the work again")
        self.download_view(view, folder, reserve, read_only=read_only)

    def download_view(self, view: TreeView, folder: Path, reserve: Reserve, *, read_only: bool) -> None:
        remote = self.hub.chunks(view.ref)
        root, entries = read_tree(view.digest, remote)
        reserve(root.size_bytes)
        count = _Progress(self.report, self.cancellation, root.size_bytes)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.report.detail("waits for other transfers")
        with self.node.transfers.taken(self.cancellation):
            download(entries, folder, remote, progress=count, read_only=read_only)
        self.report.write(f"fetched {root.files} files, {root.size_bytes / MB:.1f} MB\n".encode())

    def _coming(self, view: TransferView) -> None:
        done, total = view.bytes_done / MB, view.bytes_total / MB
        self.report.detail(f"{done:.0f} of {total:.0f} MB from hub {view.source_hub}")


class _HubImages:
    """What the hub has of images, for one task."""

    def __init__(self, run: _Run) -> None:
        self._run, self._hub = run, run.hub

    def image(self, reference: str) -> TreeView | None:
        return self._hub.image(reference)

    def keep_image(self, reference: str, image_digest: str, digest: str) -> TreeView:
        return self._hub.keep_image(reference, image_digest, digest)

    def download(self, view: TreeView, folder: Path) -> None:
        self._run.download_view(view, folder, _no_reserve, read_only=False)

    def upload(self, folder: Path) -> str:
        found = scan(folder, rules=None, bytes_max=TREE_BYTES_MAX, entries_max=ENTRIES_MAX)
        count = _Progress(self._run.report, self._run.cancellation, 2 * found.size_bytes)
        packed = pack(found, progress=count)
        upload(packed, self._hub.chunks(), progress=count)
        return packed.digest


class _Progress:
    """Counts bytes, says so, and is where a transfer notices that it was called off."""

    def __init__(self, report: TaskReport, cancellation: Cancellation, total_bytes: int) -> None:
        self._report, self._cancellation, self._total_bytes = report, cancellation, total_bytes
        self._done_bytes = 0

    def __call__(self, size: int) -> None:
        self._cancellation.check()
        self._done_bytes += size
        self._report.detail(f"{self._done_bytes / MB:.0f} of {self._total_bytes / MB:.0f} MB")


def _no_reserve(size: int) -> None:
    pass
