"""Is anything but exactly `true` a no, with a reason that people can act on?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.sovereignty.policy.verdict import PolicyAnswer, PolicyVerdict, VerdictGround, read_verdict, refusal


@pytest.mark.parametrize(
    ("text", "ground"),
    [
        ('{"expressions":[true]}', VerdictGround.ALLOWED),
        ('{"expressions":[false]}', VerdictGround.DENIED),
        ("undefined", VerdictGround.UNDEFINED),
        ("<error>", VerdictGround.ENGINE_ERROR),
        ('{"expressions":[1]}', VerdictGround.NOT_BOOLEAN),
        ('{"expressions":["true"]}', VerdictGround.NOT_BOOLEAN),
        ('{"expressions":[null]}', VerdictGround.NOT_BOOLEAN),
        ('{"expressions":[[true]]}', VerdictGround.NOT_BOOLEAN),
        ('{"expressions":[true,true]}', VerdictGround.UNREADABLE),
        ('{"expressions":[]}', VerdictGround.UNREADABLE),
        ('[{"expressions":[true]}]', VerdictGround.UNREADABLE),
        ('{"expressions":[true], "bindings":{"x":1}}', VerdictGround.UNREADABLE),
        ("true", VerdictGround.UNREADABLE),
        ("", VerdictGround.UNREADABLE),
    ],
)
def test_an_answer_means_what_it_says_and_nothing_more(text: str, ground: VerdictGround) -> None:
    verdict = read_verdict(PolicyAnswer(text=text))
    assert verdict.ground is ground
    assert verdict.allowed == (ground is VerdictGround.ALLOWED)


@given(st.text())
def test_no_text_but_one_allows(text: str) -> None:
    assert not read_verdict(PolicyAnswer(text=text)).allowed


@given(st.sampled_from([ground for ground in VerdictGround if ground is not VerdictGround.ALLOWED]))
def test_a_fault_never_allows_whatever_text_came_with_it(ground: VerdictGround) -> None:
    assert not read_verdict(PolicyAnswer(text='{"expressions":[true]}', fault=ground)).allowed


@pytest.mark.parametrize("ground", [ground for ground in VerdictGround if ground is not VerdictGround.ALLOWED])
def test_every_no_becomes_an_error_with_a_hint(ground: VerdictGround) -> None:
    error = refusal(PolicyVerdict(ground=ground, policy="p"), "dakhla does not admit this")
    assert error.code in {"E0931", "E0932", "E0933"}
    assert error.hint
    assert error.meta["ground"] == ground.value
    assert error.kind.exit_code == 4


def test_the_reasons_of_the_policy_are_shown() -> None:
    reasons = PolicyAnswer(text='{"expressions":[["no project","too many GPUs"]]}')
    verdict = read_verdict(PolicyAnswer(text='{"expressions":[false]}'), reasons=reasons)
    assert verdict.reasons == ("no project", "too many GPUs")
    assert "no project; too many GPUs" in refusal(verdict, "it").message
