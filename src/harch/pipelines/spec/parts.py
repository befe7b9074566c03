"""What are the workers of a planned pipeline told? Its parts, from the file, the plan and the rules. No I/O."""

from __future__ import annotations

from harch.base.errors import HarchError
from harch.pipelines.sense.gate import MASK_ALL, PolicyTable, stream_mask
from harch.pipelines.spec.deployment import Deployment, lane_sizes, route_of
from harch.pipelines.spec.file import data_tag
from harch.pipelines.spec.residency import model_tags
from harch.pipelines.spec.settings import PipelineSpec, StageName
from harch.pipelines.workers.config import SourceOptions
from harch.pipelines.workers.config import StageName as WorkerStage
from harch.pipelines.workers.parts import PipelineParts
from harch.sovereignty.compiled import Rules
from harch.sovereignty.jurisdictions import Jurisdictions


def parts_at(
    spec: PipelineSpec,
    plan: Deployment,
    hub: str,
    rules: Rules,
    jurisdictions: Jurisdictions,
    *,
    policy_version: int,
    model_folder: str = ".",
) -> PipelineParts:
    """The pipeline at one of its hubs, with the workers that the plan puts there."""
    site = rules.terrain.site(hub)
    if site is None:
        raise HarchError("E0305", f"the fleet has no hub `{hub}`", hint="`harch hubs` lists them")
    tag = data_tag(spec, jurisdictions)
    workers: dict[WorkerStage, int] = {}
    for placement in plan.placements:
        if placement.hub == hub:
            workers[placement.stage.value] = placement.workers
            if placement.stage is StageName.SENSE:
                workers["source"] = 1
    countries = {other.country for other in rules.terrain.sites if other.country is not None}
    return PipelineParts(
        name=spec.name,
        country=plan.country,
        site=site,
        policy=PolicyTable.of(rules, policy_version, tag, hub),
        juris_mask=stream_mask(rules, tag, hub),
        sense=spec.sense,
        think=spec.think,
        act=spec.act,
        workers=workers,
        model_folder=model_folder,
        model_tags=dict(model_tags(spec, jurisdictions)),
        country_bits={country: rules.hubs_in((country,)) & MASK_ALL for country in countries},
        lane="hot" if route_of(spec).is_hot else "durable",
        sizes=lane_sizes(spec),
        source=SourceOptions(
            kept_s=spec.durability.events_kept_s, kept_bytes_max=spec.durability.events_kept_bytes_max
        ),
        exports=bool(spec.exports),
    )
