"""When does a gate let it through, and when is it wrong? The conditions that questions to the solver are made of."""

from __future__ import annotations

from collections.abc import Iterator

from harch.sovereignty.proof.formulas import Formulas
from harch.sovereignty.proof.model import Cluster, Kind, Link, Names, SpillOver
from harch.sovereignty.proof.rule_formulas import Formula, Rule

WAYS_MAX = 2_000  # simple paths between two hubs


class TooManyWaysError(Exception):
    """The graph has more simple paths than are listed here."""


class Conditions:
    """Conditions over one world of formulas. Each is built once: building is what takes the time, not solving."""

    def __init__(self, formulas: Formulas) -> None:
        self.formulas = formulas
        self._z3 = formulas.z3
        self._links = [(when, link) for when, link in formulas.all(Kind.LINK) if isinstance(link, Link)]
        self.clusters = [(when, one) for when, one in formulas.all(Kind.CLUSTER) if isinstance(one, Cluster)]
        self._spills = [(when, one) for when, one in formulas.all(Kind.SPILL_OVER) if isinstance(one, SpillOver)]
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
            for when, spill in self._spills:
                if spill.target != hub:
                    continue
                fails = f.failed(spill.source)
                active = z3.And(when, fails if spill.only_on_failure else z3.Not(fails), z3.Not(f.failed(hub)))
                found.append(z3.And(active, start.get(spill.source, z3.BoolVal(False))))
                if spill.source not in seen:
                    found += [z3.And(active, way) for way in lead_to(spill.source, (*seen, spill.source))]
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
        return self._z3.Or([when for when, _ in self.formulas.variants(Kind.DATASET, data)])

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
