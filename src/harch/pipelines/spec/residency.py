"""May the data of this pipeline flow as it would, between the countries in which its sinks and sources stand?

Every edge proved, or every reason why not. No I/O, no clock.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise

from msgspec import Struct

from harch.base.hosts import NamedHost, address_of
from harch.base.rejection import Rejection, rejected
from harch.pipelines.sense.settings import MqttSource
from harch.pipelines.spec.file import data_tag
from harch.pipelines.spec.settings import PipelineSpec, PipelineStageName
from harch.sovereignty.compiled import Rules
from harch.sovereignty.gates import PipelineEdge, check_edge
from harch.sovereignty.jurisdictions import HOME, Jurisdictions, Places
from harch.sovereignty.rules import explain_process, explain_rest
from harch.sovereignty.tags import Tag, loosens, meet, parse_tag

DECLARE = "docs/reference/tags.md#places"


class PipelineHosts(Struct, frozen=True, kw_only=True):
    """Every host that a pipeline would connect to, by the name of its sink or source; those that only listen or read
    files are not in here."""

    sinks: Mapping[str, tuple[NamedHost, ...]]
    sources: Mapping[str, tuple[NamedHost, ...]]


def place_of(
    subject: str, hosts: tuple[NamedHost, ...], declared: str, places: Places, home: str | None
) -> str | tuple[Rejection, ...]:
    """The country of all hosts, `HOME` for the hub's own machine, or why it cannot be known. `said`: the country that
    the file claims, if it does; `home`: that of the hub."""
    refused: list[Rejection] = []
    found: dict[str, None] = {}
    for one in hosts:
        address_text = "its address" if one.hidden else f"`{one.host}`"
        country = None if one.problem else places.of_host(one.host)
        if one.problem:
            refused.append(Rejection(subject, "address", f"`{one.field}` {one.problem}", "correct the address"))
        elif country is None:
            detail = f"`{one.field}`: the location of {address_text} is not declared by an operator of the hub"
            refused.append(Rejection(subject, "place", detail, _declare(one, declared or home)))
        else:
            found[country] = None
    if refused:
        return tuple(refused)
    if len(found) > 1:
        detail = f"its addresses are in {', '.join(_country_text(one) for one in found)}"
        return (Rejection(subject, "place", detail, "split it by country"),)
    country = next(iter(found), HOME)
    if declared and declared != (country or home):
        detail = f"the file declares {declared}, but its address is {_country_text(country)}"
        return (Rejection(subject, "country", detail, "remove `country`, or correct the address"),)
    return country


def _declare(one: NamedHost, country: str | None) -> str:
    entry = f'[places.NAME] country = "{country or "MA"}"'
    if one.hidden:
        return f"an operator adds it to jurisdictions.toml: {entry} ({DECLARE})"
    if (address := address_of(one.host)) is not None:
        return f'an operator adds it to jurisdictions.toml: {entry}, networks = ["{address}/{address.max_prefixlen}"]'
    return f'an operator adds it to jurisdictions.toml: {entry}, names = ["{one.host}"], networks = [its addresses]'


def _country_text(country: str) -> str:
    return f"in {country}" if country else "the hub's own machine"


# May the data of this pipeline flow as it would? Every edge proved, or every reason why not. No I/O, no clock.
#
# An edge is any way that data takes: from a source into SENSE, between stages, into a checkpoint, a ledger or the dead
# letters, to a sink, over a border. Stages keep what they process, so they run only where the data may be processed and
# may rest. A hub from which no further way leads is no place for a stage either.


REASONS_MAX = 200
_UNREAD = (NamedHost(field="address", problem="was not checked"),)  # a sink that nobody looked at is proved nowhere


class EdgeKind(StrEnum):
    SOURCE = "source"
    STREAM = "stream"
    STATE = "state"
    DEAD_LETTERS = "dead_letters"
    SINK = "sink"
    EXPORT = "export"


class ProvedEdge(Struct, frozen=True, kw_only=True):
    """One way, with every pair of hubs between which it may lead, and the countries that it touches."""

    kind: EdgeKind
    name: str
    hubs: tuple[tuple[str, str], ...]  # from, to; a source, sink or store stands at its stage's own hub
    countries: tuple[str, ...]


class ProvedExport(Struct, frozen=True, kw_only=True):
    """One aggregate over borders, with what it permits and the pairs of hubs between which it may go."""

    name: str
    columns: tuple[str, ...]
    tag: Tag
    hubs: tuple[tuple[str, str], ...]
    released: bool = False  # permits more than the data, by a signed statement


class ResidencyProof(Struct, frozen=True, kw_only=True):
    """`rejections` empty: every edge is proved, and each stage may run at each of its `hubs`.

    `sinks` and `sources`: the country in which each that has an address stands; `HOME` is the hub's own machine.
    """

    pipeline: str
    tag: Tag
    hubs: Mapping[PipelineStageName, tuple[str, ...]]
    edges: tuple[ProvedEdge, ...]
    rejections: tuple[Rejection, ...]
    exports: tuple[ProvedExport, ...] = ()
    sinks: Mapping[str, str] = {}
    sources: Mapping[str, str] = {}

    @property
    def holds(self) -> bool:
        return not self.rejections


def prove_residency(
    spec: PipelineSpec,
    hosts: PipelineHosts,
    rules: Rules,
    jurisdictions: Jurisdictions,
    *,
    declassified: Iterable[str] = (),
) -> ResidencyProof:
    """`hosts`: where the pipeline would connect to, as `spec.addresses` reads it. `declassified`: names of exports
    whose looser tag an authority has signed; without, none may be looser."""
    tag = data_tag(spec, jurisdictions)
    prover = _Prover(spec, hosts, rules, jurisdictions, tag)
    hubs = {stage: prover.hubs_for(stage) for stage in spec.stages}
    hubs = prover.connected(hubs)
    edges = prover.edges(hubs, frozenset(declassified))
    return ResidencyProof(
        pipeline=spec.name,
        tag=tag,
        hubs=hubs,
        edges=tuple(edges),
        rejections=tuple(dict.fromkeys(prover.reasons))[:REASONS_MAX],
        exports=tuple(prover.exports),
        sinks=prover.sinks,
        sources=prover.sources,
    )


def on_whole_ways(rules: Rules, tag: Tag, hubs: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Per stage, the hubs that lie on some allowed way through all stages."""

    def may_flow(source: str, target: str) -> bool:
        return rules.may_move(tag, source, target) and rules.may_process(tag, target)

    left = list(hubs)
    for at in range(1, len(left)):  # forward: what can be reached; then back: what leads on
        left[at] = tuple(hub for hub in left[at] if any(may_flow(source, hub) for source in left[at - 1]))
    for at in range(len(left) - 2, -1, -1):
        left[at] = tuple(hub for hub in left[at] if any(may_flow(hub, target) for target in left[at + 1]))
    return left


