"""Does a policy get to see what is the case, and is each of its words taken for what it is?"""

from __future__ import annotations

import pytest

from harch.fleet.file import shipped_fleet
from harch.sovereignty.compiled import Rules
from harch.sovereignty.gates import AccessRequest
from harch.sovereignty.geography import LegalSite, Passage, Terrain, terrain_of
from harch.sovereignty.jurisdiction_file import shipped_jurisdictions
from harch.sovereignty.policy.document import (
    DataQuestion,
    WorkQuestion,
    change_question,
    compiled_answer,
    document_of,
    work_question,
    world_document,
)
from harch.sovereignty.policy.verdict import (
    DETAIL_CHARS_MAX,
    REASONS_MAX,
    PolicyAnswer,
    PolicyVerdict,
    VerdictGround,
    read_reasons,
    read_verdict,
    refusal,
)
from harch.sovereignty.tags import Classification, DataKind, DataObject, Tag
from harch.workloads.spec import Resources, WorkloadSpec

REGISTRY = shipped_jurisdictions()
TAG = Tag(
    process_in=("MA", "SN"),
    rest_in=("MA",),
    transit_in=(),
    may_cross_borders=False,
    frameworks=(),
    classification=Classification.INTERNAL,
    encrypt_at_rest=False,
    encrypt_in_transit=False,
    key_in=(),
)
DATA = DataObject(id="d", kind=DataKind.DATASET, name="d", tenant="t", tag=TAG, hubs=("a",))
WORLD = Terrain(
    (
        LegalSite(hub="a", country="MA", frameworks=("law",), encrypts_at_rest=True, keys_in=("MA",)),
        LegalSite(hub="b", country="MA"),
        LegalSite(hub="c", country="SN"),
    ),
    (
        Passage(ends=("a", "b"), rtt_ms=3.0, countries_crossed=("MA", "MA"), encrypted=True),
        Passage(ends=("b", "c"), rtt_ms=9.0, countries_crossed=("SN", "MR", "MA")),
        Passage(ends=("a", "ghost"), rtt_ms=1.0, countries_crossed=("MA",)),
    ),
)


# What is asked


@pytest.mark.parametrize(
    ("change", "operation", "unknown"),
    [
        ({"actions": ["create"], "after": {"x": 1}, "after_unknown": {"id": True}}, "create", ("id",)),
        ({"actions": ["delete", "create"]}, "replace", ()),
        (
            {"actions": ["update"], "after_unknown": {"b": [False, {"c": True}], "a": {"d": True}}},
            "update",
            ("a.d", "b[1].c"),
        ),
        ({"actions": []}, "no-op", ()),
        ({}, "no-op", ()),
        ({"actions": ["read"], "after_unknown": True}, "read", ("",)),
        (None, "no-op", ()),
        ("text", "no-op", ()),
    ],
)
def test_a_planned_change_becomes_a_question_with_what_is_not_known_of_it(
    change: object, operation: str, unknown: tuple[str, ...]
) -> None:
    question = change_question({"type": "harchos_hub", "address": "harchos_hub.a", "change": change})
    assert (question.operation, question.unknown) == (operation, unknown)
    assert (question.resource_type, question.address) == ("harchos_hub", "harchos_hub.a")
    body = change if isinstance(change, dict) else {}
    assert (question.before, question.after) == (body.get("before"), body.get("after"))


def test_a_change_has_its_values_before_and_after() -> None:
    question = change_question({"change": {"actions": ["update"], "before": {"x": 1}, "after": {"x": 2}}})
    assert (question.before, question.after) == ({"x": 1}, {"x": 2})
    assert (question.resource_type, question.address) == ("", "")


