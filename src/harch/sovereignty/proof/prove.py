"""Is it proven, and if not, how does it go wrong?

Enumeration first, the solver for unknown values, and a verdict with its counterexamples.
"""

from __future__ import annotations

from enum import StrEnum
from types import ModuleType

from msgspec import Struct, field

from harch.base.rejection import RuleOutcome
from harch.sovereignty.proof.enumerate import (
    ACTORS,
    Findings,
    FoundViolation,
    Progress,
    combinations,
    enumerate_violations,
)
from harch.sovereignty.proof.enumerate import no_progress as silent
from harch.sovereignty.proof.model import (
    ChangeTracks,
    Choice,
    ClusterResource,
    Dataset,
    Export,
    LinkResource,
    Names,
    NodeResource,
    PendingChange,
    PipelineResource,
    Policy,
    ProofWorld,
    ResourceKind,
    WorkloadResource,
    everything,
    kind_of,
)
from harch.sovereignty.proof.steps import ProofStep, ProofStepKind
from harch.sovereignty.proof.symbolic import SolverReply, solve
from harch.sovereignty.proof.view import WorldView, floor_of, may_select, not_understood
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


class Counterexample(Struct, frozen=True, kw_only=True):
    """`changes` stand in the order in which to apply them; `explanation` is for people, the rest for programs."""

    step: ProofStep
    changes: tuple[AppliedChange, ...]
    data: str
    rule: str
    explanation: Names = field(name="told")
    fix: str
    supposing: Names = ()  # values that are not known and would have to be these


def build_counterexample(book: ChangeTracks, step: ProofStep, choice: Choice, supposing: Names = ()) -> Counterexample:
    """The story of one violation under one choice of stages."""
    view = WorldView(book, {number: (stage,) for number, stage in choice.items()})
    data = _culprit(view, step)
    broken = _broken(view, step, data)
    applied = book.applied(choice)
    done = tuple(AppliedChange(change.id, passes, len(change.passes)) for change, passes in applied)
    steps = [
        f"Change {number}: {change.label or change.id}{', half applied: old one deleted' if one.is_half_done else ''}."
        for number, ((change, _), one) in enumerate(zip(applied, done, strict=True), 1)
    ]
    steps += [f"Suppose that {value.replace('=', ' is ')}." for value in supposing]
    if step.failed:
        steps.append(f"Hub {' and hub '.join(step.failed)} {'fails' if len(step.failed) == 1 else 'are down'}.")
    steps += _moves(view, step, data)
    steps.append(f"That breaks `{broken.rule}` of {data or step.actor}: {broken.detail}.")
    return Counterexample(
        step=step,
        changes=done,
        data=data,
        rule=broken.rule,
        explanation=tuple(steps),
        fix=_fix(view, step, data, broken, [change.id for change in done]),
        supposing=supposing,
    )


def _culprit(view: WorldView, step: ProofStep) -> str:
    """The data whose rule is broken. A stream is named by its first source, but another may be what forbids it."""
    if step.kind is not ProofStepKind.EDGE:
        return step.data
    for actor in view.all(ResourceKind.PIPELINE).get(step.actor, ()):
        if isinstance(actor, PipelineResource):
            for data in actor.reads:
                if not all(outcome.passed for outcome in _outcomes(view, step, view.strictest(data))):
                    return data
    return step.data


def _broken(view: WorldView, step: ProofStep, data: str) -> RuleOutcome:
    if step.kind is ProofStepKind.EXPORT and not step.hub:
        return RuleOutcome(
            rule="perimeter",
            passed=False,
            detail="telemetry would leave the fleet, which is never allowed",
            nearest_fix="view it at a hub, e.g. with SENTINEL",
        )
    if not step.data and step.cluster:
        workloads = [
            work for work in view.all(ResourceKind.WORKLOAD).get(step.actor, ()) if isinstance(work, WorkloadResource)
        ]
        allowed = ", ".join(workloads[0].countries or ()) if workloads else "none"
        return RuleOutcome(
            rule="countries_allowed",
            passed=False,
            detail=f"{step.hub} is in {_country(view, step.hub)}; the work may only run in {allowed}",
            nearest_fix=f"choose a hub in {allowed}",
        )
    outcomes = [outcome for outcome in _outcomes(view, step, view.strictest(data)) if not outcome.passed]
    return (
        outcomes[0]
        if outcomes
        else RuleOutcome(
            rule="unknown", passed=False, detail="it depends on an unknown value", nearest_fix="set the value"
        )
    )


