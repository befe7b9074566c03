"""A small pipeline in Morocco, the ground that plans of it are made on, and a hub that only remembers."""

from __future__ import annotations

import asyncio
from pathlib import Path

from harch.base.clock import Clock
from harch.hub.pipelines.planning import PlanningContext, read_one
from harch.hub.pipelines.service import HubPipelines
from harch.hub.store.database import Database
from harch.hub.store.rows import Statement
from harch.pipelines.spec.settings import PipelineSpec
from harch.sovereignty.audit.chain import Draft
from harch.sovereignty.compiled import Rules
from harch.sovereignty.geography import terrain_of
from harch.sovereignty.jurisdiction_file import jurisdictions_in_force
from harch.testing.samples import tiny_fleet

TEXT = """\
kind: pipeline
name: fields
jurisdiction:
  {process_in: [MA], rest_in: [MA], classification: internal, encrypt_at_rest: false, encrypt_in_transit: false}
sense:
  sources:
    - {kind: http, name: web}
  devices: [field-0, field-1]
  devices_max: 2
  metrics: [moisture]
  statistics: [count, mean]
  partitions: 4
think:
  models:
    - name: dryness
      inputs: [mean]
      outputs: [need]
      versions:
        - {version: "1", runtime: python, callable: "field_models:dry"}
act:
  sinks:
    valves: {kind: http, url: "http://127.0.0.1:9/valve", honours_key: true, headers: {authorization: "env:VALVE_KEY"}}
  actions:
    - {name: water, when: need >= 1, ttl_s: 120, sink: valves}
scaling:
  think: {workers_min: 1, workers_max: 3}
"""


def ground(hub_id: str = "dakhla") -> PlanningContext:
    jurisdictions = jurisdictions_in_force()
    return PlanningContext(
        hub_id=hub_id, rules=Rules(terrain_of(tiny_fleet(), jurisdictions)), jurisdictions=jurisdictions
    )


def spec(*changes: tuple[str, str]) -> PipelineSpec:
    return read_one(text(*changes).encode(), "pipeline.yaml", ground())


def text(*changes: tuple[str, str]) -> str:
    found = TEXT
    for old, new in changes:
        assert old in found, old
        found = found.replace(old, new)
    return found


class Desk:
    """The pipelines of a hub over a real database, with nobody who carries anything out."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder, self.clock = folder, clock
        self.secrets: dict[str, str] = {}
        self.drafts: list[Draft] = []
        self.notes: list[tuple[str, str, str]] = []
        self.database = Database(folder / "hub.db")
        fleet = tiny_fleet()
        hub = fleet.hub("dakhla")
        assert hub is not None
        self.pipelines = HubPipelines(
            fleet=fleet,
            hub=hub,
            folder=folder,
            clock=clock,
            database=self.database,
            write=self._write,
            note=lambda kind, subject, message: self.notes.append((kind, subject, message)),
            open_secrets=lambda tenant, names: {name: self.secrets[name] for name in names if name in self.secrets},
        )

    def _write(self, statements: list[Statement], drafts: list[Draft]) -> asyncio.Future[None]:
        self.database.write(statements)
        self.drafts += drafts
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    def again(self) -> Desk:
        """The same hub after a restart."""
        self.database.close()
        return Desk(self.folder, self.clock)
