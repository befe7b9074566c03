"""What can happen in a view, and is it a violation? Placements, spill-overs, routes, replicas, edges, exports.

*Choices* (a cluster for work, a way for a transfer) happen only if a gate lets them through on what it reads. *Orders*
(a copy at a hub, a standing flow, an export) are written down as such and are judged outright: no credit is given to a
gate that would stop them. Nor is one gate's refusal credited to another: work that a cluster admits is a placement,
whether or not its data finds an allowed way there. Capacity is never credited either.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product

from msgspec.structs import replace

from harch.sovereignty.proof.crossings import Crossings
from harch.sovereignty.proof.model import (
    Cluster,
    Dataset,
    Export,
    Flow,
    Hub,
    Kind,
    Names,
    Pipeline,
    SpillOver,
    Workload,
)
from harch.sovereignty.proof.step import Failed, Step, StepKind
from harch.sovereignty.proof.view import View
from harch.sovereignty.rules import explain_arrival, explain_process, explain_rest, explain_view, passes
from harch.sovereignty.tags import Tag, meet
from harch.sovereignty.terrain import Site


class Judge:
    """Finds the violations of a view. `only` limits it to what one step needs, to look at that alone."""

    def __init__(self, view: View, only: Step | None = None) -> None:
        self._view = view
        self._only = only
        self._verdicts: dict[tuple[object, ...], bool] = {}
        self._crossings = Crossings(view)
        self._alike: dict[tuple[object, ...], tuple[Step, ...]] = {}
        self._clusters = [
            cluster
            for key, variants in view.all(Kind.CLUSTER).items()
            if only is None or not only.cluster or key == only.cluster
            for cluster in variants
            if isinstance(cluster, Cluster)
        ]
        self._spills = [s for found in view.all(Kind.SPILL_OVER).values() for s in found if isinstance(s, SpillOver)]
        self._hubs = [key for key, found in view.all(Kind.HUB).items() if found]

    def scenarios(self) -> list[Failed]:
        """The hubs that are down: those that are, or none of them, and in each case at most one more."""
        down = tuple(
            key
            for key, found in self._view.all(Kind.HUB).items()
            if any(isinstance(hub, Hub) and hub.failed for hub in found)
        )
        found = {tuple(sorted({*base, *more})) for base in ((), down) for more in ((), *((hub,) for hub in self._hubs))}
        return sorted(found - {()}, key=lambda failed: (len(failed), failed))

    def _failures(self) -> list[Failed]:
        found = self.scenarios()
        return found if self._only is None else [failed for failed in found if failed == self._only.failed]

    def of(self, kind: Kind, actor: str) -> Iterator[Step]:
        """Every violation in which this workload, pipeline, dataset or export takes part."""
        for variant in self._view.all(kind).get(actor, ()):
            match variant:
                case Workload():
                    yield from self._workload(variant)
                case Pipeline():
                    yield from self._pipeline(variant)
                case Dataset():
                    yield from self._dataset(variant)
                case Export():
                    yield from self._export(variant)
                case _:
                    pass

    # Work

    def _workload(self, work: Workload) -> Iterator[Step]:
        """Without failures first. A failure takes hubs and links away, which adds nothing, and starts fail-overs.

        So only places that are reached by a fail-over are looked at again.
        """
        start = self._start(work)
        usual = self._spread(start, ())
        for cluster in self._clusters:
            direct = cluster.id in work.clusters if work.clusters else cluster.hub in start
            if direct or cluster.hub in usual:
                kind = StepKind.PLACEMENT if direct else StepKind.SPILL_OVER
                yield from self._placed(kind, work, cluster, ())
        for failed in self._failures():
            reached = self._spread(start, failed) - usual
            for cluster in self._clusters:
                direct = cluster.id in work.clusters if work.clusters else cluster.hub in start
                if not direct and cluster.hub in reached:
                    yield from self._placed(StepKind.SPILL_OVER, work, cluster, failed)

    def _start(self, work: Workload) -> set[str]:
        if work.clusters:
            variants = (found for key in work.clusters for found in self._view.all(Kind.CLUSTER).get(key, ()))
            return {cluster.hub for cluster in variants if isinstance(cluster, Cluster)}
        return set(work.hubs or self._hubs)

    def _spread(self, start: set[str], failed: Failed) -> set[str]:
        """The hubs that spill-over leads to from these, itself not counted unless it is led back to."""
        at, reached = set(start), set[str]()
        growing = True
        while growing:
            more = {
                spill.target
                for spill in self._spills
                if spill.source in at
                and spill.target not in failed
                and spill.only_on_failure == (spill.source in failed)
            }
            growing = not more <= reached
            reached |= more
            at |= more
        return reached

    def _placed(self, kind: StepKind, work: Workload, cluster: Cluster, failed: Failed) -> Iterator[Step]:
        """Clusters that declare the same and stand at the same places are alike, and so is work that reads the same."""
        places = self._view.places(cluster)
        alike = (work.reads, work.countries, cluster.hub, cluster.countries, cluster.frameworks, places, failed)
        found = self._alike.get(alike)
        if found is None:
            found = self._alike[alike] = tuple(self._wrong_there(work, cluster, places, failed))
        for step in found:
            named = kind if step.kind is StepKind.PLACEMENT else step.kind
            yield replace(step, kind=named, actor=work.id, cluster=cluster.id)

    def _wrong_there(self, work: Workload, cluster: Cluster, places: Names, failed: Failed) -> Iterator[Step]:
        declared = self._view.declared_sites(cluster)
        if work.countries is not None and not any(site.country in work.countries for site in declared):
            return
        if not self._admitted(work.reads, declared):
            return
        for hub in places:
            if hub in failed or self._view.is_silent(hub):
                continue
            here = Step(
                kind=StepKind.PLACEMENT, actor_kind=Kind.WORKLOAD, actor=work.id, data="", hub=hub, failed=failed
            )
            sites = self._view.sites(hub) or (None,)
            if work.countries is not None and any(not s or s.country not in work.countries for s in sites):
                yield here
            for data in work.reads:
                if any(not self._may_process(self._view.strictest(data), site) for site in sites):
                    yield replace(here, data=data)
                yield from self._loaded(replace(here, kind=StepKind.ROUTE, data=data))

    def _admitted(self, reads: Names, declared: tuple[Site, ...]) -> bool:
        return bool(declared) and all(
            any(self._may_process(self._view.loosest(data), site) for site in declared) for data in reads
        )

    def _loaded(self, step: Step) -> Iterator[Step]:
        loose, strict = self._view.loosest(step.data), self._view.strictest(step.data)
        for source in self._sources(step.data):
            if source != step.hub and source not in step.failed:
                for link in self._crossings.wrong_links(loose, strict, source, step.hub, step.failed):
                    yield replace(step, source=source, link=link)

    # Pipelines

    def _pipeline(self, pipeline: Pipeline) -> Iterator[Step]:
        if not pipeline.reads or any(self._view.is_gone(data) for data in pipeline.reads):
            return  # there is no stream whose tag could be broken
        loose = _stream([self._view.loosest(data) for data in pipeline.reads])
        strict = _stream([self._view.strictest(data) for data in pipeline.reads])
        hubs: list[set[str]] = []
        for stage in pipeline.stages:
            at: set[str] = set()
            for cluster in self._clusters:
                if stage.clusters and cluster.id not in stage.clusters:
                    continue
                if not self._admitted(pipeline.reads, self._view.declared_sites(cluster)):
                    continue
                at.update(self._view.places(cluster))
                for hub in self._view.places(cluster):
                    here = _of_pipeline(StepKind.PLACEMENT, pipeline, hub)
                    for data in pipeline.reads:
                        wrong = (not self._may_process(self._view.strictest(data), site) for site in self._seen(hub))
                        if any(wrong):
                            yield replace(here, data=data, cluster=cluster.id)
            hubs.append(at)
        for before, after in pairwise(hubs):
            for source, target in product(sorted(before), sorted(after)):
                yield from self._moved(pipeline, loose, strict, Flow(source=source, target=target))
        for flow in pipeline.flows:
            yield from self._moved(pipeline, loose, strict, flow)
            if any(not passes(explain_arrival(strict, site)) for site in self._seen(flow.target)):
                yield replace(_of_pipeline(StepKind.EDGE, pipeline, flow.target), source=flow.source)

    def _moved(self, pipeline: Pipeline, loose: Tag | None, strict: Tag | None, flow: Flow) -> Iterator[Step]:
        here = _of_pipeline(StepKind.EDGE, pipeline, flow.target)
        wrong = self._crossings.wrong_links(loose, strict, flow.source, flow.target, ())
        for link in dict.fromkeys((*wrong, *self._crossings.wrong_pinned(strict, flow))):
            yield replace(here, source=flow.source, link=link)

    # Copies and exports

    def _dataset(self, dataset: Dataset) -> Iterator[Step]:
        loose, strict = self._view.loosest(dataset.id), self._view.strictest(dataset.id)
        here = Step(kind=StepKind.REPLICA, actor_kind=Kind.DATASET, actor=dataset.id, data=dataset.id, hub="")
        for hub in dataset.hubs:
            if any(not passes(explain_rest(strict, site)) for site in self._seen(hub)):
                yield replace(here, hub=hub)
        flows = [*dataset.flows, *(Flow(source=dataset.hubs[0], target=hub) for hub in dataset.hubs[1:])]
        for flow in flows:
            forbidden = any(not passes(explain_arrival(strict, site)) for site in self._seen(flow.target))
            if forbidden and flow.target not in dataset.hubs:
                yield replace(here, hub=flow.target, source=flow.source)
            wrong = self._crossings.wrong_links(loose, strict, flow.source, flow.target, ())
            for link in dict.fromkeys((*wrong, *self._crossings.wrong_pinned(strict, flow))):
                yield replace(here, kind=StepKind.ROUTE, hub=flow.target, source=flow.source, link=link)
        for failed in self._failures():
            if not set(failed) & set(dataset.hubs):
                continue
            for spare in dataset.spares:
                if spare in failed:
                    continue
                if any(not passes(explain_rest(strict, site)) for site in self._seen(spare)):
                    yield replace(here, hub=spare, failed=failed)
                for source in dataset.hubs:
                    if source not in failed and source != spare:
                        for link in self._crossings.wrong_links(loose, strict, source, spare, failed):
                            yield replace(here, kind=StepKind.ROUTE, hub=spare, source=source, link=link, failed=failed)

    def _export(self, export: Export) -> Iterator[Step]:
        for data in export.data:
            if self._view.is_gone(data):
                continue
            loose, strict = self._view.loosest(data), self._view.strictest(data)
            here = Step(
                kind=StepKind.EXPORT,
                actor_kind=Kind.EXPORT,
                actor=export.id,
                data=data,
                hub=export.target or "",
                source=export.source,
            )
            if export.target is None:
                yield here
                continue
            at_home = export.source == export.target
            if any(not passes(explain_view(strict, site, at_home=at_home)) for site in self._seen(export.target)):
                yield here
            for link in self._crossings.wrong_links(loose, strict, export.source, export.target, ()):
                yield replace(here, kind=StepKind.ROUTE, link=link)

    def _seen(self, hub: str) -> tuple[Site | None, ...]:
        """The true sites to judge by: None is a hub that nobody knows."""
        return () if self._view.is_silent(hub) else self._view.sites(hub) or (None,)

    def _may_process(self, tag: Tag | None, site: Site | None) -> bool:
        if tag is None or site is None:
            return False
        key = (tag, site.country, site.frameworks, site.encrypts_at_rest, site.keys_in)
        found = self._verdicts.get(key)
        if found is None:
            found = self._verdicts[key] = passes(explain_process(tag, site))
        return found

    def _sources(self, data: str) -> Names:
        variants = self._view.all(Kind.DATASET).get(data, ())
        return tuple(dict.fromkeys(hub for found in variants if isinstance(found, Dataset) for hub in found.hubs))


def _stream(tags: list[Tag | None]) -> Tag | None:
    """The tag of what is derived from all of them; None if one of them is not known, or if nothing is read."""
    known = [tag for tag in tags if tag is not None]
    return meet(known) if known and len(known) == len(tags) else None


def _of_pipeline(kind: StepKind, pipeline: Pipeline, hub: str) -> Step:
    """The stream is told by the first thing that goes into it."""
    return Step(kind=kind, actor_kind=Kind.PIPELINE, actor=pipeline.id, data=pipeline.reads[0], hub=hub)
