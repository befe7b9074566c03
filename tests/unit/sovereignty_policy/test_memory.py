"""Do equal requests share a question, and does nothing grow without end?"""

from __future__ import annotations

from datetime import UTC, datetime

from harch.hub.policy import decisions
from harch.hub.policy.decisions import DecisionBook, VerdictMemory, policy_question, shape_of
from harch.sovereignty.gates import AccessRequest
from harch.sovereignty.policy.document import ChangeQuestion, change_question, document_of, work_question
from harch.sovereignty.policy.verdict import PolicyVerdict, VerdictGround
from harch.workloads.spec import Resources, WorkloadSpec

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def question(spec: WorkloadSpec, tenant: str = "t") -> decisions.PolicyQuestion:
    ask = AccessRequest(id=spec.name, countries_allowed=spec.countries_allowed)
    return policy_question(work_question(spec, ask, hub="dakhla", tenant=tenant))


def test_requests_that_differ_in_name_only_are_the_same_question() -> None:
    one, other = WorkloadSpec(name="a", command=("x",)), WorkloadSpec(name="b", command=("y",))
    assert shape_of(one, "t") == shape_of(other, "t")
    assert question(one).digest == question(other).digest


def test_whatever_a_policy_can_see_tells_questions_apart() -> None:
    plain = WorkloadSpec(name="a")
    others = [
        WorkloadSpec(name="a", labels={"x": "y"}),
        WorkloadSpec(name="a", countries_allowed=("MA",)),
        WorkloadSpec(name="a", resources=Resources(gpus=1)),
        WorkloadSpec(name="a", tasks=2),
        WorkloadSpec(name="a", image="i"),
        WorkloadSpec(name="a", max_duration_s=5),
    ]
    digests = {question(spec).digest for spec in (plain, *others)} | {question(plain, "other").digest}
    shapes = {shape_of(spec, "t") for spec in (plain, *others)} | {shape_of(plain, "other")}
    assert len(digests) == len(shapes) == len(others) + 2


def test_no_command_and_no_environment_reaches_the_policy() -> None:
    document = document_of(
        question(WorkloadSpec(name="a", command=("secret-word",), env={"K": "secret-word"})).question
    )
    assert "secret-word" not in str(document)


def test_verdicts_are_remembered_and_faults_only_for_a_while() -> None:
    known = VerdictMemory()
    known.remember("a", PolicyVerdict(ground=VerdictGround.ALLOWED), now_s=0.0)
    known.remember("b", PolicyVerdict(ground=VerdictGround.CRASHED), now_s=0.0)
    known.remember("c", PolicyVerdict(ground=VerdictGround.UNAVAILABLE), now_s=0.0)
    assert known.verdict("a", 1e9) is not None
    assert known.verdict("b", decisions.FAULT_KEPT_S - 1) is not None
    assert known.verdict("b", decisions.FAULT_KEPT_S + 1) is None
    assert known.verdict("c", 0.0) is None
    known.forget()
    assert known.verdict("a", 0.0) is None


def test_the_memory_is_bounded() -> None:
    known = VerdictMemory()
    for number in range(decisions.QUESTIONS_MAX + 10):
        known.remember(str(number), PolicyVerdict(ground=VerdictGround.ALLOWED), now_s=0.0)
    assert known.verdict("0", 0.0) is None
    assert known.verdict(str(decisions.QUESTIONS_MAX + 9), 0.0) is not None


def test_equal_decisions_are_counted_and_taken_once() -> None:
    book = DecisionBook()
    same = question(WorkloadSpec(name="a"))
    for _ in range(3):
        book.count(same, PolicyVerdict(ground=VerdictGround.ALLOWED), NOW)
    book.count(same, PolicyVerdict(ground=VerdictGround.DENIED), NOW)
    assert sorted(entry.count for entry in book.take()) == [1, 3]
    assert book.take() == []


def test_a_planned_change_becomes_a_question() -> None:
    change = {
        "address": "harchos_hub.x",
        "type": "harchos_hub",
        "change": {
            "actions": ["delete", "create"],
            "before": {"country": "MA"},
            "after": {"country": "SN"},
            "after_unknown": {"id": True, "links": [{"id": True}]},
        },
    }
    found = change_question(change)
    assert isinstance(found, ChangeQuestion)
    assert (found.operation, found.unknown) == ("replace", ("id", "links[0].id"))