def _outcomes(view: WorldView, step: ProofStep, tag: Tag | None) -> tuple[RuleOutcome, ...]:
    if step.link and tag is not None:
        links = [link for link in view.all(ResourceKind.LINK).get(step.link, ()) if isinstance(link, LinkResource)]
        return tuple(
            outcome for link in links for _, true in view.passages(link) for outcome in explain_passage(tag, true)
        )
    site = next(iter(view.sites(step.hub)), None)
    match step.kind:
        case ProofStepKind.PLACEMENT | ProofStepKind.OVERFLOW | ProofStepKind.ROUTE:
            return explain_process(tag, site)
        case ProofStepKind.REPLICA:
            return explain_arrival(tag, site) if step.source else explain_rest(tag, site)
        case ProofStepKind.EDGE:
            return explain_arrival(tag, site)
        case ProofStepKind.EXPORT:
            return explain_view(tag, site, at_home=step.source == step.hub)


def _moves(view: WorldView, step: ProofStep, data: str) -> list[str]:
    where = f"{step.hub} ({_country(view, step.hub)})"
    match step.kind:
        case ProofStepKind.PLACEMENT | ProofStepKind.OVERFLOW:
            return _placement(view, step, where)
        case ProofStepKind.ROUTE | ProofStepKind.EDGE if step.link:
            link = f"link {step.link} ({_crossed(view, step.link)})"
            return [
                f"{step.actor_kind} {step.actor} needs {data} at {where}: transferred from {step.source} over {link}."
            ]
        case ProofStepKind.EDGE:
            return [f"Pipeline {step.actor} sends the stream of {data} from {step.source} to {where}."]
        case ProofStepKind.REPLICA if step.source:
            return [f"A continuous flow copies {data} from {step.source} to {where}."]
        case ProofStepKind.REPLICA if step.failed:
            return [f"The lost copy of {data} is restored at {where}."]
        case ProofStepKind.REPLICA:
            return [f"A copy of {data} is stored at {where}."]
        case _:
            target = where if step.hub else "a place outside the fleet"
            return [f"Export {step.actor} shows telemetry of {data} from {step.source} at {target}."]


def _placement(view: WorldView, step: ProofStep, where: str) -> list[str]:
    clusters = [one for one in view.all(ResourceKind.CLUSTER).get(step.cluster, ()) if isinstance(one, ClusterResource)]
    lines = []
    if step.kind is ProofStepKind.OVERFLOW:
        lines.append(f"{step.actor_kind} {step.actor} is lent to cluster {step.cluster}.")
    else:
        lines.append(f"{step.actor_kind} {step.actor} is placed on cluster {step.cluster}.")
    for cluster in clusters:
        declared = sorted({site.country or "an unknown country" for site in view.declared_sites(cluster)})
        by = "declares" if cluster.countries is not None else "is assumed by its hub to be in"
        lines.append(f"It is admitted because the cluster {by} {', '.join(declared)}.")
        if cluster.hub != step.hub:
            nodes = [
                node.id
                for found in view.all(ResourceKind.NODE).values()
                for node in found
                if isinstance(node, NodeResource) and node.cluster == cluster.id and node.hub == step.hub
            ]
            lines.append(f"Its node {', '.join(nodes[:3])} is at {where}.")
        else:
            lines.append(f"It is at {where}.")
    lines.append(f"{step.data or 'The work'} is processed there.")
    return lines


