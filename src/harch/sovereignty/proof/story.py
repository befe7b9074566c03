"""How does it go wrong? A counterexample as a story: what changes, what fails, what moves where, what that breaks."""

from __future__ import annotations

from msgspec import Struct

from harch.base.rejection import RuleOutcome
from harch.sovereignty.proof.book import Book, Choice
from harch.sovereignty.proof.model import Cluster, Kind, Link, Names, Node, Pipeline, Workload
from harch.sovereignty.proof.step import Step, StepKind
from harch.sovereignty.proof.view import View, floor_of
from harch.sovereignty.rules import explain_arrival, explain_passage, explain_process, explain_rest, explain_view
from harch.sovereignty.tags import Tag, is_within


class AppliedChange(Struct, frozen=True):
    """`passes` of `of` were made: a replacement that is half done has taken the old one away and made no new one."""

    id: str
    passes: int
    of: int

    @property
    def is_half_done(self) -> bool:
        return self.passes < self.of


class Story(Struct, frozen=True, kw_only=True):
    """`changes` stand in the order in which to apply them; `told` is for people, the rest for programs."""

    step: Step
    changes: tuple[AppliedChange, ...]
    data: str
    rule: str
    told: Names
    fix: str
    supposing: Names = ()  # values that are not known and would have to be these


def tell(book: Book, step: Step, choice: Choice, supposing: Names = ()) -> Story:
    """The story of one violation under one choice of stages."""
    view = View(book, {number: (stage,) for number, stage in choice.items()})
    data = _culprit(view, step)
    broken = _broken(view, step, data)
    applied = book.applied(choice)
    done = tuple(AppliedChange(change.id, passes, len(change.passes)) for change, passes in applied)
    steps = [
        f"Change {number}: {change.label or change.id}{', half done: the old one is gone' if one.is_half_done else ''}."
        for number, ((change, _), one) in enumerate(zip(applied, done, strict=True), 1)
    ]
    steps += [f"Suppose that {value.replace('=', ' is ')}." for value in supposing]
    if step.failed:
        steps.append(f"Hub {' and hub '.join(step.failed)} {'fails' if len(step.failed) == 1 else 'are down'}.")
    steps += _moves(view, step, data)
    steps.append(f"That breaks `{broken.rule}` of {data or step.actor}: {broken.detail}.")
    return Story(
        step=step,
        changes=done,
        data=data,
        rule=broken.rule,
        told=tuple(steps),
        fix=_fix(view, step, data, broken, [change.id for change in done]),
        supposing=supposing,
    )


def _culprit(view: View, step: Step) -> str:
    """The data whose rule is broken. A stream is told by its first source, but another may be what forbids it."""
    if step.kind is not StepKind.EDGE:
        return step.data
    for actor in view.all(Kind.PIPELINE).get(step.actor, ()):
        if isinstance(actor, Pipeline):
            for data in actor.reads:
                if not all(outcome.passed for outcome in _outcomes(view, step, view.strictest(data))):
                    return data
    return step.data


def _broken(view: View, step: Step, data: str) -> RuleOutcome:
    if step.kind is StepKind.EXPORT and not step.hub:
        return RuleOutcome(
            rule="perimeter",
            passed=False,
            detail="telemetry would leave every hub, and nothing is shipped outside",
            nearest_fix="show it at a hub, e.g. with SENTINEL",
        )
    if not step.data and step.cluster:
        works = [work for work in view.all(Kind.WORKLOAD).get(step.actor, ()) if isinstance(work, Workload)]
        allowed = ", ".join(works[0].countries or ()) if works else "none"
        return RuleOutcome(
            rule="countries_allowed",
            passed=False,
            detail=f"{step.hub} stands in {_country(view, step.hub)}; the work may only run in {allowed}",
            nearest_fix=f"choose a hub in {allowed}",
        )
    outcomes = [outcome for outcome in _outcomes(view, step, view.strictest(data)) if not outcome.passed]
    return (
        outcomes[0]
        if outcomes
        else RuleOutcome(
            rule="unknown", passed=False, detail="it depends on a value that is not known", nearest_fix="make it known"
        )
    )


def _outcomes(view: View, step: Step, tag: Tag | None) -> tuple[RuleOutcome, ...]:
    if step.link and tag is not None:
        links = [link for link in view.all(Kind.LINK).get(step.link, ()) if isinstance(link, Link)]
        return tuple(
            outcome for link in links for _, true in view.passages(link) for outcome in explain_passage(tag, true)
        )
    site = next(iter(view.sites(step.hub)), None)
    match step.kind:
        case StepKind.PLACEMENT | StepKind.SPILL_OVER | StepKind.ROUTE:
            return explain_process(tag, site)
        case StepKind.REPLICA:
            return explain_arrival(tag, site) if step.source else explain_rest(tag, site)
        case StepKind.EDGE:
            return explain_arrival(tag, site)
        case StepKind.EXPORT:
            return explain_view(tag, site, at_home=step.source == step.hub)


