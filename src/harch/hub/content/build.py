"""What is one hub's content made of? Its parts, each from those made before it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from harch.base.clock import Clock
from harch.content.store import ContentStore
from harch.hub.agent_gateway import AgentGateway, ArtifactPort
from harch.hub.content.peers import ContentAnswers, ContentSource
from harch.hub.content.place import open_content
from harch.hub.content.service import HubContent, StoreThreads
from harch.hub.content.settings import read_settings
from harch.hub.content.transfers import ContentTransfers, PeerContent
from harch.hub.content.upkeep import ContentUpkeep
from harch.hub.jobs.runtime import JobRuntime
from harch.workloads.lifecycle import Workload


@dataclass(frozen=True)
class HubFiles:
    """The store of one hub, what it gives to others, and who looks after it."""

    store: ContentStore
    content: HubContent
    source: ContentSource
    transfers: ContentTransfers
    upkeep: ContentUpkeep

    def answers(self, find: Callable[[str], Awaitable[Workload]]) -> ContentAnswers:
        """What peers may ask. `find` finds work of any tenant."""
        return ContentAnswers(self.source, self.content.snapshot_for, find)


def build_content(
    *,
    hub_id: str,
    folder: Path,
    clock: Clock,
    jobs: JobRuntime,
    agents: AgentGateway,
    artifacts: ArtifactPort,
    peers: PeerContent,
) -> HubFiles:
    """`folder` is the state folder of the hub, which holds the store or the index of its bucket, and the settings."""
    settings = read_settings(folder)
    store = open_content(folder, settings, clock)
    source = ContentSource(hub_id=hub_id, store=store, jobs=jobs, clock=clock)
    transfers = ContentTransfers(hub_id=hub_id, store=store, jobs=jobs, peers=peers)
    content = HubContent(
        hub_id=hub_id,
        store=store,
        threads=StoreThreads(),
        jobs=jobs,
        agents=agents,
        transfers=transfers,
        clock=clock,
        code_kept=settings.retention.code,
    )
    artifacts.connect(content.keep_artifacts)
    upkeep = ContentUpkeep(
        hub_id=hub_id,
        store=store,
        source=source,
        peers=peers,
        jobs=jobs,
        clock=clock,
        borrowed_kept=settings.retention.borrowed,
    )
    return HubFiles(store, content, source, transfers, upkeep)
