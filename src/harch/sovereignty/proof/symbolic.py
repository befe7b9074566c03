"""Is there any value of what is not known under which a tag breaks?

Steps and gates as conditions for a solver, z3, which is imported only when it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import combinations, pairwise, product
from types import ModuleType
from typing import Any

from msgspec import Struct

from harch.sovereignty.proof.formulas import Formula, Formulas, Rule
from harch.sovereignty.proof.model import (
    ChangeTracks,
    Choice,
    ClusterResource,
    Dataset,
    Export,
    LinkResource,
    Names,
    Overflow,
    PipelineResource,
    ResourceKind,
    WorkloadResource,
)

WAYS_MAX = 2_000  # simple paths between two hubs


class TooManyWaysError(Exception):
    """The graph has more simple paths than are listed here."""


class Conditions:
    """Conditions over one world of formulas. Each is built once: building is what takes the time, not solving."""

    def __init__(self, formulas: Formulas) -> None:
        self.formulas = formulas
        self._z3 = formulas.z3
        self._links = [(when, link) for when, link in formulas.all(ResourceKind.LINK) if isinstance(link, LinkResource)]
        self.clusters = [
            (when, one) for when, one in formulas.all(ResourceKind.CLUSTER) if isinstance(one, ClusterResource)
        ]
        self._overflows = [
            (when, one) for when, one in formulas.all(ResourceKind.OVERFLOW) if isinstance(one, Overflow)
        ]
        self._admission: dict[tuple[Names, int], Formula] = {}
        self._streams: dict[tuple[Names, bool], Rule] = {}
        self._wrong: dict[tuple[int, int, str, str], list[tuple[Formula, str]]] = {}
        self._takes: dict[tuple[int, int, bool], Formula] = {}

    def start(self, clusters: Names, hubs: Names) -> dict[str, Formula]:
        f, z3 = self.formulas, self._z3
        if not clusters:
            if hubs:
                return {hub: z3.BoolVal(True) for hub in hubs}
            return {hub: f.place(hub)["there"] for hub in f.book.hubs_known}
        start: dict[str, Formula] = {}
        for when, cluster in self.clusters:
            if cluster.id in clusters:
                start[cluster.hub] = z3.Or(start.get(cluster.hub, z3.BoolVal(False)), when)
        return start

    def spilled(self, start: dict[str, Formula], target: str) -> Formula:
        """Whether some chain of spill-overs leads there; chains without repeats are enough."""
        f, z3 = self.formulas, self._z3

        def lead_to(hub: str, seen: tuple[str, ...]) -> list[Formula]:
            found = []
            for when, overflow in self._overflows:
                if overflow.target != hub:
                    continue
                fails = f.failed(overflow.source)
                active = z3.And(when, fails if overflow.only_on_failure else z3.Not(fails), z3.Not(f.failed(hub)))
                found.append(z3.And(active, start.get(overflow.source, z3.BoolVal(False))))
                if overflow.source not in seen:
                    found += [z3.And(active, way) for way in lead_to(overflow.source, (*seen, overflow.source))]
            return found

        return z3.Or(lead_to(target, (target,)))

    def admits(self, reads: Names, number: int) -> Formula:
        key = (reads, number)
        if key not in self._admission:
            f, (_, cluster) = self.formulas, self.clusters[number]
            declared = f.declared(cluster)
            rules = [f.permits(f.rule(data, truly=False), ("process",), declared) for data in reads]
            says = self._z3.Or(list(declared["country"].values())) if cluster.countries is not None else True
            self._admission[key] = self._z3.And(says, *rules)
        return self._admission[key]

    def stream(self, reads: Names, *, truly: bool) -> Rule:
        """The rule of what is derived from all of them."""
        if len(reads) == 1:
            return self.formulas.rule(reads[0], truly=truly)
        if (reads, truly) not in self._streams:
            first = self.formulas.rule(reads[0], truly=truly)
            self._streams[reads, truly] = self.formulas.both(first, self.stream(reads[1:], truly=truly))
        return self._streams[reads, truly]

    def is_there(self, data: str) -> Formula:
        if data not in self.formulas.book.data_known:
            return self._z3.BoolVal(True)
        return self._z3.Or([when for when, _ in self.formulas.variants(ResourceKind.DATASET, data)])

    def forbidden(self, rule: Rule, words: Names, hub: str) -> Formula:
        f = self.formulas
        wrong = self._z3.Not(f.permits(rule, words, f.place(hub)))
        return self._z3.And(f.place(hub)["there"], wrong) if hub in f.book.hubs_known else self._z3.BoolVal(True)

    def wrong_flow(self, read: Rule, true: Rule, source: str, target: str, via: Names) -> Iterator[tuple[Formula, str]]:
        """When a standing flow takes a wrong link: planned anew, or on the links that it was set up on."""
        z3, f = self._z3, self.formulas
        yield from self.wrong_ways(read, true, source, target)
        is_whole = z3.And([z3.Or([when for when, link in self._links if link.id == key]) for key in via])
        for number, (when, link) in enumerate(self._links):
            if link.id in via:
                ends = [f.place(end)["there"] for end in link.ends if end in f.book.hubs_known]
                yield z3.And(is_whole, when, *ends, z3.Not(self._may_take(true, number, truly=True))), link.id

    def wrong_ways(self, read: Rule, true: Rule, source: str, target: str) -> list[tuple[Formula, str]]:
        """When a planned way takes a wrong link, for each such link."""
        key = (id(read), id(true), source, target)  # rules are kept as long as the formulas, so their ids are theirs
        if key not in self._wrong:
            z3 = self._z3
            ways: dict[int, list[Formula]] = {}
            for way in self._ways(source, target):
                taken = z3.And([self._usable(read, number) for number in way])
                for number in way:
                    ways.setdefault(number, []).append(taken)
            self._wrong[key] = [
                (z3.And(z3.Or(taken), z3.Not(self._may_take(true, number, truly=True))), self._links[number][1].id)
                for number, taken in ways.items()
            ]
        return self._wrong[key]

    def _usable(self, read: Rule, number: int) -> Formula:
        f, (when, link) = self.formulas, self._links[number]
        up = (self._z3.Not(f.failed(end)) for end in link.ends)
        return self._z3.And(when, *up, self._may_take(read, number, truly=False))

    def _may_take(self, rule: Rule, number: int, *, truly: bool) -> Formula:
        key = (id(rule), number, truly)
        if key not in self._takes:
            self._takes[key] = self.formulas.takes(rule, self._links[number][1], number, truly=truly)
        return self._takes[key]

    def _ways(self, source: str, target: str) -> Iterator[tuple[int, ...]]:
        if source == target:
            return
        found = 0
        waiting: list[tuple[str, tuple[str, ...], tuple[int, ...]]] = [(source, (source,), ())]
        while waiting:
            here, seen, way = waiting.pop()
            if here == target:
                found += 1
                if found > WAYS_MAX:
                    raise TooManyWaysError
                yield way
                continue
            for number, (_, link) in enumerate(self._links):
                if here in link.ends:
                    there = link.ends[link.ends[0] == here]
                    if there not in seen:
                        waiting.append((there, (*seen, there), (*way, number)))


# Which steps can there be, and when is each of them a violation? `steps`, once more, as formulas.


Case = tuple[Formula, tuple[str, ...]]  # when it happens, and what: kind, actor, data, hub, cluster, source, link


class SolverQuestions:
    """What can happen, and when."""

    def __init__(self, formulas: Formulas, actor: tuple[ResourceKind, str] | None) -> None:
        self.formulas = formulas
        self._conditions = Conditions(formulas)
        self._z3 = formulas.z3
        self._actor = actor

    def cases(self) -> Iterator[Case]:
        for kind in (ResourceKind.WORKLOAD, ResourceKind.PIPELINE, ResourceKind.DATASET, ResourceKind.EXPORT):
            for when, actor in self.formulas.all(kind):
                if self._actor is not None and self._actor != (kind, actor.id):
                    continue
                match actor:
                    case WorkloadResource():
                        found = self._workload(actor)
                    case PipelineResource():
                        found = self._pipeline(actor)
                    case Dataset():
                        found = self._dataset(actor)
                    case Export():
                        found = self._export(actor)
                    case _:
                        continue
                for condition, what in found:
                    yield self._z3.And(when, condition), what

    def _workload(self, work: WorkloadResource) -> Iterator[Case]:
        z3, f = self._z3, self.formulas
        anywhere = {"hubs", "clusters"} & set(work.unknown)
        clusters: Names = () if anywhere else work.clusters
        hubs = () if anywhere else work.hubs
        readings = [(id,) for id in sorted(f.book.data_known)] if "reads" in work.unknown else [work.reads]
        start = self._conditions.start(clusters, hubs)
        for number, (there, cluster) in enumerate(self._conditions.clusters):
            is_lost = not hubs and cluster.hub not in f.book.hubs_known  # anywhere is where nobody knows, too
            elsewhere = z3.BoolVal(True) if is_lost else start.get(cluster.hub, z3.BoolVal(False))
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
        for when, dataset in f.variants(ResourceKind.DATASET, data):
            if isinstance(dataset, Dataset):
                sources = sorted(f.book.hubs_known) if "hubs" in dataset.unknown else dataset.hubs
                for source in sources:
                    for wrong, link in self._conditions.wrong_ways(read, true, source, hub):
                        yield z3.And(when, z3.Not(f.failed(source)), wrong), source, link

    def _pipeline(self, pipeline: PipelineResource) -> Iterator[Case]:
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
        copies = combinations(hubs, 2) if "hubs" in dataset.unknown else product(hubs[:1], hubs[1:])
        moves += [(source, target, ()) for source, target in copies]
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
            permitted = z3.And(true["tagged"], place["there"], allowed, f.lawful(true, place))
            if export.source != export.target:
                permitted = z3.And(permitted, z3.Not(true["restricted"]))
            known = place["there"] if export.target in f.book.hubs_known else z3.BoolVal(True)
            yield z3.And(is_there, known, z3.Not(permitted)), what
            for wrong, link in self._conditions.wrong_ways(read, true, export.source, export.target):
                yield z3.And(is_there, wrong), ("route", *what[1:], link)


# Is there any value of what is not known under which a tag breaks? Asked of a solver, z3, for worlds with unknowns.
#
# Every step of `steps` is written as a formula over choices, failures and unknown values; the solver looks for one that
# can be true. Ways are listed one by one here, up to a limit. Whatever the solver cannot decide is no proof.


TIMEOUT_MS = 30_000


class SolverReply(StrEnum):
    NEVER = "never"
    POSSIBLE = "possible"
    UNKNOWN = "unknown"


class SolverAnswer(Struct, frozen=True):
    """`values`: what would have to be the case of the unknown values, as `what=option` that are true."""

    reply: SolverReply
    event: tuple[str, ...] = ()
    choice: Choice = {}
    values: Names = ()
    reason: str = ""


def load_solver() -> ModuleType | None:
    """z3, if it is installed; imported only when it is needed, because that takes long."""
    try:
        import z3
    except ImportError:
        return None
    module: ModuleType = z3
    return module


def solve(book: ChangeTracks, z3: Any, actor: tuple[ResourceKind, str] | None = None) -> SolverAnswer:
    """Whether some step of this actor, or of any, can happen, for any choice, failure and value."""
    questions = SolverQuestions(Formulas(book, z3), actor)
    try:
        cases = list(questions.cases())
    except TooManyWaysError:
        return SolverAnswer(SolverReply.UNKNOWN, reason=f"more than {WAYS_MAX} routes between two hubs")
    solver = z3.SolverFor("QF_FD")  # truth values only: much faster than with integers
    solver.set("timeout", TIMEOUT_MS)
    solver.add(questions.formulas.constraints)
    solver.add(z3.Or([when for when, _ in cases]))
    verdict = solver.check()
    if verdict == z3.unsat:
        return SolverAnswer(SolverReply.NEVER)
    if verdict != z3.sat:
        return SolverAnswer(SolverReply.UNKNOWN, reason=f"the solver gave up: {solver.reason_unknown()}")
    model = solver.model()

    def holds(formula: Formula) -> bool:
        return bool(z3.is_true(model.eval(formula, model_completion=True)))

    event = next(what for when, what in cases if holds(when))
    choice = {
        number: next(stage for stage, option in enumerate(options) if holds(option))
        for number, options in enumerate(questions.formulas.chosen)
    }
    values = tuple(sorted(name for name, value in questions.formulas.unknowns.items() if holds(value)))
    return SolverAnswer(SolverReply.POSSIBLE, event, {n: stage for n, stage in choice.items() if stage}, values)
