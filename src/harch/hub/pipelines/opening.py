"""How is the loop of pipelines put together? Apart from `service`, so that its imports happen when it is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harch.base.clock import Clock
from harch.base.tracing.sampling import batch_share
from harch.fleet.model import Fleet, Hub
from harch.hub.pipelines.action_audit import Write
from harch.hub.pipelines.loop import Note, PipelineLoop
from harch.hub.pipelines.planning import Ground
from harch.hub.pipelines.surroundings import Surroundings
from harch.hub.store.database import Database
from harch.pipelines.engine.settings import EngineSettings
from harch.sovereignty.compiled import Rules
from harch.sovereignty.in_force import jurisdictions_in_force
from harch.sovereignty.terrain import terrain_of


def open_loop(
    fleet: Fleet,
    hub: Hub,
    folder: Path,
    *,
    clock: Clock,
    database: Database,
    write: Write,
    note: Note,
    open_secrets: Callable[[str, tuple[str, ...]], dict[str, str]],
    settings: EngineSettings | None,
    around: Surroundings,
) -> PipelineLoop:
    jurisdictions = jurisdictions_in_force()
    ground = Ground(
        hub_id=hub.id,
        rules=Rules(terrain_of(fleet, jurisdictions)),
        jurisdictions=jurisdictions,
        trace_share=batch_share(),
    )
    return PipelineLoop(
        ground,
        hub.country,
        folder,
        clock=clock,
        database=database,
        write=write,
        note=note,
        open_secrets=open_secrets,
        settings=settings or EngineSettings(),
        around=around,
    )