def _fix(view: WorldView, step: ProofStep, data: str, broken: RuleOutcome, changes: list[str]) -> str:
    """The nearest thing to do: name the lie if there is one, else the loosening, else the change, else the rule."""
    clusters = [one for one in view.all(ResourceKind.CLUSTER).get(step.cluster, ()) if isinstance(one, ClusterResource)]
    country = _country(view, step.hub)
    if step.kind in (ProofStepKind.PLACEMENT, ProofStepKind.OVERFLOW):
        for cluster in clusters:
            if cluster.hub != step.hub:
                return f"give the node at {step.hub} to a cluster of that hub, or move it back to {cluster.hub}"
            if cluster.countries is not None and country not in cluster.countries:
                return f"let cluster {cluster.id} declare {country}, its location"
    for link in view.all(ResourceKind.LINK).get(step.link, ()):
        if (
            isinstance(link, LinkResource)
            and link.transit_true is not None
            and set(link.transit_true) - set(link.transit)
        ):
            return f"let link {link.id} declare what it crosses: {', '.join(link.transit_true)}"
    if _is_loosened(view, data):
        return f"leave out one of {', '.join(changes)}, or have {data} declassified first"
    if changes:
        return f"leave out {' or '.join(changes)}, or: {broken.nearest_fix or 'change its requirements'}"
    return broken.nearest_fix or "remove what requires it"


def _is_loosened(view: WorldView, data: str) -> bool:
    floor, now = floor_of(view.book, data), view.loosest(data)
    return floor is not None and now is not None and not is_within(now, floor)


def _country(view: WorldView, hub: str) -> str:
    return next((site.country for site in view.sites(hub) if site.country), "an unknown country")


def _crossed(view: WorldView, link_id: str) -> str:
    for link in view.all(ResourceKind.LINK).get(link_id, ()):
        if isinstance(link, LinkResource):
            for _, true in view.passages(link):
                return f"crosses {', '.join(true.countries_crossed) or 'an unknown country'}"
    return "not there"


# Is it proven? Enumeration first, the solver for unknown values, and a verdict with its counterexamples.


NO_SOLVER = "it depends on unknown values, and the solver is not installed: pip install 'harch[proof]'"
REASONS_MAX = 20
UNKNOWN_SITE = "site"  # the rule that a hub must be known: breaking it means that nobody can tell


class ProofStatus(StrEnum):
    PROVEN = "proven"
    VIOLATED = "violated"
    UNKNOWN = "unknown"  # not proven, which is as good as no


class Proof(Struct, frozen=True, kw_only=True):
    """The verdict, what it covers, and why not. `counterexamples` of an unknown verdict are what might happen."""

    status: ProofStatus
    counterexamples: tuple[Counterexample, ...] = field(name="stories")
    reasons: Names
    resources: int
    changes: int
    combinations: str  # a text: it can have more digits than JSON numbers bear
    failures: int
    is_complete: bool  # false: more breaches were suspected than were followed to the end
    suspects: int  # breaches in the hull of all combinations
    boxes: int  # how many hulls it took to settle them
    solver_calls: int = 0


def prove(
    world: ProofWorld,
    changes: tuple[PendingChange, ...] = (),
    *,
    solver: ModuleType | None = None,
    progress: Progress = silent,
) -> Proof:
    """Whether no combination of the changes, under no single hub failure, can break a tag."""
    book = ChangeTracks(world, changes)
    findings = enumerate_violations(book, progress)
    reasons = [f"{what} is unknown" for what in _blanks(book)]
    reasons += [f"{what}, which is not defined" for what in _dangling(book)]
    reasons += [f"too many combinations around {step.actor_kind} {step.actor}" for step in findings.undecided]
    counterexamples = [build_counterexample(book, found.step, found.choice) for found in findings.violations]
    calls = 0
    if not counterexamples and findings.depends:
        calls, conditional, open_reasons = _solve(book, findings, solver, progress)
        counterexamples += conditional
        reasons += open_reasons
    if any(counterexample.rule != UNKNOWN_SITE for counterexample in counterexamples[: len(findings.violations)]):
        status = ProofStatus.VIOLATED
    elif reasons or counterexamples:
        status = ProofStatus.UNKNOWN
    else:
        status = ProofStatus.PROVEN
    return Proof(
        status=status,
        counterexamples=tuple(counterexamples),
        reasons=tuple(dict.fromkeys(reasons[:REASONS_MAX])),
        resources=world.size,
        changes=len(changes),
        combinations=str(combinations(book)),
        failures=len(book.hubs_known),
        is_complete=findings.is_complete,
        suspects=findings.suspects,
        boxes=findings.boxes,
        solver_calls=calls,
    )


