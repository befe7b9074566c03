"""What goes into the pipelines of a hub, and what comes out? Files of models, events, replays, results."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from harch.base.errors import HarchError
from harch.hub.pipelines import drafts, files, planning
from harch.hub.pipelines.action_audit import Write
from harch.hub.pipelines.intake import forward, served_source
from harch.hub.pipelines.logs import read_page
from harch.hub.pipelines.loop import PipelineLoop
from harch.hub.pipelines.pipeline import RunningPipeline
from harch.hub.pipelines.replay_wish import ReplayWish
from harch.hub.pipelines.replays import Replays
from harch.hub.pipelines.results import read_results
from harch.hub.pipelines.values import PipelineRecord
from harch.hub.pipelines.views import FileView, PipelineView, ReplayRun, ResultsView
from harch.hub.views import LogPage
from harch.pipelines.workers.names import names_of

Find = Callable[[str, str | None], PipelineRecord]
Mine = Callable[[str, str], PipelineRecord | None]
View = Callable[[PipelineRecord], Awaitable[PipelineView]]


class PipelineData:
    """Behind the API. `find` raises E0710, `mine` E0711 for a name of another tenant."""

    def __init__(self, find: Find, mine: Mine, view: View, loop: PipelineLoop, country: str, write: Write) -> None:
        self._find, self._mine, self._view, self._loop, self._country = find, mine, view, loop, country
        self._write = write
        self._replays = Replays()

    async def put_file(
        self, name: str, path: str, data: bytes, *, offset: int, total: int, sha256: str, tenant: str
    ) -> FileView | None:
        """One piece of a file; answers the file when it is whole."""
        names_of(self._country, name)
        record = self._mine(name, tenant)
        if record is not None:
            files.check_replaced(planning.files_named(planning.spec_of(record)), path, sha256)
        folder = self._loop.pipeline_folder(name) / "files"
        return await asyncio.to_thread(files.take_part, folder, path, data, offset=offset, total=total, sha256=sha256)

    async def take_events(self, name: str, source: str, body: bytes, content_type: str, *, tenant: str | None) -> bytes:
        """Gives a body to an HTTP source of the pipeline and answers what that said."""
        sources = (await self._view(self._find(name, tenant))).sources
        running = self._running(name, tenant)
        found = served_source(sources, source, name)
        return await forward(sources[found], body, content_type, running.source_keys.get(found, ""))

    async def read_log(self, name: str, worker: str, *, tenant: str | None, offset: int, bytes_max: int) -> LogPage:
        """A page of what one worker printed. Raises E0710."""
        self._find(name, tenant)
        return await asyncio.to_thread(read_page, self._loop.pipeline_folder(name), worker, offset, bytes_max)

    async def replay(self, name: str, wish: ReplayWish, *, tenant: str | None, actor: str) -> ReplayRun:
        """Begins a replay of events. What is not a dry run is in the audit chain first. Raises E0756, E0713."""
        record, running = self._find(name, tenant), self._running(name, tenant)
        if not wish.is_dry:
            await self._write([], [drafts.events_replayed(record, wish.file, again=wish.again, by=actor)])
        return await self._replays.start(running, wish)

    async def look_at_replay(self, name: str, run: str, *, tenant: str | None) -> ReplayRun:
        """Raises E0710 for a run that is not known."""
        return self._replays.look(self._running(name, tenant), run)

    async def stop_replay(self, name: str, run: str, *, tenant: str | None) -> ReplayRun:
        running = self._running(name, tenant)
        self._replays.look(running, run)
        await self._replays.stop(name)
        return self._replays.look(running, run)

    async def close(self) -> None:
        await self._replays.stop()

    def _running(self, name: str, tenant: str | None) -> RunningPipeline:
        self._find(name, tenant)
        running = self._loop.running.get(name)
        if running is None:
            raise HarchError("E0751", f"`{name}` does not run", hint="try again in a moment", retry_after_s=2)
        return running

    async def results(self, name: str, *, after: int, tenant: str | None) -> ResultsView:
        """A page of what its last stage made. Raises E0755 where that is ACT, E0751 while it does not run."""
        running = self._running(name, tenant)
        parts = running.parts
        if parts.act is not None:
            raise HarchError(
                "E0755",
                f"`{name}` ends in actions, and keeps no results",
                hint="`harch pipeline top` counts them, the audit chain has each; leave `act` out to read results",
            )
        engine = self._loop.engine
        thinks = parts.think is not None
        return await read_results(engine.admin(engine.main), running.names, parts.sense, after=after, thinks=thinks)
