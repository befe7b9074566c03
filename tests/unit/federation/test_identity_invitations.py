"""What lets a new hub in, and what does not?"""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.federation.identity.enrolment import (
    Invitation,
    StoredInvitation,
    parse_invitation,
    redeem,
    store,
    without_old,
)
from harch.federation.identity.members import Address

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
SECRET, KEY, OTHER_KEY = b"s" * 24, b"k" * 32, b"o" * 32
CARD = Invitation(
    trust_domain="gpu.example.org",
    hub_id="dakar",
    host_id="dakhla",
    address=Address("10.0.0.1", 7721),
    authority=b"f" * 32,
    secret=SECRET,
    expires_at=NOW + timedelta(hours=24),
)


def use(
    stored: list[StoredInvitation],
    *,
    hub_id: str = "dakar",
    secret: bytes = SECRET,
    state_key: bytes = KEY,
    now: datetime = NOW,
) -> list[StoredInvitation]:
    return redeem(stored, hub_id=hub_id, secret=secret, state_key=state_key, now=now)


def refusal(stored: list[StoredInvitation], **words: object) -> str:
    with pytest.raises(HarchError) as caught:
        use(stored, **words)  # type: ignore[arg-type]
    assert caught.value.code == "E0112"
    assert caught.value.hint
    return caught.value.message


def test_an_invitation_survives_being_copied_as_text() -> None:
    assert parse_invitation(f"  {CARD.text()}\n") == CARD
    assert CARD.text().startswith("hinv_")


@given(st.integers(0, 200), st.characters())
def test_a_damaged_invitation_is_refused_or_is_still_one(at: int, letter: str) -> None:
    text = CARD.text()
    damaged = text[: at % len(text)] + letter + text[at % len(text) + 1 :]
    with contextlib.suppress(HarchError):  # nothing else may come out of it
        parse_invitation(damaged)


def test_the_secret_is_in_no_description_and_not_in_what_is_stored() -> None:
    assert "sss" not in repr(CARD)
    assert "sss" not in str(store(CARD))
    assert SECRET.hex() not in str(store(CARD))


def test_an_invitation_is_good_once() -> None:
    used = use([store(CARD)])
    assert refusal(used, state_key=OTHER_KEY) == "the invitation has been used"


def test_the_same_hub_may_ask_again_because_it_may_have_missed_the_answer() -> None:
    used = use([store(CARD)])
    assert use(used) == used


def test_an_invitation_ends() -> None:
    assert "expired" in refusal([store(CARD)], now=NOW + timedelta(hours=24))
    used = use([store(CARD)])
    assert "expired" in refusal(used, now=NOW + timedelta(hours=25))


def test_an_invitation_is_for_one_hub_and_needs_its_secret() -> None:
    assert "no invitation of this kind" in refusal([store(CARD)], hub_id="abidjan")
    assert "no invitation of this kind" in refusal([store(CARD)], secret=b"t" * 24)
    assert "no invitation of this kind" in refusal([], secret=b"")


def test_ended_invitations_are_forgotten_after_a_month() -> None:
    assert without_old([store(CARD)], now=NOW + timedelta(days=30)) == [store(CARD)]
    assert without_old([store(CARD)], now=NOW + timedelta(days=32)) == []