def _moves(view: View, step: Step, data: str) -> list[str]:
    where = f"{step.hub} ({_country(view, step.hub)})"
    match step.kind:
        case StepKind.PLACEMENT | StepKind.SPILL_OVER:
            return _placement(view, step, where)
        case StepKind.ROUTE | StepKind.EDGE if step.link:
            link = f"link {step.link} ({_crossed(view, step.link)})"
            return [
                f"{step.actor_kind} {step.actor} needs {data} at {where}: it travels from {step.source} over {link}."
            ]
        case StepKind.EDGE:
            return [f"Pipeline {step.actor} hands the stream of {data} from {step.source} to {where}."]
        case StepKind.REPLICA if step.source:
            return [f"A standing flow brings {data} from {step.source} to {where}."]
        case StepKind.REPLICA if step.failed:
            return [f"The lost copy of {data} is restored at {where}."]
        case StepKind.REPLICA:
            return [f"A copy of {data} rests at {where}."]
        case _:
            shown = where if step.hub else "a place outside of every hub"
            return [f"Export {step.actor} shows telemetry of {data} from {step.source} at {shown}."]


def _placement(view: View, step: Step, where: str) -> list[str]:
    clusters = [one for one in view.all(Kind.CLUSTER).get(step.cluster, ()) if isinstance(one, Cluster)]
    told = []
    if step.kind is StepKind.SPILL_OVER:
        told.append(f"{step.actor_kind} {step.actor} spills over to cluster {step.cluster}.")
    else:
        told.append(f"{step.actor_kind} {step.actor} is put on cluster {step.cluster}.")
    for cluster in clusters:
        said = sorted({site.country or "an unknown country" for site in view.declared_sites(cluster)})
        by = "declares" if cluster.countries is not None else "is taken by its hub to be in"
        told.append(f"The gate lets it in, because the cluster {by} {', '.join(said)}.")
        if cluster.hub != step.hub:
            nodes = [
                node.id
                for found in view.all(Kind.NODE).values()
                for node in found
                if isinstance(node, Node) and node.cluster == cluster.id and node.hub == step.hub
            ]
            told.append(f"Its node {', '.join(nodes[:3])} stands at {where}.")
        else:
            told.append(f"It stands at {where}.")
    told.append(f"{step.data or 'The work'} is processed there.")
    return told


def _fix(view: View, step: Step, data: str, broken: RuleOutcome, changes: list[str]) -> str:
    """The nearest thing to do: name the lie if there is one, else the loosening, else the change, else the rule."""
    clusters = [one for one in view.all(Kind.CLUSTER).get(step.cluster, ()) if isinstance(one, Cluster)]
    country = _country(view, step.hub)
    if step.kind in (StepKind.PLACEMENT, StepKind.SPILL_OVER):
        for cluster in clusters:
            if cluster.hub != step.hub:
                return f"give the node at {step.hub} to a cluster of that hub, or move it back to {cluster.hub}"
            if cluster.countries is not None and country not in cluster.countries:
                return f"let cluster {cluster.id} declare {country}, where it stands"
    for link in view.all(Kind.LINK).get(step.link, ()):
        if isinstance(link, Link) and link.transit_true is not None and set(link.transit_true) - set(link.transit):
            return f"let link {link.id} declare what it crosses: {', '.join(link.transit_true)}"
    if _is_loosened(view, data):
        return f"leave out one of {', '.join(changes)}, or have {data} declassified first"
    if changes:
        return f"leave out {' or '.join(changes)}, or: {broken.nearest_fix or 'change what it asks for'}"
    return broken.nearest_fix or "remove what asks for it"


def _is_loosened(view: View, data: str) -> bool:
    floor, now = floor_of(view.book, data), view.loosest(data)
    return floor is not None and now is not None and not is_within(now, floor)


def _country(view: View, hub: str) -> str:
    return next((site.country for site in view.sites(hub) if site.country), "a country that is not known")


def _crossed(view: View, link_id: str) -> str:
    for link in view.all(Kind.LINK).get(link_id, ()):
        if isinstance(link, Link):
            for _, true in view.passages(link):
                return f"crosses {', '.join(true.countries_crossed) or 'a country that is not known'}"
    return "not there"
