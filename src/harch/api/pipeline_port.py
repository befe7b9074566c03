"""What does the API need of a hub about pipelines? The door to them, and to the actions that wait for a person."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from harch.hub.pipelines.views import FileView, InferenceStats, ReplayRequest
from harch.hub.views import LogPage
from harch.wire.pipelines import (
    ActionList,
    ApplyView,
    PipelineDetails,
    PipelineList,
    PipelineView,
    ReplayRun,
    ReplayView,
    ResultsView,
    SourceKeyView,
)


class ActionsPort(Protocol):
    """Actions of a pipeline. Unknown commands: E0771; a command that is in another state: E0772."""

    async def waiting(self, name: str, *, tenant: str | None) -> ActionList: ...

    async def approve(self, name: str, cmd_id: str, digest: str, *, tenant: str | None, actor: str) -> None:
        """Exactly the command of this digest; E0773 for another."""
        ...

    async def reject(self, name: str, cmd_id: str, reason: str, *, tenant: str | None, actor: str) -> None: ...

    async def letters(self, name: str, *, tenant: str | None) -> ActionList: ...

    async def replay_letter(
        self, name: str, cmd_id: str, *, not_carried_out: bool, tenant: str | None, actor: str
    ) -> None:
        """E0774 if it may have been carried out and nobody says that it was not."""
        ...

    async def drop_letter(self, name: str, cmd_id: str, *, tenant: str | None, actor: str) -> None: ...

    async def replay(
        self, name: str, *, from_seq: int, since: datetime | None, dry_run: bool, tenant: str | None, actor: str
    ) -> ReplayView:
        """Messages of the dead lanes, into the pipeline again."""
        ...


class PipelineDataPort(Protocol):
    """What goes into a pipeline and comes out of it."""

    async def put_file(
        self, name: str, path: str, data: bytes, *, offset: int, total: int, sha256: str, tenant: str
    ) -> FileView | None: ...

    async def take_events(self, name: str, source: str, body: bytes, content_type: str, *, tenant: str | None) -> bytes:
        """Gives a body to an HTTP source of the pipeline and answers what that said."""
        ...

    async def read_log(self, name: str, worker: str, *, tenant: str | None, offset: int, bytes_max: int) -> LogPage: ...

    async def replay(self, name: str, request: ReplayRequest, *, tenant: str | None, actor: str) -> ReplayRun:
        """Begins a replay of kept events or of a file; E0756 if there is nothing, or one runs."""
        ...

    async def look_at_replay(self, name: str, run: str, *, tenant: str | None) -> ReplayRun: ...

    async def stop_replay(self, name: str, run: str, *, tenant: str | None) -> ReplayRun: ...

    async def results(self, name: str, *, after: int, tenant: str | None) -> ResultsView:
        """Rows that its last stage made; E0755 if that is ACT."""
        ...


class PipelinePort(Protocol):
    """One hub's pipelines. Unknown names: E0710; without the packages that they need: E0740."""

    @property
    def actions(self) -> ActionsPort: ...

    @property
    def data(self) -> PipelineDataPort: ...

    def inference(self) -> list[InferenceStats]:
        """What models do; empty without pipelines."""
        ...

    async def listed(self, *, tenant: str | None) -> PipelineList: ...

    async def show(self, name: str, *, tenant: str | None) -> PipelineDetails: ...

    async def apply(
        self,
        text: bytes,
        source: str,
        *,
        tenant: str,
        actor: str,
        dry_run: bool,
        drop_state: bool,
        enrichment: dict[str, dict[str, float]] | None,
    ) -> ApplyView:
        """On disk when this returns; `dry_run` changes nothing and answers the same plan."""
        ...

    async def set_version(
        self, name: str, model: str, version: dict[str, object], *, tenant: str | None, actor: str, dry_run: bool
    ) -> ApplyView: ...

    async def scale(
        self, name: str, counts: dict[str, int | None], *, tenant: str | None, actor: str
    ) -> PipelineView: ...

    async def source_key(
        self, name: str, source: str, *, tenant: str | None, actor: str, renew: bool = False
    ) -> SourceKeyView:
        """The key that senders of a listening source show; the only such source if none is named."""
        ...

    async def halt(self, name: str, reason: str, *, tenant: str | None, actor: str) -> PipelineView:
        """ACT sends nothing until `resume`; E0755 without ACT, E0751 and E0775 where workers could not be reached."""
        ...

    async def resume(self, name: str, *, tenant: str | None, actor: str) -> PipelineView: ...

    async def drain(self, name: str, *, tenant: str | None, actor: str) -> PipelineView: ...

    async def remove(self, name: str, *, tenant: str | None, actor: str) -> PipelineView: ...
