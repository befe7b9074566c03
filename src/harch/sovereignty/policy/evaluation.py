"""What do all rules together say, and does a bundle do what its authors say?

The bundle, the default policy and the compiled rules side by side; trials on past decisions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

from msgspec import Struct

from harch.base.clock import Clock
from harch.base.errors import HarchError, Problems
from harch.sovereignty.compiled import Rules
from harch.sovereignty.policy.bundle import (
    FILE_BYTES_MAX,
    FILES_MAX,
    MANIFEST,
    WORLD_ROOT,
    PolicyBundle,
    bundle_of,
    not_valid,
)
from harch.sovereignty.policy.document import (
    ChangeQuestion,
    DataQuestion,
    Document,
    Question,
    WorkQuestion,
    compiled_answer,
    document_of,
)
from harch.sovereignty.policy.supervisor import PolicyWorker, WorkerLimits, WorkerProgram
from harch.sovereignty.policy.verdict import PolicyAnswer, PolicyVerdict, VerdictGround, read_reasons, read_verdict

Progress = Callable[[int, int], None]  # so many are done, of how many

DEFAULT = "default"  # the name under which the shipped bundle is known


def silent(_done: int, _total: int) -> None:
    """Nobody waits."""


def read_bundle(name_or_path: str) -> PolicyBundle:
    """`default`, or the bundle of that folder. Raises E0930."""
    return bundle_of(read_files(name_or_path), shipped=name_or_path == DEFAULT)


@cache
def default_bundle() -> PolicyBundle:
    return read_bundle(DEFAULT)


def read_files(name_or_path: str) -> dict[str, bytes]:
    """Path to content, for `bundle_of` or for sending to a hub."""
    if name_or_path == DEFAULT:
        return shipped_files()
    folder = Path(name_or_path)
    if not (folder / MANIFEST).is_file():
        raise HarchError(
            "E0930",
            f"{folder} is not a bundle: it has no {MANIFEST}",
            hint="give the folder of the bundle, or `default`",
        )
    problems = Problems()
    found: dict[str, bytes] = {}
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in names if not name.startswith(".")):
            path = Path(root) / name
            relative = path.relative_to(folder).as_posix()
            if path.is_symlink() or not path.is_file():
                problems.add(relative, "is not a plain file")  # a link could lead out of what was reviewed
            elif len(found) >= FILES_MAX:
                problems.add("bundle", f"more than {FILES_MAX} files")
                raise not_valid(problems)
            else:
                found[relative] = _read(path)
    if problems:
        raise not_valid(problems)
    return found


def shipped_files() -> dict[str, bytes]:
    folder = resources.files("harch.sovereignty").joinpath("shipped/default-policy")
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.is_file()}


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(FILE_BYTES_MAX + 1)  # one more than allowed, so that the limit is seen to be passed
    except OSError as error:
        raise HarchError("E0930", f"{path} cannot be read: {error.strerror}", hint="check its permissions") from error


# What do all rules together say? The bundle, the default policy in Rego and the compiled rules, asked side by side.
#
# A yes needs all of them. Where the default policy and the compiled rules differ, one of them is wrong: it is no, and
# the
# caller gets an error, so that somebody looks.


DEFAULT_ALLOW, DEFAULT_DENY = "harch/sovereignty/allow", "harch/sovereignty/deny"
_QUESTION_OF = {WorkQuestion: "workload", ChangeQuestion: "change"}


class Opinions(Struct, frozen=True, kw_only=True):
    """One question, three answers. `verdict` is what counts; `compiled` is None where no compiled rule applies."""

    verdict: PolicyVerdict
    bundle: PolicyVerdict
    default: PolicyVerdict | None
    compiled: bool | None


def program_of(bundle: PolicyBundle, world: Document, *, with_tests: bool = False) -> WorkerProgram:
    """The bundle together with the default policy and what HarchOS says of the world."""
    default = default_bundle()
    tests = {f"bundle/{name}": text for name, text in bundle.tests.items()} if with_tests else {}
    own = {} if bundle.digest == default.digest else {f"bundle/{name}": text for name, text in bundle.modules.items()}
    return WorkerProgram(
        modules={**{f"default/{name}": text for name, text in default.modules.items()}, **own, **tests},
        data={**bundle.data, WORLD_ROOT: world},
        entrypoints=tuple(
            dict.fromkeys((*bundle.paths, DEFAULT_ALLOW, DEFAULT_DENY, *(bundle.test_paths if with_tests else ())))
        ),
    )


class PolicyEvaluator:
    """One bundle with its worker. Close it when done."""

    def __init__(
        self,
        bundle: PolicyBundle,
        rules: Rules,
        world: Document,
        *,
        limits: WorkerLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.bundle = bundle
        self._rules = rules
        self.worker = PolicyWorker(program_of(bundle, world), limits=limits, clock=clock)

    async def start(self) -> None:
        await self.worker.start()

    async def close(self) -> None:
        await self.worker.close()

    async def decide(self, question: Question) -> Opinions:
        """Never raises for what the policy does."""
        return (await self.decide_many([question]))[0]

    async def decide_many(self, questions: Sequence[Question]) -> list[Opinions]:
        """All of one kind. They share the worker's deadline and its faults."""
        if not questions:
            return []
        entry = self._entry(questions[0])
        documents = [document_of(question) for question in questions]
        path = self.bundle.manifest.entrypoints.get(entry)
        own = await self._verdicts(path, self.bundle.manifest.reasons.get(entry), documents)
        if isinstance(questions[0], ChangeQuestion):  # nothing built in is asked about changes
            return [Opinions(verdict=verdict, bundle=verdict, default=None, compiled=None) for verdict in own]
        default = own if path == DEFAULT_ALLOW else await self._verdicts(DEFAULT_ALLOW, DEFAULT_DENY, documents)
        return [
            self._opinions(question, bundle, shipped)
            for question, bundle, shipped in zip(questions, own, default, strict=True)
            if not isinstance(question, ChangeQuestion)
        ]

    def _opinions(
        self, question: DataQuestion | WorkQuestion, bundle: PolicyVerdict, default: PolicyVerdict
    ) -> Opinions:
        compiled = compiled_answer(self._rules, question)
        verdict = bundle
        if not default.is_fault and default.allowed != compiled:
            verdict = PolicyVerdict(
                ground=VerdictGround.DISAGREEMENT,
                detail=f"Rego decided {'yes' if default.allowed else 'no'} and the compiled rules the opposite",
                policy=self.bundle.digest,
            )
        elif default.is_fault or not compiled:
            # The default policy speaks for the compiled rules, so its fault or its no outweighs the bundle's yes.
            verdict = default if bundle.allowed else bundle
        return Opinions(verdict=verdict, bundle=bundle, default=default, compiled=compiled)

    async def _verdicts(
        self, path: str | None, reasons_path: str | None, documents: Sequence[object]
    ) -> list[PolicyVerdict]:
        digest = self.bundle.digest
        if path is None:
            return [
                PolicyVerdict(ground=VerdictGround.ALLOWED, detail="the bundle does not cover this", policy=digest)
            ] * len(documents)
        answers = await self.worker.evaluate_many(path, documents)
        verdicts = [read_verdict(answer, policy=digest) for answer in answers]
        refused = [index for index, verdict in enumerate(verdicts) if verdict.ground is VerdictGround.DENIED]
        if reasons_path is not None and refused:
            why = await self.worker.evaluate_many(reasons_path, [documents[index] for index in refused])
            for index, answer in zip(refused, why, strict=True):
                verdicts[index] = _with_reasons(verdicts[index], answer)
        return verdicts

    def _entry(self, question: Question) -> str:
        # The default policy answers questions about data by the same entry point as those about work.
        return "workload" if isinstance(question, DataQuestion) else _QUESTION_OF[type(question)]


