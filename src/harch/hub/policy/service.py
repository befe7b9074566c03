"""May this be admitted, by the operators' own policy too? Asks the active bundle, remembers, and counts what was said.

Without an active bundle nothing is asked: a request costs one look into a table. With one, equal requests share one
question, whether they come together or later, and no question ever blocks the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from datetime import datetime

from harch.base.clock import Clock, iso
from harch.base.errors import HarchError
from harch.fleet.model import Fleet
from harch.hub.policy import decisions
from harch.hub.policy.decisions import (
    ActivePolicy,
    DecisionBook,
    PolicyQuestion,
    VerdictMemory,
    policy_question,
    shape_of,
)
from harch.hub.store.database import Database
from harch.hub.store.rows import Statement
from harch.sovereignty.audit.chain import POLICY_BUILTIN, Draft
from harch.sovereignty.compiled import Rules
from harch.sovereignty.gates import AccessRequest
from harch.sovereignty.geography import terrain_of
from harch.sovereignty.jurisdiction_file import jurisdictions_in_force
from harch.sovereignty.policy.bundle import PolicyBundle, bundle_of
from harch.sovereignty.policy.document import (
    ChangeQuestion,
    Document,
    compiled_answer,
    work_question,
    world_document,
)
from harch.sovereignty.policy.evaluation import PastDecision, PolicyEvaluator, run_tests, shipped_files
from harch.sovereignty.policy.verdict import PolicyVerdict, VerdictGround, refusal
from harch.wire.policies import PolicyStatus
from harch.workloads.spec import WorkloadSpec

SAVE_AFTER_S = 2.0

Write = Callable[[list[Statement], list[Draft]], asyncio.Future[None]]
Note = Callable[[str, str, str], None]  # kind, subject, message of an event

_log = logging.getLogger("harch.hub")


class HubPolicies:
    """The policies of one hub."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        hub_id: str,
        database: Database,
        clock: Clock,
        write: Write,
        note: Note,
        active: ActivePolicy | None = None,
    ) -> None:
        self._active = active or ActivePolicy(database)
        self._hub_id, self._database, self._clock, self._write, self._note = hub_id, database, clock, write, note
        jurisdictions = jurisdictions_in_force()
        self._rules = Rules(terrain_of(fleet, jurisdictions))
        self._world = world_document(self._rules.terrain, jurisdictions)
        self._memory, self._book = VerdictMemory(), DecisionBook()
        self._judging: dict[str, asyncio.Task[PolicyVerdict]] = {}  # by digest, for those who ask the same meanwhile
        self._tasks: set[asyncio.Task[PolicyVerdict]] = set()
        self._saving: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        self._judge: PolicyEvaluator | None = None
        self._problem = ""
        if self._active.bundle is not None:
            self._open(self._active.bundle)

    @property
    def version(self) -> str:
        """What the audit chain calls the rules in force."""
        return self._active.version

    def status(self) -> PolicyStatus:
        found = self._active.bundle
        if found is None:
            return PolicyStatus(active=False, digest=POLICY_BUILTIN, name="built-in rules")
        return PolicyStatus(
            active=True,
            digest=found.digest,
            name=found.name,
            version=found.version,
            activated_at=found.activated_at,
            actor=found.actor,
            problem=self._problem,
            worker_starts=self._judge.worker.starts if self._judge is not None else 0,
        )

    def world(self) -> Document:
        """What policies see as `data.world`."""
        return self._world

    # Admission

    async def admit(
        self, spec: WorkloadSpec, *, tenant: str, reads: AccessRequest | None = None, now: datetime | None = None
    ) -> None:
        """Returns if the active policy says yes, or if there is none. Raises E0931 to E0933 otherwise.

        `reads` for work that names data; its tags are part of the question. `now`: if the caller has read the clock.
        """
        if reads is None:
            question = self._question(spec, tenant)
        else:
            question = policy_question(work_question(spec, reads, hub=self._hub_id, tenant=tenant))
        verdict = self._memory.verdict(question.digest, self._clock.monotonic_s())
        if verdict is None:
            verdict = await self._judged(question)
        if verdict.policy != self.version:  # another policy came into force while this one was being asked
            verdict = await self._judged(question)
        self._book.count(question, verdict, now or self._clock.now())
        self._plan_save()
        # Without a bundle the rules in the hub's machine decide, and word their refusals better than is possible here.
        if self._active.bundle is not None and not verdict.allowed:
            raise refusal(verdict, f"{self._hub_id} does not admit this")

    async def judge_change(self, change: ChangeQuestion) -> PolicyVerdict:
        """Whether a planned change may be applied. A bundle without an entry point for changes permits them."""
        if self._active.bundle is None:
            return PolicyVerdict(ground=VerdictGround.ALLOWED, policy=POLICY_BUILTIN)
        if self._judge is None:
            return self._unavailable()
        return (await self._judge.decide(change)).verdict

    def _question(self, spec: WorkloadSpec, tenant: str) -> PolicyQuestion:
        shape = shape_of(spec, tenant)
        question = self._memory.question(shape)
        if question is None:
            reads = AccessRequest(id="", countries_allowed=spec.countries_allowed)
            question = policy_question(work_question(spec, reads, hub=self._hub_id, tenant=tenant))
            self._memory.remember_question(shape, question)
        return question

    async def _judged(self, question: PolicyQuestion) -> PolicyVerdict:
        if self._active.bundle is None:
            allowed = compiled_answer(self._rules, question.question)
            verdict = PolicyVerdict(
                ground=VerdictGround.ALLOWED if allowed else VerdictGround.DENIED, policy=POLICY_BUILTIN
            )
            self._memory.remember(question.digest, verdict, self._clock.monotonic_s())
            return verdict
        task = self._judging.get(question.digest)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._judge_question(question))
            self._judging[question.digest] = task
            self._tasks.add(task)
            task.add_done_callback(lambda done: self._answered(question.digest, done))
        # Shielded: one caller who gives up must not take the answer from the others.
        return await asyncio.shield(task)

    async def _judge_question(self, question: PolicyQuestion) -> PolicyVerdict:
        judge = self._judge
        if judge is None:
            return self._unavailable()
        opinions = await judge.decide(question.question)
        verdict = opinions.verdict
        if judge is self._judge:  # else another policy came into force meanwhile, and its memory is its own
            self._memory.remember(question.digest, verdict, self._clock.monotonic_s())
        if verdict.ground is VerdictGround.DISAGREEMENT:
            _log.error("policy: compiled rules and Rego disagree: %s %s", verdict.detail, question.document)
            self._note("policy.disagreement", self._hub_id, f"{verdict.detail}; question {question.digest[:16]}")
        elif verdict.is_fault:
            stated = f"{verdict.ground.value}: {verdict.detail}".rstrip(": ")
            self._note("policy.fault", self._hub_id, f"refused, because the policy failed: {stated}")
        return verdict

    def _answered(self, digest: str, done: asyncio.Task[PolicyVerdict]) -> None:
        self._tasks.discard(done)
        if self._judging.get(digest) is done:
            del self._judging[digest]

    def _unavailable(self) -> PolicyVerdict:
        return PolicyVerdict(ground=VerdictGround.UNAVAILABLE, detail=self._problem, policy=self.version)

    # Bundles

    async def activate(self, files: dict[str, str], *, actor: str) -> PolicyStatus:
        """Puts a bundle in force, if it compiles and passes its own tests. Else raises E0930 or E0934."""
        bundle = await asyncio.to_thread(_parsed, files)  # megabytes of Rego would hold up the event loop
        async with self._changing:
            failed = [outcome for outcome in await run_tests(bundle, self._world) if not outcome.passed]
            if failed:
                raise HarchError(
                    "E0930",
                    f"{len(failed)} tests of {bundle.title} fail, the first is {failed[0].name}: {failed[0].detail}",
                    hint="`harch policy test BUNDLE` shows all of them",
                )
            stored = decisions.StoredBundle(
                digest=bundle.digest,
                name=bundle.manifest.name,
                version=bundle.manifest.version,
                activated_at=iso(self._clock.now()),
                actor=actor,
                files=files,
            )
            draft = Draft(
                "policy.activated",
                bundle.digest,
                "done",
                actor=actor,
                policy_version=bundle.digest,
                details={"name": stored.name, "version": stored.version, "before": self.version},
            )
            await self._write([decisions.save_bundle(stored)], [draft])
            await self._put_in_force(stored, self._judge_of(bundle))
        self._note("policy.activated", self._hub_id, f"{bundle.title}, {bundle.digest[:16]}")
        return self.status()

    async def deactivate(self, *, actor: str) -> PolicyStatus:
        """Deactivates the bundle; the built-in rules remain. Raises E0935 if no bundle is active."""
        async with self._changing:
            if self._active.bundle is None:
                raise HarchError("E0935", "no policy bundle is active", hint="`harch policy activate BUNDLE`")
            draft = Draft(
                "policy.deactivated", self._active.bundle.digest, "done", actor=actor, policy_version=POLICY_BUILTIN
            )
            await self._write([decisions.drop_bundle()], [draft])
            await self._put_in_force(None, None)
        self._note("policy.deactivated", self._hub_id, "the built-in rules alone are in force")
        return self.status()

    async def _put_in_force(self, stored: decisions.StoredBundle | None, judge: PolicyEvaluator | None) -> None:
        former, self._judge = self._judge, judge
        self._active.bundle, self._problem = stored, ""
        self._memory.forget()
        self._judging.clear()  # later callers ask the new policy; earlier ones still get the answer they wait for
        if former is not None:
            await former.close()

    def _open(self, stored: decisions.StoredBundle) -> None:
        """After a restart. A bundle that cannot be read any more refuses everything."""
        try:
            self._judge = self._judge_of(_parsed(stored.files))
        except HarchError as error:
            self._problem = error.message
            _log.error("policy: the active bundle cannot be used, so nothing is admitted: %s", error.message)

    def _judge_of(self, bundle: PolicyBundle) -> PolicyEvaluator:
        """Its worker starts with the first question."""
        return PolicyEvaluator(bundle, self._rules, self._world, clock=self._clock)

    # Decisions

    async def decisions(self, limit: int) -> list[PastDecision]:
        """The last ones, up to now."""
        await self._save()
        return await asyncio.to_thread(decisions.last_decisions, self._database, limit)

    def _plan_save(self) -> None:
        """Soon, and once for all that is counted until then. What a crash loses are a few counts, never a verdict."""
        if self._saving is None:
            self._saving = asyncio.get_running_loop().create_task(self._save_soon())

    async def _save_soon(self) -> None:
        await self._clock.sleep(SAVE_AFTER_S)
        self._saving = None
        with contextlib.suppress(HarchError):  # the disk: whoever owns it says so
            await self._save()

    async def close(self) -> None:
        if self._saving is not None:
            self._saving.cancel()
        with contextlib.suppress(HarchError):
            await self._save()
        for task in list(self._tasks):
            task.cancel()
        if self._judge is not None:
            await self._judge.close()

    async def _save(self) -> None:
        statements = decisions.save_decisions(self._book.take())
        if statements:
            await self._write(statements, [])


def _parsed(files: dict[str, str]) -> PolicyBundle:
    contents = {name: text.encode() for name, text in files.items()}
    return bundle_of(contents, shipped=contents == shipped_files())
