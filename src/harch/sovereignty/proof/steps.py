"""What can happen in a view, and is it a violation?

Placements, overflow, routes, replicas, edges, exports, and every link that a transfer can take.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import combinations, pairwise, product

from msgspec import Struct
from msgspec.structs import replace

from harch.sovereignty.geography import LegalSite
from harch.sovereignty.proof.model import (
    ClusterResource,
    Dataset,
    Export,
    FlowResource,
    HubResource,
    LinkResource,
    Names,
    Overflow,
    PipelineResource,
    ResourceKind,
    WorkloadResource,
)
from harch.sovereignty.proof.view import WorldView
from harch.sovereignty.rules import explain_arrival, explain_process, explain_rest, explain_view, may_take, passes
from harch.sovereignty.tags import Tag, meet

Failed = tuple[str, ...]


class ProofStepKind(StrEnum):
    PLACEMENT = "placement"
    OVERFLOW = "spill_over"
    ROUTE = "route"
    REPLICA = "replica"
    EDGE = "pipeline_edge"
    EXPORT = "telemetry_export"


class ProofStep(Struct, frozen=True, kw_only=True):
    """One thing that can happen and must not. `data` is empty if the work's own residency is broken."""

    kind: ProofStepKind
    actor_kind: ResourceKind
    actor: str
    data: str
    hub: str  # where it happens or arrives
    cluster: str = ""
    source: str = ""
    link: str = ""
    failed: Failed = ()

    @property
    def breach(self) -> tuple[str, ...]:
        """Steps of one breach differ only in who takes them; one of them is enough to tell."""
        return self.kind, self.data, self.hub, self.cluster, self.link


# Which links can a transfer take? Those that lie on a simple path between two hubs, in one pass over the graph.
#
# A link lies on a simple path from `source` to `target` exactly if it shares a biconnected block with a line drawn
# straight from one to the other: two lines of one block lie on a common circle, and a circle through the drawn line
# is a
# simple path without it. So every re-routing is covered without listing the paths, whose number grows exponentially.
#
# Failed links need no case of their own: a path in what is left is a path in the whole, so what no path of the whole
# may
# take is taken by no path of a part.


Line = tuple[str, str]


def lines_between(lines: Sequence[Line], source: str, target: str) -> set[int]:
    """The numbers of the lines that some simple path from `source` to `target` takes; none if they are one hub."""
    if source == target:
        return set()
    drawn = len(lines)
    beside: dict[str, list[tuple[str, int]]] = {}
    for number, (one, other) in enumerate((*lines, (source, target))):
        if one != other:
            beside.setdefault(one, []).append((other, number))
            beside.setdefault(other, []).append((one, number))
    return _block_of(drawn, beside, source) - {drawn}


def _block_of(wanted: int, beside: dict[str, list[tuple[str, int]]], root: str) -> set[int]:
    """Tarjan's blocks, without recursion; stops at the block that holds the line `wanted`."""
    depth = {root: 0}
    low = {root: 0}
    stack: list[int] = []  # lines that belong to no finished block yet
    way: list[tuple[str, int, int]] = [(root, -1, 0)]  # hub, the line taken to it, how many of its lines were seen
    while way:
        here, came_by, seen = way.pop()
        if seen < len(beside[here]):
            way.append((here, came_by, seen + 1))
            there, number = beside[here][seen]
            if number == came_by:
                continue
            if there not in depth:
                depth[there] = low[there] = len(way)
                stack.append(number)
                way.append((there, number, 0))
            elif depth[there] < depth[here]:
                stack.append(number)
                low[here] = min(low[here], depth[there])
        elif way:
            parent = way[-1][0]
            low[parent] = min(low[parent], low[here])
            if low[here] >= depth[parent]:  # nothing below reaches above the parent: a block ends here
                start = stack.index(came_by)
                block = set(stack[start:])
                del stack[start:]
                if wanted in block:
                    return block
    return set()


# Which links would data be let onto that it must not take? Planned ways, and flows that stay on theirs.