def needs_solver(world: ProofWorld, changes: tuple[PendingChange, ...]) -> bool:
    """Whether anything is unknown; without unknowns the solver, which is slow to load, is never asked."""
    return any(one.unknown for one in everything(world, changes))


def _dangling(book: ChangeTracks) -> list[str]:
    """Who names data that is nowhere described: no gate would let it through, but nothing can be shown about it."""
    found = []
    for one in everything(book.world, book.changes):
        named = (
            one.reads
            if isinstance(one, WorkloadResource | PipelineResource)
            else one.data
            if isinstance(one, Export)
            else ()
        )
        found += [f"{kind_of(one)} {one.id} names data `{data}`" for data in named if data not in book.data_known]
    return found


def _blanks(book: ChangeTracks) -> list[str]:
    """Unknown fields that nothing can be said about; so are rules that change and were not known before, either."""
    found = not_understood((kind_of(one), one) for one in everything(book.world, book.changes) if one.unknown)
    for kind in (ResourceKind.POLICY, ResourceKind.DATASET):
        changing = (one for key, one in book.world.of(kind).items() if (kind, key) in book.track_of)
        found += [f"{kind} {one.id} before the change" for one in changing if one.unknown]
    return found + _floors(book) if book.has_unknowns else found


def _floors(book: ChangeTracks) -> list[str]:
    """What binds data today and is not known, where some of what binds it changes: nobody can say what is loosened."""
    found: list[str] = []
    policies = [one for one in book.world.of(ResourceKind.POLICY).values() if isinstance(one, Policy)]
    for data in book.world.of(ResourceKind.DATASET).values():
        if not isinstance(data, Dataset) or data.id in book.world.declassified:
            continue
        binding = [(ResourceKind.POLICY, one) for one in policies if may_select(one, data)]
        changes = any((kind, one.id) in book.track_of for kind, one in [*binding, (ResourceKind.DATASET, data)])
        if changes:
            found += [f"{kind} {one.id} before the change" for kind, one in binding if one.unknown]
            found += [f"{ResourceKind.DATASET} {data.id} before the change"] if "tag" in data.unknown else []
    return found


def _solve(
    book: ChangeTracks, findings: Findings, solver: ModuleType | None, progress: Progress
) -> tuple[int, list[Counterexample], list[str]]:
    """The solver, about each actor that something unknown might lead astray, and nothing else."""
    if solver is None:
        return 0, [], [NO_SOLVER]
    counterexamples: list[Counterexample] = []
    reasons: list[str] = []
    actors: dict[tuple[ResourceKind, str], FoundViolation] = {}
    for found in findings.depends:
        actors.setdefault((found.step.actor_kind, found.step.actor), found)
    for number, ((kind, key), found) in enumerate(actors.items()):
        progress("solving", number, len(actors))
        answer = solve(_cut(book, kind, key), solver, (kind, key))
        if answer.reply is SolverReply.POSSIBLE:
            counterexamples.append(build_counterexample(book, found.step, found.choice, supposing=answer.values))
        elif answer.reply is SolverReply.UNKNOWN:
            reasons.append(f"{kind} {key}: {answer.reason}")
    return len(actors), counterexamples, reasons


def _cut(book: ChangeTracks, kind: ResourceKind, key: str) -> ChangeTracks:
    """The same world without the actors that are not asked about; data stays, for others read it."""
    others = [of for of in ACTORS if of is not ResourceKind.DATASET]
    resources = {
        of: {id: one for id, one in book.world.of(of).items() if of not in others or (of, id) == (kind, key)}
        for of in ResourceKind
    }
    changes = tuple(
        change for change in book.changes if change.kind not in others or (change.kind, change.key) == (kind, key)
    )
    return ChangeTracks(ProofWorld(resources=resources, declassified=book.world.declassified), changes)
