"""Which steps can there be, and when is each of them a violation? `steps`, once more, as formulas."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product

from harch.sovereignty.proof.conditions import Conditions
from harch.sovereignty.proof.formulas import Formulas
from harch.sovereignty.proof.model import Dataset, Export, Kind, Names, Pipeline, Workload
from harch.sovereignty.proof.rule_formulas import Formula

Case = tuple[Formula, tuple[str, ...]]  # when it happens, and what: kind, actor, data, hub, cluster, source, link


class Questions:
    """What can happen, and when."""

    def __init__(self, formulas: Formulas, actor: tuple[Kind, str] | None) -> None:
        self.formulas = formulas
        self._conditions = Conditions(formulas)
        self._z3 = formulas.z3
        self._actor = actor

    def cases(self) -> Iterator[Case]:
        for kind in (Kind.WORKLOAD, Kind.PIPELINE, Kind.DATASET, Kind.EXPORT):
            for when, actor in self.formulas.all(kind):
                if self._actor is not None and self._actor != (kind, actor.id):
                    continue
                match actor:
                    case Workload():
                        found = self._workload(actor)
                    case Pipeline():
                        found = self._pipeline(actor)
                    case Dataset():
                        found = self._dataset(actor)
                    case Export():
                        found = self._export(actor)
                    case _:
                        continue
                for condition, what in found:
                    yield self._z3.And(when, condition), what

    def _workload(self, work: Workload) -> Iterator[Case]:
        z3, f = self._z3, self.formulas
        anywhere = {"hubs", "clusters"} & set(work.unknown)
        clusters: Names = () if anywhere else work.clusters
        hubs = () if anywhere else work.hubs
        readings = [(id,) for id in sorted(f.book.data_known)] if "reads" in work.unknown else [work.reads]
        start = self._conditions.start(clusters, hubs)
        for number, (there, cluster) in enumerate(self._conditions.clusters):
            elsewhere = start.get(cluster.hub, z3.BoolVal(False))
            direct = z3.BoolVal(cluster.id in clusters) if clusters else elsewhere
            reached = z3.Or(direct, self._conditions.spilled(start, cluster.hub))
            declared = f.declared(cluster)
            resident = z3.BoolVal(True)
            if work.countries is not None:
                resident = z3.Or([declared["country"][code] for code in work.countries])
            for reads in readings:
                admitted = z3.And(there, reached, resident, declared["there"], self._conditions.admits(reads, number))
                for stands, hub in f.standing(cluster):
                    place = f.place(hub)
                    here = z3.And(admitted, stands, z3.Not(f.failed(hub)))
                    is_there = place["there"] if hub in f.book.hubs_known else z3.BoolVal(True)
                    if work.countries is not None:
                        at_home = z3.Or([place["country"][code] for code in work.countries])
                        yield z3.And(here, is_there, z3.Not(at_home)), ("placement", work.id, "", hub, cluster.id)
                    for data in reads:
                        wrong = self._conditions.forbidden(f.rule(data, truly=True), ("process",), hub)
                        yield z3.And(here, wrong), ("placement", work.id, data, hub, cluster.id)
                        for condition, source, link in self._loaded(data, hub):
                            what = ("route", work.id, data, hub, cluster.id, source, link)
                            yield z3.And(here, is_there, condition), what

    def _loaded(self, data: str, hub: str) -> Iterator[tuple[Formula, str, str]]:
        f, z3 = self.formulas, self._z3
        read, true = f.rule(data, truly=False), f.rule(data, truly=True)
        for when, dataset in f.variants(Kind.DATASET, data):
            if isinstance(dataset, Dataset):
                sources = sorted(f.book.hubs_known) if "hubs" in dataset.unknown else dataset.hubs
                for source in sources:
                    for wrong, link in self._conditions.wrong_ways(read, true, source, hub):
                        yield z3.And(when, z3.Not(f.failed(source)), wrong), source, link

    def _pipeline(self, pipeline: Pipeline) -> Iterator[Case]:
        f, z3 = self.formulas, self._z3
        readings = [(id,) for id in sorted(f.book.data_known)] if "reads" in pipeline.unknown else [pipeline.reads]
        for reads in readings:
            if not reads:
                continue
            is_there = z3.And([self._conditions.is_there(data) for data in reads])
            read, true = self._conditions.stream(reads, truly=False), self._conditions.stream(reads, truly=True)
            stages: list[list[tuple[Formula, str]]] = []
            for stage in pipeline.stages:
                at = []
                for number, (there, cluster) in enumerate(self._conditions.clusters):
                    if stage.clusters and cluster.id not in stage.clusters:
                        continue
                    admitted = z3.And(
                        is_there, there, f.declared(cluster)["there"], self._conditions.admits(reads, number)
                    )
                    for stands, hub in f.standing(cluster):
                        at.append((z3.And(admitted, stands), hub))
                        for data in reads:
                            wrong = self._conditions.forbidden(f.rule(data, truly=True), ("process",), hub)
                            yield z3.And(admitted, stands, wrong), ("placement", pipeline.id, data, hub, cluster.id)
                stages.append(at)
            for before, after in pairwise(stages):
                for (one, source), (other, target) in product(before, after):
                    for wrong, link in self._conditions.wrong_ways(read, true, source, target):
                        edge = ("pipeline_edge", pipeline.id, reads[0], target, "", source, link)
                        yield z3.And(one, other, wrong), edge
            for flow in pipeline.flows:
                arrives = self._conditions.forbidden(true, ("process", "rest"), flow.target)
                what = ("pipeline_edge", pipeline.id, reads[0], flow.target, "", flow.source)
                yield z3.And(is_there, arrives), what
                for wrong, link in self._conditions.wrong_flow(read, true, flow.source, flow.target, flow.via):
                    yield z3.And(is_there, wrong), (*what, link)

    def _dataset(self, dataset: Dataset) -> Iterator[Case]:
        f, z3 = self.formulas, self._z3
        key = dataset.id
        read, true = f.rule(key, truly=False), f.rule(key, truly=True)
        hubs = tuple(sorted(f.book.hubs_known)) if "hubs" in dataset.unknown else dataset.hubs
        for hub in hubs:
            yield self._conditions.forbidden(true, ("rest",), hub), ("replica", key, key, hub)
        moves = [(flow.source, flow.target, flow.via) for flow in dataset.flows]
        moves += [(hubs[0], hub, ()) for hub in hubs[1:]]
        for source, target, via in moves:
            if target not in hubs:
                yield (
                    self._conditions.forbidden(true, ("process", "rest"), target),
                    ("replica", key, key, target, "", source),
                )
            for wrong, link in self._conditions.wrong_flow(read, true, source, target, via):
                yield wrong, ("route", key, key, target, "", source, link)
        lost = z3.Or([f.failed(hub) for hub in hubs])
        for spare in dataset.spares:
            restored = z3.And(lost, z3.Not(f.failed(spare)))
            yield z3.And(restored, self._conditions.forbidden(true, ("rest",), spare)), ("replica", key, key, spare)
            for source in hubs:
                for wrong, link in self._conditions.wrong_ways(read, true, source, spare):
                    what = ("route", key, key, spare, "", source, link)
                    yield z3.And(restored, z3.Not(f.failed(source)), wrong), what

    def _export(self, export: Export) -> Iterator[Case]:
        f, z3 = self.formulas, self._z3
        for data in export.data:
            is_there = self._conditions.is_there(data)
            what = ("telemetry_export", export.id, data, export.target or "", "", export.source)
            if export.target is None or "target" in export.unknown:
                yield is_there, what
                continue
            read, true = f.rule(data, truly=False), f.rule(data, truly=True)
            place = f.place(export.target)
            allowed = z3.Or([z3.And(place["country"][code], true["process"][code]) for code in f.countries])
            shown = z3.And(true["tagged"], place["there"], allowed, f.lawful(true, place))
            if export.source != export.target:
                shown = z3.And(shown, z3.Not(true["restricted"]))
            known = place["there"] if export.target in f.book.hubs_known else z3.BoolVal(True)
            yield z3.And(is_there, known, z3.Not(shown)), what
            for wrong, link in self._conditions.wrong_ways(read, true, export.source, export.target):
                yield z3.And(is_there, wrong), ("route", *what[1:], link)
