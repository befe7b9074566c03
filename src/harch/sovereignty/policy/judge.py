"""What do all rules together say? The bundle, the default policy in Rego and the compiled rules, asked side by side.

A yes needs all of them. Where the default policy and the compiled rules differ, one of them is wrong: it is no, and the
caller is told, so that somebody looks.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from harch.base.clock import Clock
from harch.sovereignty.compiled import Rules
from harch.sovereignty.policy.bundle import PolicyBundle
from harch.sovereignty.policy.document import (
    ChangeQuestion,
    DataQuestion,
    Document,
    Question,
    WorkQuestion,
    compiled_answer,
    document_of,
)
from harch.sovereignty.policy.folder import default_bundle
from harch.sovereignty.policy.lint import WORLD_ROOT
from harch.sovereignty.policy.supervisor import Limits, PolicyWorker, Program
from harch.sovereignty.policy.verdict import Answer, Ground, Verdict, read_reasons, read_verdict

DEFAULT_ALLOW, DEFAULT_DENY = "harch/sovereignty/allow", "harch/sovereignty/deny"
_QUESTION_OF = {WorkQuestion: "workload", ChangeQuestion: "change"}


class Opinions(Struct, frozen=True, kw_only=True):
    """One question, three answers. `verdict` is what counts; `compiled` is None where no compiled rule applies."""

    verdict: Verdict
    bundle: Verdict
    default: Verdict | None
    compiled: bool | None


def program_of(bundle: PolicyBundle, world: Document, *, with_tests: bool = False) -> Program:
    """The bundle together with the default policy and what HarchOS says of the world."""
    default = default_bundle()
    tests = {f"bundle/{name}": text for name, text in bundle.tests.items()} if with_tests else {}
    own = {} if bundle.digest == default.digest else {f"bundle/{name}": text for name, text in bundle.modules.items()}
    return Program(
        modules={**{f"default/{name}": text for name, text in default.modules.items()}, **own, **tests},
        data={**bundle.data, WORLD_ROOT: world},
        entrypoints=tuple(
            dict.fromkeys((*bundle.paths, DEFAULT_ALLOW, DEFAULT_DENY, *(bundle.test_paths if with_tests else ())))
        ),
    )


class Judge:
    """One bundle with its worker. Close it when done."""

    def __init__(
        self,
        bundle: PolicyBundle,
        rules: Rules,
        world: Document,
        *,
        limits: Limits | None = None,
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

    def _opinions(self, question: DataQuestion | WorkQuestion, bundle: Verdict, default: Verdict) -> Opinions:
        compiled = compiled_answer(self._rules, question)
        verdict = bundle
        if not default.is_fault and default.allowed != compiled:
            verdict = Verdict(
                ground=Ground.DISAGREEMENT,
                detail=f"Rego says {'yes' if default.allowed else 'no'} and the compiled rules say the opposite",
                policy=self.bundle.digest,
            )
        elif default.is_fault or not compiled:
            # The default policy speaks for the compiled rules, so its fault or its no outweighs the bundle's yes.
            verdict = default if bundle.allowed else bundle
        return Opinions(verdict=verdict, bundle=bundle, default=default, compiled=compiled)

    async def _verdicts(self, path: str | None, reasons_path: str | None, documents: Sequence[object]) -> list[Verdict]:
        digest = self.bundle.digest
        if path is None:
            return [Verdict(ground=Ground.ALLOWED, detail="the bundle does not ask about this", policy=digest)] * len(
                documents
            )
        answers = await self.worker.ask_many(path, documents)
        verdicts = [read_verdict(answer, policy=digest) for answer in answers]
        refused = [index for index, verdict in enumerate(verdicts) if verdict.ground is Ground.DENIED]
        if reasons_path is not None and refused:
            why = await self.worker.ask_many(reasons_path, [documents[index] for index in refused])
            for index, answer in zip(refused, why, strict=True):
                verdicts[index] = _with_reasons(verdicts[index], answer)
        return verdicts

    def _entry(self, question: Question) -> str:
        # The default policy answers questions about data by the same entry point as those about work.
        return "workload" if isinstance(question, DataQuestion) else _QUESTION_OF[type(question)]


def _with_reasons(verdict: Verdict, answer: Answer) -> Verdict:
    return Verdict(ground=verdict.ground, reasons=read_reasons(answer), policy=verdict.policy)