def test_work_becomes_a_question_without_its_command() -> None:
    spec = WorkloadSpec(
        name="w",
        command=("run", "--password=x"),
        tasks=2,
        resources=Resources(gpus=4),
        env={"TOKEN": "x"},
        labels={"project": "p"},
        secrets=("KEY",),
    )
    access = AccessRequest(id="w", countries_allowed=("MA",), reads=(DATA,), not_found=("ghost",))
    question = work_question(spec, access, hub="a", tenant="t")
    assert (question.hub, question.tenant, question.data, question.not_found) == ("a", "t", (DATA,), ("ghost",))
    assert question.workload == {
        "type": "batch",
        "priority": spec.priority.value,
        "tasks": 2,
        "gpus": 4,
        "gpus_total": 8,
        "gpu_model": spec.resources.gpu_model,
        "countries_allowed": ["MA"],
        "image": spec.image,
        "labels": {"project": "p"},
        "secrets": ["KEY"],
        "max_duration_s": spec.max_duration_s,
    }
    document = document_of(question)
    assert "password" not in str(document)
    assert document["action"] == "workload"


# What the masks say to it


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (DataQuestion(action="process", hub="a", tag=TAG), True),
        (DataQuestion(action="process", hub="c", tag=TAG), True),
        (DataQuestion(action="process", hub="c", tag=None), False),
        (DataQuestion(action="rest", hub="a", tag=TAG), True),
        (DataQuestion(action="rest", hub="c", tag=TAG), False),
        (DataQuestion(action="move", source="a", hub="b", tag=TAG), True),
        (DataQuestion(action="move", source="a", hub="c", tag=TAG), False),
        (DataQuestion(action="see", source="a", hub="b", tag=TAG), True),
        (DataQuestion(action="see", source="b", hub="c", tag=TAG), False),
        (WorkQuestion(hub="b", workload={}, data=(DATA,)), True),
        (WorkQuestion(hub="c", workload={}, data=(DATA,)), False),
        (WorkQuestion(hub="c", workload={}), True),
        (WorkQuestion(hub="c", workload={"countries_allowed": ["MA"]}), False),
        (WorkQuestion(hub="a", workload={"countries_allowed": ["MA"]}), True),
        (WorkQuestion(hub="a", workload={"countries_allowed": "SN"}), True),
        (WorkQuestion(hub="a", workload={}, not_found=("ghost",)), False),
        (WorkQuestion(hub="ghost", workload={}), False),
    ],
)
def test_the_compiled_rules_answer_the_same_question(question: DataQuestion | WorkQuestion, answer: bool) -> None:
    assert compiled_answer(Rules(WORLD), question) is answer


def test_the_world_is_reported_as_it_is_without_links_to_nowhere() -> None:
    reported = world_document(WORLD, REGISTRY)
    assert reported["hubs"] == {
        "a": {"country": "MA", "frameworks": ["law"], "encrypts_at_rest": True, "keys_in": ["MA"]},
        "b": {"country": "MA", "frameworks": [], "encrypts_at_rest": False, "keys_in": []},
        "c": {"country": "SN", "frameworks": [], "encrypts_at_rest": False, "keys_in": []},
    }
    assert reported["links"] == [
        {"ends": ["a", "b"], "rtt_ms": 3.0, "countries_crossed": ["MA"], "international": False, "encrypted": True},
        {
            "ends": ["b", "c"],
            "rtt_ms": 9.0,
            "countries_crossed": ["MA", "MR", "SN"],
            "international": True,
            "encrypted": False,
        },
    ]
    assert reported["countries"] == REGISTRY.countries
    assert reported["groups"]["EU"] == list(REGISTRY.groups["EU"].countries)  # type: ignore[index]
    assert reported["frameworks"]["gdpr"]["in_force"] == list(REGISTRY.frameworks["gdpr"].in_force)  # type: ignore[index]
    shipped = world_document(terrain_of(shipped_fleet("five-hubs"), REGISTRY), REGISTRY)
    assert len(shipped["links"]) == len(shipped_fleet("five-hubs").links)  # type: ignore[arg-type]


# What came back


