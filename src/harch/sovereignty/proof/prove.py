"""Is it proven? Enumeration first, the solver for what depends on unknown values, and a verdict with its stories."""

from __future__ import annotations

from enum import StrEnum
from types import ModuleType

from msgspec import Struct

from harch.sovereignty.proof.book import Book
from harch.sovereignty.proof.enumerate import ACTORS, Findings, Found, Progress, combinations, enumerate_violations
from harch.sovereignty.proof.enumerate import no_progress as silent
from harch.sovereignty.proof.model import Change, Export, Kind, Names, Pipeline, Workload, World, everything, kind_of
from harch.sovereignty.proof.story import Story, tell
from harch.sovereignty.proof.symbolic import Reply, solve
from harch.sovereignty.proof.unknowns import not_understood

NO_SOLVER = "it depends on values that are not known, and the solver is not installed: pip install 'harch[proof]'"
REASONS_MAX = 20
UNKNOWN_SITE = "site"  # the rule that a hub must be known: breaking it means that nobody can tell


class Status(StrEnum):
    PROVEN = "proven"
    VIOLATED = "violated"
    UNKNOWN = "unknown"  # not proven, which is as good as no


class Proof(Struct, frozen=True, kw_only=True):
    """The verdict, what it covers, and why not. `stories` of an unknown verdict are what might happen."""

    status: Status
    stories: tuple[Story, ...]
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
    world: World,
    changes: tuple[Change, ...] = (),
    *,
    solver: ModuleType | None = None,
    progress: Progress = silent,
) -> Proof:
    """Whether no combination of the changes, under no single hub failure, can break a tag."""
    book = Book(world, changes)
    findings = enumerate_violations(book, progress)
    reasons = [f"{what} is not known" for what in _blanks(book)]
    reasons += [f"{what}, which is not described" for what in _dangling(book)]
    reasons += [f"too many combinations around {step.actor_kind} {step.actor}" for step in findings.undecided]
    stories = [tell(book, found.step, found.choice) for found in findings.violations]
    calls = 0
    if not stories and findings.depends:
        calls, open_stories, open_reasons = _ask(book, findings, solver, progress)
        stories += open_stories
        reasons += open_reasons
    if any(story.rule != UNKNOWN_SITE for story in stories[: len(findings.violations)]):
        status = Status.VIOLATED
    elif reasons or stories:
        status = Status.UNKNOWN
    else:
        status = Status.PROVEN
    return Proof(
        status=status,
        stories=tuple(stories),
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


def needs_solver(world: World, changes: tuple[Change, ...]) -> bool:
    """Whether anything is unknown; without unknowns the solver, which is slow to load, is never asked."""
    return any(one.unknown for one in everything(world, changes))


def _dangling(book: Book) -> list[str]:
    """Who names data that is nowhere described: no gate would let it through, but nothing can be shown about it."""
    found = []
    for one in everything(book.world, book.changes):
        named = one.reads if isinstance(one, Workload | Pipeline) else one.data if isinstance(one, Export) else ()
        found += [f"{kind_of(one)} {one.id} names data `{data}`" for data in named if data not in book.data_known]
    return found


def _blanks(book: Book) -> list[str]:
    """Unknown fields that nothing can be said about; so are rules that change and were not known before, either."""
    found = not_understood((kind_of(one), one) for one in everything(book.world, book.changes) if one.unknown)
    for kind in (Kind.POLICY, Kind.DATASET):
        changing = (one for key, one in book.world.of(kind).items() if (kind, key) in book.track_of)
        found += [f"{kind} {one.id} before the change" for one in changing if one.unknown]
    return found


def _ask(
    book: Book, findings: Findings, solver: ModuleType | None, progress: Progress
) -> tuple[int, list[Story], list[str]]:
    """The solver, about each actor that something unknown might lead astray, and nothing else."""
    if solver is None:
        return 0, [], [NO_SOLVER]
    stories: list[Story] = []
    reasons: list[str] = []
    actors: dict[tuple[Kind, str], Found] = {}
    for found in findings.depends:
        actors.setdefault((found.step.actor_kind, found.step.actor), found)
    for number, ((kind, key), found) in enumerate(actors.items()):
        progress("solving", number, len(actors))
        answer = solve(_cut(book, kind, key), solver, (kind, key))
        if answer.reply is Reply.POSSIBLE:
            stories.append(tell(book, found.step, found.choice, supposing=answer.values))
        elif answer.reply is Reply.UNKNOWN:
            reasons.append(f"{kind} {key}: {answer.reason}")
    return len(actors), stories, reasons


def _cut(book: Book, kind: Kind, key: str) -> Book:
    """The same world without the actors that are not asked about; data stays, for others read it."""
    others = [of for of in ACTORS if of is not Kind.DATASET]
    resources = {
        of: {id: one for id, one in book.world.of(of).items() if of not in others or (of, id) == (kind, key)}
        for of in Kind
    }
    changes = tuple(
        change for change in book.changes if change.kind not in others or (change.kind, change.key) == (kind, key)
    )
    return Book(World(resources=resources, declassified=book.world.declassified), changes)