class Crossings:
    """The links of one view, judged by what they declare and by what they truly cross."""

    def __init__(self, view: WorldView) -> None:
        self._view = view
        self._links = [
            link for found in view.all(ResourceKind.LINK).values() for link in found if isinstance(link, LinkResource)
        ]
        self._known: dict[tuple[object, ...], Names] = {}

    def wrong_links(
        self, loose: Tag | None, strict: Tag | None, source: str, target: str, failed: tuple[str, ...]
    ) -> Names:
        """Links on some way there that gates let the data take and that the truth forbids."""
        if loose is None:
            return ()
        key = (loose, strict, source, target, failed)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._find(loose, strict, source, target, failed)
        return found

    def wrong_pinned(self, strict: Tag | None, flow: FlowResource) -> Names:
        """Links that a standing flow stays on and must not; none if one of them is gone: then it is planned anew."""
        variants = [[link for link in self._links if link.id == key] for key in flow.via]
        if not all(variants):
            return ()
        return tuple(dict.fromkeys(link.id for found in variants for link in found if self._is_wrong(strict, link)))

    def _find(self, loose: Tag, strict: Tag | None, source: str, target: str, failed: tuple[str, ...]) -> Names:
        down = set(failed)
        usable = [
            link
            for link in self._links
            if not down.intersection(link.ends)
            and any(may_take(loose, declared) for declared, _ in self._view.passages(link))
        ]
        wrong = {link.id for link in usable if self._is_wrong(strict, link)}
        if not wrong:
            return ()
        taken = lines_between([link.ends for link in usable], source, target)
        return tuple(sorted({usable[number].id for number in taken} & wrong))

    def _is_wrong(self, strict: Tag | None, link: LinkResource) -> bool:
        """True too if an end is not known: then nobody can say which countries it crosses."""
        if any(self._view.is_silent(end) for end in link.ends):
            return False
        passages = self._view.passages(link)
        return strict is None or not passages or any(not may_take(strict, true) for _, true in passages)


# What can happen in a view, and is it a violation? Placements, spill-overs, routes, replicas, edges, exports.
#
# *Choices* (a cluster for work, a way for a transfer) happen only if a gate lets them through on what it reads.
# *Orders*
# (a copy at a hub, a standing flow, an export) are written down as such and are judged outright: no credit is given
# to a
# gate that would stop them. Nor is one gate's refusal credited to another: work that a cluster admits is a placement,
# whether or not its data finds an allowed way there. Capacity is never credited either.


