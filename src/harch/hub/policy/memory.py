"""What has the policy said before? Verdicts for equal questions, and a bounded book of decisions."""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime
from typing import TypeVar

from msgspec import Struct

from harch.sovereignty.policy.bundle import digest_of
from harch.sovereignty.policy.document import Document, WorkQuestion, document_of
from harch.sovereignty.policy.verdict import Verdict
from harch.workloads.spec import WorkloadSpec

QUESTIONS_MAX = 8192
FAULT_KEPT_S = 30.0  # a question that killed a worker is not asked again for so long
DECISIONS_UNSAVED_MAX = 4096

K = TypeVar("K")
V = TypeVar("V")
Shape = tuple[object, ...]


class Asked(Struct, frozen=True):
    """A question with its digest, made once per shape of request."""

    question: WorkQuestion
    document: Document
    digest: str


class Counted(Struct):
    """Decisions of one kind since the last save."""

    asked: Asked
    verdict: Verdict
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


def asked(question: WorkQuestion) -> Asked:
    document = document_of(question)
    return Asked(question, document, digest_of(document))


class VerdictMemory:
    """Questions by shape and verdicts by digest. `forget` when the policy or the world changes."""

    def __init__(self) -> None:
        self._asked: OrderedDict[Shape, Asked] = OrderedDict()
        self._verdicts: OrderedDict[str, tuple[Verdict, float]] = OrderedDict()

    def question(self, shape: Shape) -> Asked | None:
        return self._asked.get(shape)

    def remember_question(self, shape: Shape, question: Asked) -> None:
        _put(self._asked, shape, question)

    def verdict(self, digest: str, now_s: float) -> Verdict | None:
        found = self._verdicts.get(digest)
        return found[0] if found is not None and now_s < found[1] else None

    def remember(self, digest: str, verdict: Verdict, now_s: float) -> None:
        if verdict.follows_from_input:
            _put(self._verdicts, digest, (verdict, float("inf")))
        elif verdict.worth_avoiding:
            _put(self._verdicts, digest, (verdict, now_s + FAULT_KEPT_S))

    def forget(self) -> None:
        self._asked.clear()
        self._verdicts.clear()


class DecisionBook:
    """Counts equal decisions until somebody saves them. When it is full, what comes new is not kept."""

    def __init__(self) -> None:
        self._counted: dict[tuple[str, str, str], Counted] = {}

    def count(self, question: Asked, verdict: Verdict, now: datetime) -> None:
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
