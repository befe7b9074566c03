"""What has the policy said before? Verdicts for equal questions, and a bounded book of decisions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from datetime import datetime
from typing import TypeVar

import msgspec
from msgspec import Struct

from harch.base.clock import iso
from harch.hub.store.database import Database
from harch.hub.store.rows import Statement
from harch.sovereignty.audit.chain import POLICY_BUILTIN
from harch.sovereignty.policy.bundle import digest_of
from harch.sovereignty.policy.document import Document, WorkQuestion, document_of
from harch.sovereignty.policy.evaluation import PastDecision
from harch.sovereignty.policy.verdict import PolicyVerdict
from harch.workloads.spec import WorkloadSpec

QUESTIONS_MAX = 8192
FAULT_KEPT_S = 30.0  # a question that killed a worker is not asked again for so long
DECISIONS_UNSAVED_MAX = 4096

K = TypeVar("K")
V = TypeVar("V")
Shape = tuple[object, ...]


class PolicyQuestion(Struct, frozen=True):
    """A question with its digest, made once per shape of request."""

    question: WorkQuestion
    document: Document
    digest: str


class Counted(Struct):
    """Decisions of one kind since the last save."""

    policy_question: PolicyQuestion
    verdict: PolicyVerdict
    count: int
    first_at: datetime
    last_at: datetime


def shape_of(spec: WorkloadSpec, tenant: str) -> Shape:
    """Equal shapes ask equal questions; hashing these few fields is much cheaper than writing the document."""
    return (
        tenant,
        spec.type,
        spec.priority,
        spec.resources,
        spec.tasks,
        spec.countries_allowed,
        spec.image,
        spec.secrets,
        spec.max_duration_s,
        tuple(spec.labels.items()),
    )


def policy_question(question: WorkQuestion) -> PolicyQuestion:
    document = document_of(question)
    return PolicyQuestion(question, document, digest_of(document))


class VerdictMemory:
    """Questions by shape and verdicts by digest. `forget` when the policy or the world changes."""

    def __init__(self) -> None:
        self._questions: OrderedDict[Shape, PolicyQuestion] = OrderedDict()
        self._verdicts: OrderedDict[str, tuple[PolicyVerdict, float]] = OrderedDict()

    def question(self, shape: Shape) -> PolicyQuestion | None:
        return self._questions.get(shape)

    def remember_question(self, shape: Shape, question: PolicyQuestion) -> None:
        _put(self._questions, shape, question)

    def verdict(self, digest: str, now_s: float) -> PolicyVerdict | None:
        found = self._verdicts.get(digest)
        return found[0] if found is not None and now_s < found[1] else None

    def remember(self, digest: str, verdict: PolicyVerdict, now_s: float) -> None:
        if verdict.follows_from_input:
            _put(self._verdicts, digest, (verdict, float("inf")))
        elif verdict.worth_avoiding:
            _put(self._verdicts, digest, (verdict, now_s + FAULT_KEPT_S))

    def forget(self) -> None:
        self._questions.clear()
        self._verdicts.clear()


class DecisionBook:
    """Counts equal decisions until somebody saves them. When it is full, what comes new is not kept."""

    def __init__(self) -> None:
        self._counted: dict[tuple[str, str, str], Counted] = {}

    def count(self, question: PolicyQuestion, verdict: PolicyVerdict, now: datetime) -> None:
        key = (question.digest, verdict.policy, verdict.ground.value)
        known = self._counted.get(key)
        if known is not None:
            known.count += 1
            known.last_at = now
        elif len(self._counted) < DECISIONS_UNSAVED_MAX:
            self._counted[key] = Counted(question, verdict, 1, now, now)

    def take(self) -> list[Counted]:
        """Everything since the last call."""
        counted, self._counted = self._counted, {}
        return list(counted.values())


def _put(memory: OrderedDict[K, V], key: K, value: V) -> None:
    memory[key] = value
    if len(memory) > QUESTIONS_MAX:
        memory.popitem(last=False)


# How do bundles and decisions become rows? Statements to run, and what to read back.


ACTIVE = "active"
DECISIONS_MAX = 20_000  # distinct ones; the oldest go first

_encode = msgspec.json.Encoder().encode
_decode_files = msgspec.json.Decoder(dict[str, str]).decode
_decode_input = msgspec.json.Decoder(Document).decode


class StoredBundle(Struct, frozen=True, kw_only=True):
    """A bundle as it was activated."""

    digest: str
    name: str
    version: str
    activated_at: str
    actor: str
    files: dict[str, str]


def save_bundle(bundle: StoredBundle) -> Statement:
    return (
        "INSERT INTO policy_bundles (role, digest, name, version, activated_at, actor, files)"
        " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (role) DO UPDATE SET digest = excluded.digest,"
        " name = excluded.name, version = excluded.version, activated_at = excluded.activated_at,"
        " actor = excluded.actor, files = excluded.files",
        (
            ACTIVE,
            bundle.digest,
            bundle.name,
            bundle.version,
            bundle.activated_at,
            bundle.actor,
            _encode(bundle.files),
        ),
    )


def drop_bundle() -> Statement:
    return "DELETE FROM policy_bundles WHERE role = ?", (ACTIVE,)


def active_bundle(database: Database) -> StoredBundle | None:
    found = database.query(
        "SELECT digest, name, version, activated_at, actor, files FROM policy_bundles WHERE role = ?", (ACTIVE,)
    )
    for digest, name, version, activated_at, actor, files in found:
        return StoredBundle(
            digest=str(digest),
            name=str(name),
            version=str(version),
            activated_at=str(activated_at),
            actor=str(actor),
            files=_decode_files(files),
        )
    return None


def save_decisions(counted: Iterable[Counted]) -> list[Statement]:
    statements: list[Statement] = [
        (
            "INSERT INTO policy_decisions (digest, policy, ground, question, allowed, count, first_at, last_at, input)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (digest, policy, ground) DO UPDATE SET"
            " count = policy_decisions.count + excluded.count, last_at = excluded.last_at",
            (
                entry.policy_question.digest,
                entry.verdict.policy,
                entry.verdict.ground.value,
                "workload",
                int(entry.verdict.allowed),
                entry.count,
                iso(entry.first_at),
                iso(entry.last_at),
                _encode(entry.policy_question.document),
            ),
        )
        for entry in counted
    ]
    if statements:
        statements.append(
            (
                "DELETE FROM policy_decisions WHERE last_at < (SELECT last_at FROM policy_decisions"
                " ORDER BY last_at DESC LIMIT 1 OFFSET ?)",
                (DECISIONS_MAX,),
            )
        )
    return statements


def last_decisions(database: Database, limit: int) -> list[PastDecision]:
    """The newest ones, as many kinds as it takes to reach `limit` decisions."""
    found = database.query(
        "SELECT question, input, count, allowed, ground, policy, first_at, last_at FROM policy_decisions"
        " ORDER BY last_at DESC LIMIT ?",
        (min(limit, DECISIONS_MAX),),
    )
    decisions: list[PastDecision] = []
    left = limit
    for question, body, count, allowed, ground, policy, first_at, last_at in found:
        if left <= 0:
            break
        taken = min(int(count), left)
        left -= taken
        decisions.append(
            PastDecision(
                question=str(question),
                input=_decode_input(body),
                count=taken,
                allowed=bool(allowed),
                ground=str(ground),
                policy=str(policy),
                first_at=str(first_at),
                last_at=str(last_at),
            )
        )
    return decisions


class ActivePolicy:
    """The bundle in force at one hub; None: the built-in rules alone. Read from disk before anything is decided."""

    def __init__(self, database: Database) -> None:
        self.bundle = active_bundle(database)

    @property
    def version(self) -> str:
        """What the audit chain calls the rules in force."""
        return self.bundle.digest if self.bundle is not None else POLICY_BUILTIN