class StepChecker:
    """Finds the violations of a view. `only` limits it to what one step needs, to look at that alone."""

    def __init__(self, view: WorldView, only: ProofStep | None = None) -> None:
        self._view = view
        self._only = only
        self._verdicts: dict[tuple[object, ...], bool] = {}
        self._crossings = Crossings(view)
        self._alike: dict[tuple[object, ...], tuple[ProofStep, ...]] = {}
        self._clusters = [
            cluster
            for key, variants in view.all(ResourceKind.CLUSTER).items()
            if only is None or not only.cluster or key == only.cluster
            for cluster in variants
            if isinstance(cluster, ClusterResource)
        ]
        self._overflows = [
            s for found in view.all(ResourceKind.OVERFLOW).values() for s in found if isinstance(s, Overflow)
        ]
        self._hubs = [key for key, found in view.all(ResourceKind.HUB).items() if found]

    def scenarios(self) -> list[Failed]:
        """The hubs that are down: those that are, or none of them, and in each case at most one more."""
        down = tuple(
            key
            for key, found in self._view.all(ResourceKind.HUB).items()
            if any(isinstance(hub, HubResource) and hub.failed for hub in found)
        )
        found = {tuple(sorted({*base, *more})) for base in ((), down) for more in ((), *((hub,) for hub in self._hubs))}
        return sorted(found - {()}, key=lambda failed: (len(failed), failed))

    def _failures(self) -> list[Failed]:
        found = self.scenarios()
        return found if self._only is None else [failed for failed in found if failed == self._only.failed]

    def of(self, kind: ResourceKind, actor: str) -> Iterator[ProofStep]:
        """Every violation in which this workload, pipeline, dataset or export takes part."""
        for variant in self._view.all(kind).get(actor, ()):
            match variant:
                case WorkloadResource():
                    yield from self._workload(variant)
                case PipelineResource():
                    yield from self._pipeline(variant)
                case Dataset():
                    yield from self._dataset(variant)
                case Export():
                    yield from self._export(variant)
                case _:
                    pass

    # Work

    def _workload(self, work: WorkloadResource) -> Iterator[ProofStep]:
        """Without failures first. A failure takes hubs and links away, which adds nothing, and starts fail-overs.

        So only places that are reached by a fail-over are looked at again.
        """
        start = self._start(work)
        usual = self._spread(start, ())
        for cluster in self._clusters:
            direct = self._is_direct(work, cluster, start)
            if direct or cluster.hub in usual:
                kind = ProofStepKind.PLACEMENT if direct else ProofStepKind.OVERFLOW
                yield from self._placed(kind, work, cluster, ())
        for failed in self._failures():
            reached = self._spread(start, failed) - usual
            for cluster in self._clusters:
                if cluster.hub in reached and not self._is_direct(work, cluster, start):
                    yield from self._placed(ProofStepKind.OVERFLOW, work, cluster, failed)

    def _start(self, work: WorkloadResource) -> set[str]:
        if work.clusters:
            variants = (found for key in work.clusters for found in self._view.all(ResourceKind.CLUSTER).get(key, ()))
            return {cluster.hub for cluster in variants if isinstance(cluster, ClusterResource)}
        return set(work.hubs or self._hubs)

    def _is_direct(self, work: WorkloadResource, cluster: ClusterResource, start: set[str]) -> bool:
        """Work that may be put anywhere may be put on a cluster of which nobody knows where it is."""
        if work.clusters:
            return cluster.id in work.clusters
        return cluster.hub in start or (not work.hubs and cluster.hub not in self._view.book.hubs_known)

    def _spread(self, start: set[str], failed: Failed) -> set[str]:
        """The hubs that spill-over leads to from these, itself not counted unless it is led back to."""
        at, reached = set(start), set[str]()
        growing = True
        while growing:
            more = {
                overflow.target
                for overflow in self._overflows
                if overflow.source in at
                and overflow.target not in failed
                and overflow.only_on_failure == (overflow.source in failed)
            }
            growing = not more <= reached
            reached |= more
            at |= more
        return reached

    def _placed(
        self, kind: ProofStepKind, work: WorkloadResource, cluster: ClusterResource, failed: Failed
    ) -> Iterator[ProofStep]:
        """Clusters that declare the same and stand at the same places are alike, and so is work that reads the same."""
        places = self._view.places(cluster)
        alike = (work.reads, work.countries, cluster.hub, cluster.countries, cluster.frameworks, places, failed)
        found = self._alike.get(alike)
        if found is None:
            found = self._alike[alike] = tuple(self._wrong_there(work, cluster, places, failed))
        for step in found:
            named = kind if step.kind is ProofStepKind.PLACEMENT else step.kind
            yield replace(step, kind=named, actor=work.id, cluster=cluster.id)

    def _wrong_there(
        self, work: WorkloadResource, cluster: ClusterResource, places: Names, failed: Failed
    ) -> Iterator[ProofStep]:
        declared = self._view.declared_sites(cluster)
        if work.countries is not None and not any(site.country in work.countries for site in declared):
            return
        if not self._admitted(work.reads, declared):
            return
        for hub in places:
            if hub in failed or self._view.is_silent(hub):
                continue
            here = ProofStep(
                kind=ProofStepKind.PLACEMENT,
                actor_kind=ResourceKind.WORKLOAD,
                actor=work.id,
                data="",
                hub=hub,
                failed=failed,
            )
            sites = self._view.sites(hub) or (None,)
            if work.countries is not None and any(not s or s.country not in work.countries for s in sites):
                yield here
            for data in work.reads:
                if any(not self._may_process(self._view.strictest(data), site) for site in sites):
                    yield replace(here, data=data)
                yield from self._loaded(replace(here, kind=ProofStepKind.ROUTE, data=data))

    def _admitted(self, reads: Names, declared: tuple[LegalSite, ...]) -> bool:
        return bool(declared) and all(
            any(self._may_process(self._view.loosest(data), site) for site in declared) for data in reads
        )

    def _loaded(self, step: ProofStep) -> Iterator[ProofStep]:
        loose, strict = self._view.loosest(step.data), self._view.strictest(step.data)
        for source in self._sources(step.data):
            if source != step.hub and source not in step.failed:
                for link in self._crossings.wrong_links(loose, strict, source, step.hub, step.failed):
                    yield replace(step, source=source, link=link)

    # Pipelines

    def _pipeline(self, pipeline: PipelineResource) -> Iterator[ProofStep]:
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
                    here = _of_pipeline(ProofStepKind.PLACEMENT, pipeline, hub)
                    for data in pipeline.reads:
                        wrong = (not self._may_process(self._view.strictest(data), site) for site in self._seen(hub))
                        if any(wrong):
                            yield replace(here, data=data, cluster=cluster.id)
            hubs.append(at)
        for before, after in pairwise(hubs):
            for source, target in product(sorted(before), sorted(after)):
                yield from self._moved(pipeline, loose, strict, FlowResource(source=source, target=target))
        for flow in pipeline.flows:
            yield from self._moved(pipeline, loose, strict, flow)
            if any(not passes(explain_arrival(strict, site)) for site in self._seen(flow.target)):
                yield replace(_of_pipeline(ProofStepKind.EDGE, pipeline, flow.target), source=flow.source)

    def _moved(
        self, pipeline: PipelineResource, loose: Tag | None, strict: Tag | None, flow: FlowResource
    ) -> Iterator[ProofStep]:
        here = _of_pipeline(ProofStepKind.EDGE, pipeline, flow.target)
        wrong = self._crossings.wrong_links(loose, strict, flow.source, flow.target, ())
        for link in dict.fromkeys((*wrong, *self._crossings.wrong_pinned(strict, flow))):
            yield replace(here, source=flow.source, link=link)

    # Copies and exports

    def _dataset(self, dataset: Dataset) -> Iterator[ProofStep]:
        loose, strict = self._view.loosest(dataset.id), self._view.strictest(dataset.id)
        here = ProofStep(
            kind=ProofStepKind.REPLICA, actor_kind=ResourceKind.DATASET, actor=dataset.id, data=dataset.id, hub=""
        )
        for hub in dataset.hubs:
            if any(not passes(explain_rest(strict, site)) for site in self._seen(hub)):
                yield replace(here, hub=hub)
        # The first copy is where the others come from; where copies are is not known, any may come from any.
        copies = (
            combinations(dataset.hubs, 2) if "hubs" in dataset.unknown else product(dataset.hubs[:1], dataset.hubs[1:])
        )
        flows = [*dataset.flows, *(FlowResource(source=source, target=target) for source, target in copies)]
        for flow in flows:
            forbidden = any(not passes(explain_arrival(strict, site)) for site in self._seen(flow.target))
            if forbidden and flow.target not in dataset.hubs:
                yield replace(here, hub=flow.target, source=flow.source)
            wrong = self._crossings.wrong_links(loose, strict, flow.source, flow.target, ())
            for link in dict.fromkeys((*wrong, *self._crossings.wrong_pinned(strict, flow))):
                yield replace(here, kind=ProofStepKind.ROUTE, hub=flow.target, source=flow.source, link=link)
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
                            yield replace(
                                here, kind=ProofStepKind.ROUTE, hub=spare, source=source, link=link, failed=failed
                            )

    def _export(self, export: Export) -> Iterator[ProofStep]:
        for data in export.data:
            if self._view.is_gone(data):
                continue
            loose, strict = self._view.loosest(data), self._view.strictest(data)
            here = ProofStep(
                kind=ProofStepKind.EXPORT,
                actor_kind=ResourceKind.EXPORT,
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
                yield replace(here, kind=ProofStepKind.ROUTE, link=link)

    def _seen(self, hub: str) -> tuple[LegalSite | None, ...]:
        """The true sites to judge by: None is a hub that nobody knows."""
        return () if self._view.is_silent(hub) else self._view.sites(hub) or (None,)

    def _may_process(self, tag: Tag | None, site: LegalSite | None) -> bool:
        if tag is None or site is None:
            return False
        key = (tag, site.country, site.frameworks, site.encrypts_at_rest, site.keys_in)
        found = self._verdicts.get(key)
        if found is None:
            found = self._verdicts[key] = passes(explain_process(tag, site))
        return found

    def _sources(self, data: str) -> Names:
        variants = self._view.all(ResourceKind.DATASET).get(data, ())
        return tuple(dict.fromkeys(hub for found in variants if isinstance(found, Dataset) for hub in found.hubs))


def _stream(tags: list[Tag | None]) -> Tag | None:
    """The tag of what is derived from all of them; None if one of them is not known, or if nothing is read."""
    known = [tag for tag in tags if tag is not None]
    return meet(known) if known and len(known) == len(tags) else None


def _of_pipeline(kind: ProofStepKind, pipeline: PipelineResource, hub: str) -> ProofStep:
    """The stream is named by the first thing that goes into it."""
    return ProofStep(kind=kind, actor_kind=ResourceKind.PIPELINE, actor=pipeline.id, data=pipeline.reads[0], hub=hub)