class _Prover:
    def __init__(
        self, spec: PipelineSpec, hosts: PipelineHosts, rules: Rules, jurisdictions: Jurisdictions, tag: Tag
    ) -> None:
        self.spec = spec
        self.hosts = hosts
        self.rules = rules
        self.jurisdictions = jurisdictions
        self.tag = tag
        self.reasons: list[Rejection] = []
        self.exports: list[ProvedExport] = []
        self.sinks: dict[str, str] = {}
        self.sources: dict[str, str] = {}

    def hubs_for(self, stage: PipelineStageName) -> tuple[str, ...]:
        """Hubs where this stage may process and keep the data; if there are none, why each of them is refused."""
        named = self.spec.scaling.of(stage).hubs or self.spec.hubs or tuple(self.rules.bits)
        refused: list[Rejection] = []
        allowed = []
        for hub in named:
            reasons = self._at(stage, hub)
            if reasons:
                refused += reasons
            else:
                allowed.append(hub)
        explicit = bool(self.spec.scaling.of(stage).hubs or self.spec.hubs)
        if refused and (explicit or not allowed):  # a hub that was named must hold; one of the fleet may drop out
            self.reasons += refused
        if not allowed and not refused:
            self.reasons.append(Rejection(f"{self.spec.name}: {stage}", "hubs", "the fleet has no hub", "add one"))
        return tuple(allowed)

    def _at(self, stage: PipelineStageName, hub: str) -> list[Rejection]:
        site = self.rules.terrain.site(hub)
        subject = f"{self.spec.name}: {stage} at {hub}"
        found = [*rejected(subject, explain_process(self.tag, site)), *rejected(subject, explain_rest(self.tag, site))]
        compiled = self.rules.may_process(self.tag, hub) and self.rules.may_rest(self.tag, hub)
        if compiled == bool(found):
            found.append(
                Rejection(subject, "disagreement", "two checks of the same rule disagree", "report this as a bug")
            )
        if stage is PipelineStageName.SENSE:
            found += self._origins(hub, site.country if site else None)
        if stage is PipelineStageName.THINK and self.spec.think is not None:
            for name, tag in model_tags(self.spec, self.jurisdictions):
                found += rejected(f"{subject}: model {name}", explain_process(tag, site))
        if stage is PipelineStageName.ACT and self.spec.act is not None:
            for name in self.spec.act.sinks:
                found += self._sink(name, hub, site.country if site else None)
        return list(dict.fromkeys(found))

    def _origins(self, hub: str, country: str | None) -> list[Rejection]:
        """A source that connects to somebody stands where the operator says; of one that is sent to, the file may say
        that its senders are further away."""
        found: list[Rejection] = []
        for source in self.spec.sense.sources:
            name, origin = source.name, self.spec.origins.get(source.name, "")
            subject = f"{self.spec.name}: source {name} -> {hub}"
            hosts = self.hosts.sources.get(name, _UNREAD if isinstance(source, MqttSource) else ())
            if hosts:
                place = place_of(subject, hosts, origin, self.jurisdictions.places, country)
                if not isinstance(place, str):
                    found += place
                    continue
                self.sources[name] = origin = place
            if origin != HOME:
                found += self._crossing(subject, origin, country)
        return found

    def _sink(self, name: str, hub: str, country: str | None) -> list[Rejection]:
        subject = f"{self.spec.name}: {hub} -> sink {name}"
        declared = self.spec.act.sinks[name].country if self.spec.act else ""
        place = place_of(subject, self.hosts.sinks.get(name, _UNREAD), declared, self.jurisdictions.places, country)
        if not isinstance(place, str):
            return list(place)
        self.sinks[name] = place
        if place == HOME:
            return []
        found = self._crossing(subject, country, place)
        if place not in self.tag.process_in:
            allowed = ", ".join(self.tag.process_in)
            detail = f"is in {place}; its data may be processed in {allowed}"
            found.append(Rejection(subject, "process_in", detail, f"use a sink in {allowed}"))
        return found

    def _crossing(self, subject: str, start: str | None, end: str | None) -> list[Rejection]:
        """A way outside of the fleet's links: nobody knows its route, so both ends and the border must be allowed."""
        if start == end and start is not None:
            return []
        found = []
        if not self.tag.may_cross_borders:
            detail = f"goes from {start} to {end}, but its data may not cross borders"
            found.append(Rejection(subject, "may_cross_borders", detail, f"stay in {start or end}"))
        for country in (start, end):
            if country is None or country not in self.tag.transit_in:
                over = ", ".join(self.tag.transit_in)
                detail = f"touches {country or 'an unknown country'}; may cross {over}"
                found.append(Rejection(subject, "transit_in", detail, "choose places allowed by the tag"))
        return found

    def connected(self, hubs: Mapping[PipelineStageName, tuple[str, ...]]) -> dict[PipelineStageName, tuple[str, ...]]:
        """Only hubs that lie on some whole way through all stages. If none is left, why every last pair is refused."""
        order = self.spec.stages
        found = on_whole_ways(self.rules, self.tag, [hubs[stage] for stage in order])
        left = dict(zip(order, found, strict=True))
        if all(hubs[stage] for stage in order) and not all(left[stage] for stage in order):
            for before, after in pairwise(order):
                for source in hubs[before]:
                    for target in hubs[after]:
                        self.reasons += self._refusals(before, after, source, target)
        if self.spec.latency.one_hub:
            shared = set.intersection(*(set(found) for found in left.values()))
            if not shared and all(left.values()):
                detail = "; ".join(f"{stage}: {', '.join(found)}" for stage, found in left.items())
                fix = "give the stages a common hub, or set `latency.one_hub: false`"
                self.reasons.append(Rejection(self.spec.name, "one_hub", f"no hub may run all stages: {detail}", fix))
            left = {stage: tuple(hub for hub in found if hub in shared) for stage, found in left.items()}
        return left

    def _refusals(
        self, before: PipelineStageName, after: PipelineStageName, source: str, target: str
    ) -> tuple[Rejection, ...]:
        name = f"{self.spec.name}: {before} -> {after}"
        return check_edge(self.rules, PipelineEdge(pipeline=name, stream=self.tag, source=source, target=target))

    def edges(
        self, hubs: Mapping[PipelineStageName, tuple[str, ...]], declassified: frozenset[str]
    ) -> list[ProvedEdge]:
        spec = self.spec
        at = hubs[PipelineStageName.SENSE]
        found = [
            self._local(
                EdgeKind.SOURCE,
                f"{source.name} -> sense",
                at,
                self.sources.get(source.name) or spec.origins.get(source.name),
            )
            for source in spec.sense.sources
        ]
        for before, after in pairwise(spec.stages):
            pairs = [(a, b) for a in hubs[before] for b in hubs[after] if not self._refusals(before, after, a, b)]
            found.append(self._edge(EdgeKind.STREAM, f"{before} -> {after}", pairs))
        found.append(self._local(EdgeKind.STATE, "sense -> checkpoints", at))
        found.append(self._local(EdgeKind.DEAD_LETTERS, "sense -> late and refused events", at))
        if spec.durability.events_kept_s:
            found.append(self._local(EdgeKind.STATE, "source -> kept events", at))
        if spec.act is None:
            last = spec.stages[-1]
            found.append(self._local(EdgeKind.STATE, f"{last} -> results", hubs[last]))
        if spec.act is not None:
            at = hubs[PipelineStageName.ACT]
            found.append(self._local(EdgeKind.STATE, "act -> ledger", at))
            found.append(self._local(EdgeKind.DEAD_LETTERS, "act -> dead letters", at))
            found += [
                self._local(EdgeKind.SINK, f"act -> {name}", at, self.sinks.get(name) or None)
                for name in spec.act.sinks
            ]
        for index, export in enumerate(spec.exports):
            tag = self.tag
            if export.tag is not None:
                tag = parse_tag(export.tag, self.jurisdictions, where=f"exports[{index}].tag")
            edge, tag = self._export(export.name, tag, export.to, hubs[spec.stages[-1]], declassified)
            released = loosens(self.tag, tag)
            self.exports.append(
                ProvedExport(name=export.name, columns=export.columns, tag=tag, hubs=edge.hubs, released=released)
            )
            found.append(edge)
        return found

    def _export(
        self, name: str, tag: Tag, to: tuple[str, ...], sources: tuple[str, ...], declassified: frozenset[str]
    ) -> tuple[ProvedEdge, Tag]:
        """The edge, and the tag that it was proved with."""
        subject = f"{self.spec.name}: export {name}"
        if loosens(self.tag, tag) and name not in declassified:
            tag = meet((tag, self.tag))
            fix = "get it signed (`harch pipeline sign`), or narrow the export's tag"
            detail = "its tag permits more than the tag of its data"
            self.reasons.append(Rejection(subject, "declassification", detail, fix))
        pairs = []
        for country in to:
            targets = [site.hub for site in self.rules.terrain.sites if site.country == country]
            if not targets:
                self.reasons.append(Rejection(f"{subject} -> {country}", "site", "the fleet has no hub there"))
            allowed = []
            refused: list[Rejection] = []
            for source in sources:
                for target in targets:
                    edge = PipelineEdge(pipeline=subject, stream=tag, source=source, target=target)
                    reasons = check_edge(self.rules, edge)
                    refused += reasons
                    if not reasons:
                        allowed.append((source, target))
            if not allowed:
                self.reasons += refused
            pairs += allowed
        return self._edge(EdgeKind.EXPORT, f"{self.spec.stages[-1]} -> {name}", pairs), tag

    def _local(self, kind: EdgeKind, name: str, hubs: Iterable[str], other: str | None = None) -> ProvedEdge:
        edge = self._edge(kind, name, [(hub, hub) for hub in hubs])
        countries = {*edge.countries, *((other,) if other else ())}
        return ProvedEdge(kind=kind, name=name, hubs=edge.hubs, countries=tuple(sorted(countries)))

    def _edge(self, kind: EdgeKind, name: str, pairs: list[tuple[str, str]]) -> ProvedEdge:
        sites = {self.rules.terrain.site(hub) for pair in pairs for hub in pair}
        countries = sorted({site.country for site in sites if site is not None and site.country is not None})
        return ProvedEdge(kind=kind, name=name, hubs=tuple(pairs), countries=tuple(countries))


def model_tags(spec: PipelineSpec, jurisdictions: Jurisdictions) -> list[tuple[str, Tag]]:
    """The tag of every version of every model: its own, else its model's, else that of the pipeline's data."""
    found = []
    for model in spec.think.models if spec.think else ():
        for version in model.versions:
            raw = version.tag or model.tag or spec.jurisdiction
            found.append((f"{model.name}@{version.version}", parse_tag(raw, jurisdictions, where="tag")))
    return found
