"""Is anything but exactly `true` a no, with a reason that people can act on?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.sovereignty.policy.verdict import Answer, Ground, Verdict, read_verdict, refusal


@pytest.mark.parametrize(
    ("text", "ground"),
    [
        ('{"expressions":[true]}', Ground.ALLOWED),
        ('{"expressions":[false]}', Ground.DENIED),
        ("undefined", Ground.UNDEFINED),
        ("<error>", Ground.ENGINE_ERROR),
        ('{"expressions":[1]}', Ground.NOT_BOOLEAN),
        ('{"expressions":["true"]}', Ground.NOT_BOOLEAN),
        ('{"expressions":[null]}', Ground.NOT_BOOLEAN),
        ('{"expressions":[[true]]}', Ground.NOT_BOOLEAN),
        ('{"expressions":[true,true]}', Ground.UNREADABLE),
        ('{"expressions":[]}', Ground.UNREADABLE),
        ('[{"expressions":[true]}]', Ground.UNREADABLE),
        ('{"expressions":[true], "bindings":{"x":1}}', Ground.UNREADABLE),
        ("true", Ground.UNREADABLE),
        ("", Ground.UNREADABLE),
    ],
)
def test_an_answer_means_what_it_says_and_nothing_more(text: str, ground: Ground) -> None:
    verdict = read_verdict(Answer(text=text))
    assert verdict.ground is ground
    assert verdict.allowed == (ground is Ground.ALLOWED)


@given(st.text())
def test_no_text_but_one_allows(text: str) -> None:
    assert not read_verdict(Answer(text=text)).allowed


@given(st.sampled_from([ground for ground in Ground if ground is not Ground.ALLOWED]))
def test_a_fault_never_allows_whatever_text_came_with_it(ground: Ground) -> None:
    assert not read_verdict(Answer(text='{"expressions":[true]}', fault=ground)).allowed


@pytest.mark.parametrize("ground", [ground for ground in Ground if ground is not Ground.ALLOWED])
def test_every_no_becomes_an_error_with_a_hint(ground: Ground) -> None:
    error = refusal(Verdict(ground=ground, policy="p"), "dakhla does not admit this")
    assert error.code in {"E0931", "E0932", "E0933"}
    assert error.hint
    assert error.meta["ground"] == ground.value
    assert error.kind.exit_code == 4


def test_the_reasons_of_the_policy_are_shown() -> None:
    reasons = Answer(text='{"expressions":[["no project","too many GPUs"]]}')
    verdict = read_verdict(Answer(text='{"expressions":[false]}'), reasons=reasons)
    assert verdict.reasons == ("no project", "too many GPUs")
    assert "no project; too many GPUs" in refusal(verdict, "it").message
