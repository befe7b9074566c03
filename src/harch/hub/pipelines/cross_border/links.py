"""Who opens links over borders for the pipelines of a hub?

Whoever offers something that a hub in another country wants; and how each link stands.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import structs

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.federation.identity.hub_identity import HubIdentity
from harch.federation.identity.members import Address
from harch.hub.pipelines import audit as drafts
from harch.hub.pipelines.audit import Write
from harch.hub.pipelines.context import HubContext
from harch.hub.pipelines.cross_border.servers import BorderServer, BorderTunnel
from harch.hub.pipelines.cross_border.transfer import ExportLane, FeatureReader, ImportLane, RowTaker, TransferTally
from harch.hub.pipelines.engine import HubEngine
from harch.hub.pipelines.pipeline import RunningPipeline
from harch.hub.pipelines.planning import PlanningContext
from harch.hub.pipelines.sources import forward
from harch.hub.pipelines.values import DesiredState
from harch.pipelines.engine.borders import (
    BORDER_SIGNAL,
    BORDER_SIGNAL_BYTES_MAX,
    BorderLane,
    BorderOffer,
    HubBorder,
    LinkPlan,
    Want,
    decode_border,
    encode_border,
    plan_links,
)
from harch.pipelines.engine.keys import KeyFolder
from harch.pipelines.engine.log_lines import EngineEvent
from harch.pipelines.engine.settings import BorderSettings
from harch.pipelines.sense.edge import Permit
from harch.pipelines.sense.settings import HttpSource
from harch.pipelines.spec.settings import ImportSettings
from harch.pipelines.workers.shared_state import Policies
from harch.sovereignty.audit.chain import Draft
from harch.sovereignty.gates import PipelineEdge, check_edge
from harch.sovereignty.tags import Tag, loosens
from harch.wire.pipelines import BorderView

Pipelines = Mapping[str, RunningPipeline]
Counts = Mapping[BorderLane, Mapping[str, int]]


def offers_of(pipelines: Pipelines) -> tuple[BorderOffer, ...]:
    return tuple(
        BorderOffer(pipeline=name, export=offer.name, tag=offer.tag, hubs=offer.hubs)
        for name, one in sorted(pipelines.items())
        if one.record.desired is not DesiredState.REMOVE
        for offer in one.planned.deployment.exports
    )


def wants_of(pipelines: Pipelines) -> tuple[Want, ...]:
    return tuple(
        Want(taken.hub, taken.pipeline, taken.export)
        for _, one in sorted(pipelines.items())
        if one.record.desired is DesiredState.RUN
        for taken in one.planned.spec.imports
    )


def import_of(pipeline: RunningPipeline, lane: BorderLane) -> ImportSettings | None:
    """How this pipeline takes that export in, if it does."""
    requested = (lane.source, lane.pipeline, lane.export)
    return next(
        (one for one in pipeline.planned.spec.imports if (one.hub, one.pipeline, one.export) == requested), None
    )


def pipeline_of(pipelines: Pipelines, hub: str, lane: BorderLane) -> RunningPipeline | None:
    """Whose lane it is at this hub: the pipeline that exports, or the one that takes it in."""
    if lane.source == hub:
        return pipelines.get(lane.pipeline)
    return next((one for one in pipelines.values() if import_of(one, lane) is not None), None)


def border_views(
    pipeline: RunningPipeline,
    hub: str,
    lanes: tuple[BorderLane, ...],
    refused: Mapping[BorderLane, str],
    counts: Counts,
) -> tuple[BorderView, ...]:
    """Every export and import of a pipeline, also those that nobody takes or offers."""
    found = []
    for offer in pipeline.planned.deployment.exports:
        out = [
            one for one in lanes if (one.source, one.pipeline, one.export) == (hub, pipeline.record.name, offer.name)
        ]
        found += [_view("out", lane, lane.target, "open", "", counts) for lane in out]
        if not out:
            detail = f"no pipeline at {', '.join(offer.hubs) or 'any hub'} imports it yet"
            found.append(BorderView(direction="out", export=offer.name, hub="", state="waiting", detail=detail))
    for taken in pipeline.planned.spec.imports:
        into = [one for one in (*lanes, *refused) if import_of(pipeline, one) is taken]
        found += [
            _view("in", lane, lane.source, "refused" if lane in refused else "open", refused.get(lane, ""), counts)
            for lane in into
        ]
        if not into:
            detail = f"`{taken.pipeline}` at {taken.hub} does not offer it to this hub, or is unreachable"
            found.append(BorderView(direction="in", export=taken.export, hub=taken.hub, state="waiting", detail=detail))
    return tuple(found)


def _view(direction: str, lane: BorderLane, hub: str, state: str, detail: str, counts: Counts) -> BorderView:
    passed = dict(counts.get(lane, {}))
    return BorderView(
        direction=direction,
        export=lane.export,
        hub=hub,
        state=state,
        windows=passed.pop("windows", 0),
        rows=passed.pop("rows", 0),
        left_out=passed,
        detail=detail,
    )


# Who opens links over borders for the pipelines of a hub? Whoever offers something that somebody abroad wants.
#
# Each round: what the pipelines here offer and want is sent to the other hubs, what they say is read, links and lanes
# follow from both. Without exports and imports there is no border, no server for it and no open port.


TALLY_EVERY_S = 60.0

log = logging.getLogger("harch.hub")

Note = Callable[[str, str, str], None]


class HubBorders:
    """In no federation, nothing crosses a border."""

    def __init__(
        self,
        ground: PlanningContext,
        country: str,
        folder: Path,
        *,
        around: HubContext,
        settings: BorderSettings,
        keys: KeyFolder,
        engine: HubEngine,
        clock: Clock,
        write: Write,
        note: Note,
        on_event: Callable[[EngineEvent], None],
    ) -> None:
        self._ground, self._country, self._folder, self._settings = ground, country, folder, settings
        self._identity, self._peer_signals, self._keys, self._engine = (
            around.identity,
            around.peer_signals,
            keys,
            engine,
        )
        self._listen, self._gates = around.listen_host, around.gates
        self._clock, self._write, self._note, self._on_event = clock, write, note, on_event
        self._published: dict[str, bytes] = {}
        self._plans: tuple[LinkPlan, ...] = ()
        self._tunnel: BorderTunnel | None = None
        self._server: BorderServer | None = None
        self._lanes: dict[BorderLane, asyncio.Task[None]] = {}
        self._made_of: dict[
            BorderLane, object
        ] = {}  # what each lane was made of; another one takes its place if it changes
        self._refused: dict[BorderLane, str] = {}
        self._drafts: list[Draft] = []
        self._tally, self._tallied_s = TransferTally(), clock.monotonic_s()
        self._pipelines: dict[str, RunningPipeline] = {}

    @property
    def is_possible(self) -> bool:
        return self._identity is not None

    def signals(self) -> dict[str, bytes]:
        """What the hub tells all others of its border."""
        return self._published

    def lanes(self) -> tuple[BorderLane, ...]:
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
        self._published = {BORDER_SIGNAL: self._checked(encode_border(own))}
        borders = {hub: decode_border(signal) for hub, signal in self._peer_signals(BORDER_SIGNAL).items()}
        known = {hub: border for hub, border in borders.items() if border is not None and not self._peer_refusal(hub)}
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
        if (
            self._published and (last := decode_border(self._published[BORDER_SIGNAL])) is not None
        ):  # what was published stands until withdrawn
            self._published = {BORDER_SIGNAL: encode_border(structs.replace(last, offers=(), wants=()))}

    async def _opened(
        self, identity: HubIdentity, offers: tuple[BorderOffer, ...], wants: tuple[Want, ...]
    ) -> HubBorder:
        """The border server and the door to it, opened with the first offer or want."""
        if self._server is None:
            self._server = BorderServer(
                self._ground.hub_id, self._folder, self._keys, clock=self._clock, on_event=self._on_event
            )
        if self._tunnel is None:
            tunnel = BorderTunnel(identity, self._clock, welcome=self._peer_refusal, gates=self._gates)
            host = self._settings.host or identity.member.address.host
            at = self._settings.listen or self._listen or host
            self._address = Address(host, await tunnel.listen(at, self._settings.port, self._server.border_port))
            self._tunnel = tunnel
        host, port = self._address
        return HubBorder(country=self._country, host=host, port=port, key=self._server.key, offers=offers, wants=wants)

    def _checked(self, signal: bytes) -> bytes:
        if len(signal) > BORDER_SIGNAL_BYTES_MAX:
            raise HarchError(
                "E0748",
                f"exports and imports of this hub take {len(signal)} bytes; the limit is {BORDER_SIGNAL_BYTES_MAX}",
                hint="use fewer: an export may have many columns",
            )
        return signal

    async def _link(self, own: HubBorder, plans: tuple[LinkPlan, ...]) -> None:
        if self._tunnel is None or self._server is None:
            return
        peers = {plan.peer: Address(plan.border.host, plan.border.port) for plan in plans if plan.dials}
        for hub in self._tunnel.ways():
            if hub not in peers:
                await self._tunnel.close_way(hub)
        tunnel_ports = {hub: await self._tunnel.way_to(hub, address) for hub, address in peers.items()}
        await self._server.become(own, plans, tunnel_ports)
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

    def _lane(self, lane: BorderLane, pipeline: RunningPipeline) -> ExportLane | ImportLane | None:
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
        sources = [one for one in pipeline.statuses if one.stage == "source"]
        addresses = [one.endpoints[source] for one in sources if source in one.endpoints]
        if not addresses:
            raise HarchError("E0751", f"the source `{source}` is not served yet", hint="it will be retried")
        return await forward(addresses[0], body, kind, pipeline.source_keys.get(source, ""))

    def _may_receive(self, lane: BorderLane, tag: Tag) -> bool:
        """This hub's own rules on what another one would send, and that the pipeline here permits no more than it."""
        pipeline = pipeline_of(self._pipelines, self._ground.hub_id, lane)
        if pipeline is None:
            return False
        edge = PipelineEdge(pipeline=str(lane), stream=tag, source=lane.source, target=lane.target)
        reasons = [f"{one.rule}: {one.detail}" for one in check_edge(self._ground.rules, edge)]
        if loosens(tag, pipeline.planned.proof.tag):
            reasons.append(f"`{pipeline.record.name}` permits more than what it would import")
        why = "; ".join(reasons)
        if why and self._refused.get(lane) != why:
            self._refused[lane] = why
            self._note("pipeline.refused", pipeline.record.name, f"does not import {lane}: {why}")
            self._drafts.append(drafts.not_taken(pipeline.record, lane, why))
        if not why:
            self._refused.pop(lane, None)
        return not why

    def _peer_refusal(self, hub: str) -> str:
        """Why there is no link with that hub."""
        if self._identity is None:
            return "this hub is not in a federation"
        return self._identity.refusal(hub, b"")

    async def _end(self, lane: BorderLane) -> None:
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
                self._note("pipeline.alert", lane.pipeline, f"{lane}: {lost} windows expired before export")
