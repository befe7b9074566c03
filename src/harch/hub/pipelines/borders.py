"""Who opens links over borders for the pipelines of a hub? Whoever offers something that somebody abroad wants.

Each round: what the pipelines here offer and want is told to the other hubs, what they say is heard, links and lanes
follow from both. Without exports and imports there is no border, no server for it and no open port.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from msgspec import structs

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.federation.identity.identity import HubIdentity
from harch.federation.identity.members import Address
from harch.hub.pipelines import border_drafts as drafts
from harch.hub.pipelines.action_audit import Write
from harch.hub.pipelines.border_lanes import ExportLane, ImportLane, Tally
from harch.hub.pipelines.border_rows import FeatureReader, RowTaker
from harch.hub.pipelines.border_server import BorderServer
from harch.hub.pipelines.border_tunnel import BorderTunnel
from harch.hub.pipelines.border_wishes import border_views, import_of, offers_of, pipeline_of, wants_of
from harch.hub.pipelines.engine import HubEngine
from harch.hub.pipelines.intake import forward
from harch.hub.pipelines.pipeline import RunningPipeline
from harch.hub.pipelines.planning import Ground
from harch.hub.pipelines.surroundings import Surroundings
from harch.hub.pipelines.views import BorderView
from harch.pipelines.engine.borders import (
    SAID_BYTES_MAX,
    SAID_KEY,
    HubBorder,
    Lane,
    LinkPlan,
    Offer,
    Want,
    heard_border,
    plan_links,
    said_border,
)
from harch.pipelines.engine.keys import KeyFolder
from harch.pipelines.engine.log_lines import EngineEvent
from harch.pipelines.engine.settings import BorderSettings
from harch.pipelines.sense.edge import Permit
from harch.pipelines.sense.source_settings import HttpSource
from harch.pipelines.workers.policies import Policies
from harch.sovereignty.audit.entry import Draft
from harch.sovereignty.crossings import PipelineEdge, check_edge
from harch.sovereignty.tags import Tag, loosens

TALLY_EVERY_S = 60.0

log = logging.getLogger("harch.hub")

Note = Callable[[str, str, str], None]


class HubBorders:
    """In no federation, nothing crosses a border."""

    def __init__(
        self,
        ground: Ground,
        country: str,
        folder: Path,
        *,
        around: Surroundings,
        settings: BorderSettings,
        keys: KeyFolder,
        engine: HubEngine,
        clock: Clock,
        write: Write,
        note: Note,
        on_event: Callable[[EngineEvent], None],
    ) -> None:
        self._ground, self._country, self._folder, self._settings = ground, country, folder, settings
        self._identity, self._heard, self._keys, self._engine = around.identity, around.heard, keys, engine
        self._listen, self._gates = around.listen_host, around.gates
        self._clock, self._write, self._note, self._on_event = clock, write, note, on_event
        self._said: dict[str, bytes] = {}
        self._plans: tuple[LinkPlan, ...] = ()
        self._tunnel: BorderTunnel | None = None
        self._server: BorderServer | None = None
        self._lanes: dict[Lane, asyncio.Task[None]] = {}
        self._made_of: dict[Lane, object] = {}  # what each lane was made of; another one takes its place if it changes
        self._refused: dict[Lane, str] = {}
        self._drafts: list[Draft] = []
        self._tally, self._tallied_s = Tally(), clock.monotonic_s()
        self._pipelines: dict[str, RunningPipeline] = {}

    @property
    def is_possible(self) -> bool:
        return self._identity is not None

    def said(self) -> dict[str, bytes]:
        """What the hub tells all others of its border."""
        return self._said

    def lanes(self) -> tuple[Lane, ...]:
        """What is open now, in both directions."""
        return tuple(self._lanes)

    def views(self, pipeline: RunningPipeline) -> tuple[BorderView, ...]:
        """How the exports and imports of a pipeline stand."""
        return border_views(pipeline, self._ground.hub_id, self.lanes(), self._refused, self._tally.totals)

    async def step(self, pipelines: dict[str, RunningPipeline]) -> None:
        """One look; call it each second. Raises what keeps a border from being opened."""
        if self._identity is None:
            return
        self._pipelines = pipelines
        offers, wants = offers_of(pipelines), wants_of(pipelines)
        if not offers and not wants:
            await self.stop()
            return
        own = await self._opened(self._identity, offers, wants)
        self._said = {SAID_KEY: self._checked(said_border(own))}
        borders = {hub: heard_border(said) for hub, said in self._heard(SAID_KEY).items()}
        known = {hub: border for hub, border in borders.items() if border is not None and not self._stranger(hub)}
        plans = plan_links(self._ground.hub_id, own, known, self._may_receive)
        if self._drafts:
            refused, self._drafts = self._drafts, []
            await self._write([], refused)
        if plans != self._plans:
            await self._link(own, plans)
        await self._run_lanes()
        if self._clock.monotonic_s() - self._tallied_s > TALLY_EVERY_S:
            await self._audit()

    async def stop(self) -> None:
        """Closes everything; what waits goes on from disk at the next start."""
        for lane in list(self._lanes):
            await self._end(lane)
        if self._tunnel is not None:
            await self._tunnel.close()
        if self._server is not None:
            await self._server.stop()
            await self._audit()
        self._tunnel = self._server = None
        self._plans, self._refused = (), {}
        if self._said and (last := heard_border(self._said[SAID_KEY])) is not None:  # what was said stands until unsaid
            self._said = {SAID_KEY: said_border(structs.replace(last, offers=(), wants=()))}

    async def _opened(self, identity: HubIdentity, offers: tuple[Offer, ...], wants: tuple[Want, ...]) -> HubBorder:
        """The border server and the door to it, opened with the first offer or want."""
        if self._server is None:
            self._server = BorderServer(
                self._ground.hub_id, self._folder, self._keys, clock=self._clock, on_event=self._on_event
            )
        if self._tunnel is None:
            tunnel = BorderTunnel(identity, self._clock, welcome=self._stranger, gates=self._gates)
            host = self._settings.host or identity.member.address.host
            at = self._settings.listen or self._listen or host
            self._address = Address(host, await tunnel.listen(at, self._settings.port, self._server.border_port))
            self._tunnel = tunnel
        host, port = self._address
        return HubBorder(country=self._country, host=host, port=port, key=self._server.key, offers=offers, wants=wants)

    def _checked(self, said: bytes) -> bytes:
        if len(said) > SAID_BYTES_MAX:
            raise HarchError(
                "E0748",
                f"exports and imports of this hub take {len(said)} bytes to tell; {SAID_BYTES_MAX} are told",
                hint="use fewer of them: an export may have many columns",
            )
        return said

    async def _link(self, own: HubBorder, plans: tuple[LinkPlan, ...]) -> None:
        if self._tunnel is None or self._server is None:
            return
        peers = {plan.peer: Address(plan.border.host, plan.border.port) for plan in plans if plan.dials}
        for hub in self._tunnel.ways():
            if hub not in peers:
                await self._tunnel.close_way(hub)
        doors = {hub: await self._tunnel.way_to(hub, address) for hub, address in peers.items()}
        await self._server.become(own, plans, doors)
        for plan in plans:
            if plan not in self._plans:
                what = ", ".join(str(lane) for lane in (*plan.out, *plan.into))
                self._note("pipeline.border", plan.peer, f"may exchange {what}")
                await self._write([], drafts.opened(plan))
        self._plans = plans
        self._tunnel.look_again()

    async def _run_lanes(self) -> None:
        """A task for each lane that should be, made of the pipeline as it is now."""
        wanted = {lane: plan for plan in self._plans for lane in (*plan.out, *plan.into)}
        for lane in [lane for lane in self._lanes if lane not in wanted or self._lanes[lane].done()]:
            await self._end(lane)
        for lane in wanted:
            pipeline = pipeline_of(self._pipelines, self._ground.hub_id, lane)
            made_of = None if pipeline is None else (pipeline.parts, pipeline.planned.deployment.exports)
            if lane in self._lanes and self._made_of[lane] == made_of:
                continue
            await self._end(lane)
            running = self._lane(lane, pipeline) if pipeline is not None else None
            if running is not None:
                self._lanes[lane] = asyncio.create_task(running.run(), name=f"border {lane}")
                self._made_of[lane] = made_of

    def _lane(self, lane: Lane, pipeline: RunningPipeline) -> ExportLane | ImportLane | None:
        if self._server is None:
            return None
        border, parts = self._server.client, pipeline.parts
        if lane.source == self._ground.hub_id:
            offer = next(one for one in pipeline.planned.deployment.exports if one.name == lane.export)
            return ExportLane(
                lane,
                offer,
                FeatureReader(parts.sense),
                pipeline.names,
                Policies(parts.policy),
                admin=lambda: self._engine.admin(self._engine.main),
                border=border,
                clock=self._clock,
                count=self._tally.of(lane),
            )
        taken = import_of(pipeline, lane)
        source = next((one for one in parts.sense.sources if taken is not None and one.name == taken.source), None)
        if taken is None or not isinstance(source, HttpSource):
            return None  # the file was checked for that
        permit = Permit(parts.juris_mask, parts.policy.version)
        taker = RowTaker(parts.sense, source, permit, f"{taken.source}/{lane}")
        return ImportLane(
            lane,
            taker,
            lambda body, kind: self._deliver(pipeline, taken.source, body, kind),
            border=border,
            clock=self._clock,
            count=self._tally.of(lane),
        )

    async def _deliver(self, pipeline: RunningPipeline, source: str, body: bytes, kind: str) -> bytes:
        said = [one for one in pipeline.statuses if one.stage == "source"]
        addresses = [one.endpoints[source] for one in said if source in one.endpoints]
        if not addresses:
            raise HarchError("E0751", f"the source `{source}` is not served yet", hint="it is tried again")
        return await forward(addresses[0], body, kind, pipeline.source_keys.get(source, ""))

    def _may_receive(self, lane: Lane, tag: Tag) -> bool:
        """This hub's own rules on what another one would send, and that the pipeline here permits no more than it."""
        pipeline = pipeline_of(self._pipelines, self._ground.hub_id, lane)
        if pipeline is None:
            return False
        edge = PipelineEdge(pipeline=str(lane), stream=tag, source=lane.source, target=lane.target)
        reasons = [f"{one.rule}: {one.detail}" for one in check_edge(self._ground.rules, edge)]
        if loosens(tag, pipeline.planned.proof.tag):
            reasons.append(f"`{pipeline.record.name}` permits more than what it would take in")
        why = "; ".join(reasons)
        if why and self._refused.get(lane) != why:
            self._refused[lane] = why
            self._note("pipeline.refused", pipeline.record.name, f"does not take in {lane}: {why}")
            self._drafts.append(drafts.not_taken(pipeline.record, lane, why))
        if not why:
            self._refused.pop(lane, None)
        return not why

    def _stranger(self, hub: str) -> str:
        """Why there is no link with that hub."""
        if self._identity is None:
            return "this hub is in no federation"
        return self._identity.refusal(hub, b"")

    async def _end(self, lane: Lane) -> None:
        task = self._lanes.pop(lane, None)
        self._made_of.pop(lane, None)
        if task is not None:
            task.cancel()
            (failure,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(failure, Exception):
                log.error("the lane %s failed", lane, exc_info=failure)

    async def _audit(self) -> None:
        """What passed since the last time."""
        self._tallied_s = self._clock.monotonic_s()
        found = self._tally.taken()
        if found:
            await self._write([], [drafts.passed(lane, counts, self._ground.hub_id) for lane, counts in found.items()])
        for lane, counts in found.items():
            if lost := counts.get("forgotten"):
                self._note("pipeline.alert", lane.pipeline, f"{lane}: {lost} windows were forgotten before they left")