def _with_reasons(verdict: PolicyVerdict, answer: PolicyAnswer) -> PolicyVerdict:
    return PolicyVerdict(ground=verdict.ground, reasons=read_reasons(answer), policy=verdict.policy)


# Does a bundle do what its authors say? Compiles it, runs its tests, and compares two bundles on past decisions.


BATCH = 100
# A trial may crash as often as it likes: nobody's work waits for it.
_PATIENT = WorkerLimits(restarts_max=10_000, pause_s_first=0.0)


class TestOutcome(Struct, frozen=True, kw_only=True):
    """One test of a bundle: a rule `test_…` or a case of a JSON file."""

    name: str
    passed: bool
    detail: str = ""


class PastDecision(Struct, frozen=True, kw_only=True):
    """A question that a hub has answered, how often, and how."""

    question: str
    input: Document
    count: int
    allowed: bool
    ground: str
    policy: str
    first_at: str
    last_at: str


class Difference(Struct, frozen=True, kw_only=True):
    """Past decisions that would have come out otherwise."""

    input: Document
    count: int
    old: PolicyVerdict
    new: PolicyVerdict


async def compile_bundle(bundle: PolicyBundle, world: Document) -> None:
    """Raises E0930 if the engine cannot compile the bundle with its tests, E0934 without an engine."""
    async with PolicyWorker(program_of(bundle, world, with_tests=True)):
        pass


