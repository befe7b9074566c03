"""Does a bundle do what its authors say? Compiles it, runs its tests, and compares two bundles on past decisions."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from harch.sovereignty.policy.bundle import PolicyBundle
from harch.sovereignty.policy.document import Document
from harch.sovereignty.policy.judge import program_of
from harch.sovereignty.policy.supervisor import Limits, PolicyWorker
from harch.sovereignty.policy.verdict import Answer, Ground, Verdict, read_reasons, read_verdict

BATCH = 100
# A trial may crash as often as it likes: nobody's work waits for it.
_PATIENT = Limits(restarts_max=10_000, pause_s_first=0.0)


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
    old: Verdict
    new: Verdict


async def compile_bundle(bundle: PolicyBundle, world: Document) -> None:
    """Raises E0930 if the engine cannot compile the bundle with its tests, E0934 without an engine."""
    async with PolicyWorker(program_of(bundle, world, with_tests=True)):
        pass


async def run_tests(bundle: PolicyBundle, world: Document) -> list[TestOutcome]:
    """Every test, each on its own: one that crashes the worker fails alone."""
    async with PolicyWorker(program_of(bundle, world, with_tests=True), limits=_PATIENT) as worker:
        outcomes = [_rule_outcome(path, await worker.ask(path, {})) for path in bundle.test_paths]
        for case in bundle.cases:
            verdict = read_verdict(await worker.ask(bundle.manifest.entrypoints[case.question], case.input))
            wanted = "allow" if case.allow else "deny"
            # A fault denies too, but nobody writes a test to be satisfied with that.
            passed = not verdict.is_fault and verdict.allowed == case.allow
            detail = "" if passed else f"wanted {wanted}, got {verdict.ground.value} {verdict.detail}".rstrip()
            outcomes.append(TestOutcome(name=case.name, passed=passed, detail=detail))
    return outcomes


async def replay(
    old: PolicyBundle, new: PolicyBundle, world: Document, decisions: Sequence[PastDecision]
) -> list[Difference]:
    """Which of these decisions the new bundle would have changed, most frequent first."""
    before = await _verdicts(old, world, decisions)
    after = await _verdicts(new, world, decisions)
    found = [
        Difference(input=decision.input, count=decision.count, old=one, new=other)
        for decision, one, other in zip(decisions, before, after, strict=True)
        if one.allowed != other.allowed
    ]
    return sorted(found, key=lambda difference: -difference.count)


async def _verdicts(bundle: PolicyBundle, world: Document, decisions: Sequence[PastDecision]) -> list[Verdict]:
    """Batches first; a batch with a fault is asked again one by one, so that only the guilty question bears it."""
    verdicts: dict[int, Verdict] = {}
    reasons = bundle.manifest.reasons
    async with PolicyWorker(program_of(bundle, world), limits=_PATIENT) as worker:
        for question, path in bundle.manifest.entrypoints.items():
            numbers = [index for index, decision in enumerate(decisions) if decision.question == question]
            for start in range(0, len(numbers), BATCH):
                batch = numbers[start : start + BATCH]
                answers = await worker.ask_many(path, [decisions[index].input for index in batch])
                if any(answer.fault is not None for answer in answers):
                    answers = [await worker.ask(path, decisions[index].input) for index in batch]
                verdicts |= {index: read_verdict(answer) for index, answer in zip(batch, answers, strict=True)}
            if question in reasons:
                for index in (index for index in numbers if verdicts[index].ground is Ground.DENIED):
                    said = read_reasons(await worker.ask(reasons[question], decisions[index].input))
                    verdicts[index] = Verdict(ground=Ground.DENIED, reasons=said)
    silent = Verdict(ground=Ground.ALLOWED, detail="the bundle does not ask about this")
    return [verdicts.get(index, silent) for index in range(len(decisions))]


def _rule_outcome(path: str, answer: Answer) -> TestOutcome:
    verdict = read_verdict(answer)
    detail = "" if verdict.allowed else f"{verdict.ground.value} {verdict.detail}".rstrip()
    return TestOutcome(name=path, passed=verdict.allowed, detail=detail)
