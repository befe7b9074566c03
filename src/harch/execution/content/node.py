"""What does this node have for its tasks, and how do they get it? The agent's caches, tools and kept files.

The hub is spoken to, and what speaks to it is loaded, when the first task needs something: agents of nodes that run
plain commands stay as small as they were.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harch.base.clock import Clock, machine_boot_id
from harch.base.errors import InvariantBroken
from harch.execution.admission import AgentConfig, Premises
from harch.execution.content.cache import CacheKind, CacheUse, NodeCache
from harch.execution.content.cancellation import Cancellation, Slots
from harch.execution.content.environments import EnvironmentBuilder, find_uv
from harch.execution.content.kept_work import KeptWork
from harch.execution.content.pythons import find_pythons, own_python
from harch.execution.images.limits import settings_from
from harch.execution.images.manifest import platform_of
from harch.execution.images.store import ImageStore
from harch.execution.images.support import ImageSupport, find_support
from harch.execution.isolation.sandbox import Sandbox
from harch.execution.preparation import PreparedContent, StateFolder
from harch.execution.protocol import TaskKey, TaskSpec
from harch.execution.taskdir import ArtifactsKept, ContentUses, TaskDir
from harch.execution.trash import Trash
from harch.workloads.spec import Artifact

if TYPE_CHECKING:
    import httpx

    from harch.content.packing import PackedFolder
    from harch.execution.content.hub_client import HubClient
    from harch.execution.content.preparing import TaskReport

TRANSFERS_AT_ONCE = 4  # each holds some batches of chunks in memory
TIDY_S = 600.0
FILES_RETRY_S_MAX = 30.0  # somebody waits for the answer


@dataclass(frozen=True, slots=True)
class NodeTools:
    """What was found on the node, in a thread, before the agent says hello."""

    environments: EnvironmentBuilder
    images: ImageStore
    image_support: ImageSupport

    def features(self) -> dict[str, str]:
        return {**self.environments.features(), **self.image_support.features()}


class NodeContent:
    """Its methods block, except `open`, `release`, `reclaim` and `close`; from any thread."""

    def __init__(
        self,
        config: AgentConfig,
        state: StateFolder,
        premises: Premises,
        sandbox: Sandbox,
        clock: Clock,
        trash: Trash,
    ) -> None:
        self._config, self._state, self._premises, self._sandbox = config, state, premises, sandbox
        self._clock = clock
        self.cache = NodeCache(state.content, trash, clock.now, boot_id=machine_boot_id(), bytes_max=config.cache_bytes)
        self.kept_work = KeptWork(state.kept_work, trash, clock.now, bytes_max=config.kept_work_bytes)
        self._tools: NodeTools | None = None
        self._transfers = Slots(TRANSFERS_AT_ONCE)
        self._uses: dict[TaskKey, list[CacheUse]] = {}
        self._client: httpx.Client | None = None
        self._lock = threading.Lock()

    def open(self) -> None:
        self.cache.open()
        self.kept_work.open()

    def tidy(self) -> None:
        """When every task of an earlier agent was looked at, and now and then."""
        self.cache.tidy()
        self.kept_work.make_room()

    async def stay_tidy(self) -> None:
        """Until it is cancelled: what is too old goes also when no task comes or ends."""
        while True:
            await self._clock.sleep(TIDY_S)
            await asyncio.to_thread(self.tidy)

    def find_tools(self) -> NodeTools:
        """Asks the programs of the node. Once, before anything is prepared."""
        environments = EnvironmentBuilder(
            uv=find_uv(os.environ),
            own=own_python(),
            pythons=find_pythons(os.environ),
            cache=self.cache,
            root=self._state.content / CacheKind.ENVIRONMENT,
            sandbox=self._sandbox,
            hidden=self._premises.hidden,
        )
        support = find_support(self._sandbox)
        images = ImageStore(
            self._state.content / "unpacking",
            support,
            self._sandbox,
            platform_of(os.uname().machine),
            settings_from(os.environ),
            os.environ,
        )
        images.open()
        self._tools = NodeTools(environments, images, support)
        return self._tools

    def prepare(
        self,
        task: TaskSpec,
        task_dir: TaskDir,
        cgroups: Sequence[str],
        report: TaskReport,
        cancellation: Cancellation,
    ) -> PreparedContent:
        """Fetches and builds what a task needs. Raises HarchError, OSError and Cancelled."""
        from harch.execution.content.preparing import Preparer

        tools = self._tools
        if tools is None:
            raise InvariantBroken("tools of the node are found before it gets tasks", task.key)
        preparer = Preparer(
            self._premises, self.cache, tools.environments, tools.images, self._connect, self._transfers
        )
        uses: list[CacheUse] = []
        try:
            content = preparer.prepare(task, task_dir, cgroups, report, cancellation, uses)
            task_dir.write_uses(ContentUses(uses=tuple((use.kind.value, use.name) for use in uses)))
        except BaseException:
            for use in uses:
                self.cache.give_back(use)
            raise
        with self._lock:
            self._uses[task.key] = uses
        return content

    def reclaim(self, key: TaskKey, task_dir: TaskDir) -> None:
        """A task of an earlier agent goes on: what it uses must stay."""
        uses = [CacheUse(CacheKind(kind), name) for kind, name in task_dir.uses()]
        with self._lock:
            if key not in self._uses:
                self._uses[key] = [use for use in uses if self.cache.reclaim(use)]

    def release(self, key: TaskKey) -> None:
        """The task has ended."""
        with self._lock:
            uses = self._uses.pop(key, [])
        for use in uses:
            self.cache.give_back(use)

    def keep_artifacts(
        self, key: TaskKey, work: Path, wanted: Sequence[Artifact], cancellation: Cancellation
    ) -> ArtifactsKept:
        """However long the hub is away. Raises Cancelled."""
        from harch.execution.content.artifacts import keep_artifacts

        return keep_artifacts(
            work, wanted, self._connect(key.workload_id, cancellation, retry_s_max=float("inf")), cancellation
        )

    def snapshot(self, key: TaskKey, work: Path, path: str, cancellation: Cancellation) -> PackedFolder:
        """Raises HarchError and Cancelled."""
        from harch.execution.content.work_files import snapshot

        hub = self._connect(key.workload_id, cancellation, retry_s_max=FILES_RETRY_S_MAX)
        return snapshot(work, path, hub, cancellation)

    def place(
        self, key: TaskKey, work: Path, path: str, ref: str, digest: str, cancellation: Cancellation
    ) -> tuple[int, int]:
        """Returns (bytes, files). Raises HarchError and Cancelled."""
        from harch.execution.content.work_files import place

        hub = self._connect(key.workload_id, cancellation, retry_s_max=FILES_RETRY_S_MAX)
        return place(work, path, ref, digest, hub, cancellation)

    def close(self) -> None:
        if self._client is not None:
            with suppress(RuntimeError):  # a request that was abandoned is still on its way
                self._client.close()

    def _connect(
        self,
        workload_id: str,
        cancellation: Cancellation,
        note: Callable[[str], None] = lambda text: None,
        retry_s_max: float | None = None,
    ) -> HubClient:
        from harch.execution.content.hub_client import RETRY_S_MAX, HubClient, connect

        with self._lock:
            if self._client is None:
                self._client = connect(self._config.hub_url, self._config.api_key)
        return HubClient(
            self._client,
            workload_id,
            cancellation,
            note=note,
            retry_s_max=RETRY_S_MAX if retry_s_max is None else retry_s_max,
            monotonic_s=self._clock.monotonic_s,
        )