def test_a_verdict_carries_the_policy_and_cuts_what_is_too_long() -> None:
    long = "x" * (DETAIL_CHARS_MAX + 1)
    fault = read_verdict(PolicyAnswer(fault=VerdictGround.CRASHED, detail=long), policy="p")
    assert fault == PolicyVerdict(ground=VerdictGround.CRASHED, detail=long[:-1], policy="p")
    unreadable = read_verdict(PolicyAnswer(text=long), policy="p")
    assert unreadable == PolicyVerdict(ground=VerdictGround.UNREADABLE, detail=f"{long[:-1]}…", policy="p")
    exact = read_verdict(PolicyAnswer(text=long[:-1]), policy="p")
    assert exact.detail == long[:-1]
    odd = read_verdict(PolicyAnswer(text='{"expressions":[1]}'), policy="p")
    assert odd == PolicyVerdict(ground=VerdictGround.NOT_BOOLEAN, detail='it returned {"expressions":[1]}', policy="p")
    assert read_verdict(PolicyAnswer(text='{"expressions":[true]}'), policy="p") == PolicyVerdict(
        ground=VerdictGround.ALLOWED, policy="p"
    )
    assert read_verdict(PolicyAnswer(text="error: x"), policy="p").ground is VerdictGround.ENGINE_ERROR


def test_reasons_are_strings_and_not_too_many_and_no_reason_is_an_error() -> None:
    def reasons(value: str) -> tuple[str, ...]:
        return read_reasons(PolicyAnswer(text=f'{{"expressions":[{value}]}}'))

    assert reasons('["b", 1, null]') == ("b", "1", "None")
    assert reasons(str(list(range(REASONS_MAX + 1)))) == tuple(str(n) for n in range(REASONS_MAX))
    assert reasons(f'["{"x" * (DETAIL_CHARS_MAX + 1)}"]') == ("x" * DETAIL_CHARS_MAX,)
    assert reasons('"text"') == reasons("{}") == reasons("true") == ()
    assert read_reasons(None) == read_reasons(PolicyAnswer(text="undefined")) == ()
    assert read_reasons(PolicyAnswer(text='{"expressions":[["x"]]}', fault=VerdictGround.CRASHED)) == ()


G = VerdictGround
BY_CHANCE = {G.CRASHED, G.TIMED_OUT, G.UNREADABLE, G.DISAGREEMENT}


@pytest.mark.parametrize("ground", VerdictGround)
def test_a_ground_says_whether_it_is_a_fault_and_what_to_do_with_the_answer(ground: VerdictGround) -> None:
    verdict = PolicyVerdict(ground=ground)
    assert verdict.allowed is (ground is G.ALLOWED)
    assert verdict.is_fault is (ground not in (G.ALLOWED, G.DENIED))
    by_input = {G.ALLOWED, G.DENIED, G.UNDEFINED, G.NOT_BOOLEAN, G.ENGINE_ERROR}
    assert verdict.follows_from_input is (ground in by_input)
    assert verdict.worth_avoiding is (ground in BY_CHANCE)


@pytest.mark.parametrize(
    ("verdict", "code", "message", "hint", "retry_after_s"),
    [
        (
            PolicyVerdict(ground=G.DISAGREEMENT, detail="one says yes"),
            "E0933",
            "it: one says yes",
            "`harch events` has the case; report it as a bug",
            None,
        ),
        (
            PolicyVerdict(ground=G.DENIED),
            "E0931",
            "it: denied by policy: no reason given",
            "`harch policy explain` shows every rule",
            None,
        ),
        (
            PolicyVerdict(ground=G.TIMED_OUT),
            "E0932",
            "it: the policy took too long, and anything but a clear yes is denied",
            "find the rule with `harch policy test BUNDLE`",
            None,
        ),
        (
            PolicyVerdict(ground=G.OVERLOADED, detail="9 wait"),
            "E0932",
            "it: the policy queue is full (9 wait), and anything but a clear yes is denied",
            "try again in a moment",
            2,
        ),
        (
            PolicyVerdict(ground=G.UNAVAILABLE),
            "E0932",
            "it: the policy worker is not running, and anything but a clear yes is denied",
            "try again in a moment",
            2,
        ),
    ],
)
def test_a_no_tells_people_what_to_do(
    verdict: PolicyVerdict, code: str, message: str, hint: str, retry_after_s: int | None
) -> None:
    error = refusal(verdict, "it")
    assert (error.code, error.message, error.hint, error.retry_after_s) == (code, message, hint, retry_after_s)
    assert error.meta == {"rule": "policy", "ground": verdict.ground.value, "policy": ""}