async def run_tests(bundle: PolicyBundle, world: Document, progress: Progress = silent) -> list[TestOutcome]:
    """Every test, each on its own: one that crashes the worker fails alone."""
    outcomes: list[TestOutcome] = []
    total = len(bundle.test_paths) + len(bundle.cases)
    async with PolicyWorker(program_of(bundle, world, with_tests=True), limits=_PATIENT) as worker:
        for path in bundle.test_paths:
            progress(len(outcomes), total)
            outcomes.append(_rule_outcome(path, await worker.evaluate(path, {})))
        for case in bundle.cases:
            progress(len(outcomes), total)
            verdict = read_verdict(await worker.evaluate(bundle.manifest.entrypoints[case.question], case.input))
            wanted = "allow" if case.allow else "deny"
            # A fault denies too, but nobody writes a test to be satisfied with that.
            passed = not verdict.is_fault and verdict.allowed == case.allow
            detail = "" if passed else f"expected {wanted}, got {verdict.ground.value} {verdict.detail}".rstrip()
            outcomes.append(TestOutcome(name=case.name, passed=passed, detail=detail))
    return outcomes


async def replay(
    old: PolicyBundle,
    new: PolicyBundle,
    world: Document,
    decisions: Sequence[PastDecision],
    progress: Progress = silent,
) -> list[Difference]:
    """Which of these decisions the new bundle would have changed, most frequent first."""
    total = 2 * len(decisions)
    before = await _verdicts(old, world, decisions, lambda done: progress(done, total))
    after = await _verdicts(new, world, decisions, lambda done: progress(len(decisions) + done, total))
    found = [
        Difference(input=decision.input, count=decision.count, old=one, new=other)
        for decision, one, other in zip(decisions, before, after, strict=True)
        if one.allowed != other.allowed
    ]
    return sorted(found, key=lambda difference: -difference.count)


async def _verdicts(
    bundle: PolicyBundle, world: Document, decisions: Sequence[PastDecision], progress: Callable[[int], None]
) -> list[PolicyVerdict]:
    """Batches first; a batch with a fault is asked again one by one, so that only the guilty question bears it."""
    verdicts: dict[int, PolicyVerdict] = {}
    reasons = bundle.manifest.reasons
    async with PolicyWorker(program_of(bundle, world), limits=_PATIENT) as worker:
        for question, path in bundle.manifest.entrypoints.items():
            numbers = [index for index, decision in enumerate(decisions) if decision.question == question]
            for start in range(0, len(numbers), BATCH):
                batch = numbers[start : start + BATCH]
                answers = await worker.evaluate_many(path, [decisions[index].input for index in batch])
                if any(answer.fault is not None for answer in answers):
                    answers = [await worker.evaluate(path, decisions[index].input) for index in batch]
                verdicts |= {index: read_verdict(answer) for index, answer in zip(batch, answers, strict=True)}
                progress(len(verdicts))
            if question in reasons:
                for index in (index for index in numbers if verdicts[index].ground is VerdictGround.DENIED):
                    stated = read_reasons(await worker.evaluate(reasons[question], decisions[index].input))
                    verdicts[index] = PolicyVerdict(ground=VerdictGround.DENIED, reasons=stated)
    silent = PolicyVerdict(ground=VerdictGround.ALLOWED, detail="the bundle does not cover this")
    return [verdicts.get(index, silent) for index in range(len(decisions))]


def _rule_outcome(path: str, answer: PolicyAnswer) -> TestOutcome:
    verdict = read_verdict(answer)
    detail = "" if verdict.allowed else f"{verdict.ground.value} {verdict.detail}".rstrip()
    return TestOutcome(name=path, passed=verdict.allowed, detail=detail)
