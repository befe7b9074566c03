"""What do the pipelines of a hub offer to other countries, what do they want, and how does it stand? No I/O."""

from __future__ import annotations

from collections.abc import Mapping

from harch.hub.pipelines.pipeline import RunningPipeline
from harch.hub.pipelines.values import Wish
from harch.hub.pipelines.views import BorderView
from harch.pipelines.engine.borders import Lane, Offer, Want
from harch.pipelines.spec.settings import ImportSettings

Pipelines = Mapping[str, RunningPipeline]
Counts = Mapping[Lane, Mapping[str, int]]


def offers_of(pipelines: Pipelines) -> tuple[Offer, ...]:
    return tuple(
        Offer(pipeline=name, export=offer.name, tag=offer.tag, hubs=offer.hubs)
        for name, one in sorted(pipelines.items())
        if one.record.wish is not Wish.REMOVE
        for offer in one.planned.deployment.exports
    )


def wants_of(pipelines: Pipelines) -> tuple[Want, ...]:
    return tuple(
        Want(taken.hub, taken.pipeline, taken.export)
        for _, one in sorted(pipelines.items())
        if one.record.wish is Wish.RUN
        for taken in one.planned.spec.imports
    )


def import_of(pipeline: RunningPipeline, lane: Lane) -> ImportSettings | None:
    """How this pipeline takes that export in, if it does."""
    asked = (lane.source, lane.pipeline, lane.export)
    return next((one for one in pipeline.planned.spec.imports if (one.hub, one.pipeline, one.export) == asked), None)


def pipeline_of(pipelines: Pipelines, hub: str, lane: Lane) -> RunningPipeline | None:
    """Whose lane it is at this hub: the pipeline that exports, or the one that takes it in."""
    if lane.source == hub:
        return pipelines.get(lane.pipeline)
    return next((one for one in pipelines.values() if import_of(one, lane) is not None), None)


def border_views(
    pipeline: RunningPipeline, hub: str, lanes: tuple[Lane, ...], refused: Mapping[Lane, str], counts: Counts
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
            detail = f"`{taken.pipeline}` at {taken.hub} does not offer it to this hub, or is not heard"
            found.append(BorderView(direction="in", export=taken.export, hub=taken.hub, state="waiting", detail=detail))
    return tuple(found)


def _view(direction: str, lane: Lane, hub: str, state: str, detail: str, counts: Counts) -> BorderView:
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
