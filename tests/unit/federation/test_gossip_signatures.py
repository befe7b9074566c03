"""Forged, replayed, altered or signed by the wrong hub: with real Ed25519 keys, nothing of it is believed."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from harch.federation.gossip.machine import Applied, OwnState, apply, delta_for
from harch.federation.gossip.membership import Reason
from harch.federation.gossip.messages import Ed25519Signer, Ed25519Verifier, HubDelta, KnownVersions
from harch.federation.gossip.state import GossipSettings, HubState

SETTINGS = GossipSettings()
KEYS = {name: Ed25519PrivateKey.from_private_bytes(name.encode().ljust(32)) for name in ("dakhla", "dakar")}
PUBLIC = {name: [key.public_key().public_bytes_raw()] for name, key in KEYS.items()}
VERIFIER = Ed25519Verifier(PUBLIC)


def own_state(hub: str = "dakhla", signed_by: str = "dakhla", generation: int = 1) -> OwnState:
    own = OwnState(hub, generation, Ed25519Signer(KEYS[signed_by]), SETTINGS)
    own.set("capacity", b"8")
    own.beat(now_s=0.0)
    return own


def full_delta(own: OwnState) -> HubDelta:
    (delta,) = delta_for([own.state], {own.state.hub: KnownVersions()}, SETTINGS)
    return delta


def tell(delta: HubDelta, copy: HubState | None = None) -> tuple[Applied, HubState]:
    copy = copy or HubState(delta.hub)
    return apply(delta, copy, VERIFIER, SETTINGS), copy


def test_what_a_hub_signed_is_believed() -> None:
    done, copy = tell(full_delta(own_state()))
    assert done.refused is None
    assert copy.values == {"capacity": b"8"}


@pytest.mark.parametrize("change", [{"value": b"9"}, {"value": None}, {"key": "carbon"}, {"version": 2}])
def test_an_altered_entry_is_not_believed(change: dict[str, Any]) -> None:
    delta = full_delta(own_state())
    done, copy = tell(replace(delta, entries=(replace(delta.entries[0], **change),)))
    assert done.refused is Reason.BAD_SIGNATURE
    assert (copy.version, copy.values) == (0, {})


@pytest.mark.parametrize(
    "change", [{"generation": 2}, {"beat": 9}, {"version": 9}, {"collected": 1}, {"fingerprint": b"x" * 16}]
)
def test_an_altered_heartbeat_is_not_believed(change: dict[str, Any]) -> None:
    delta = full_delta(own_state())
    done, copy = tell(replace(delta, heartbeat=replace(delta.heartbeat, **change)))
    assert done.refused is Reason.BAD_SIGNATURE
    assert (copy.heartbeat, copy.values) == (None, {})


def test_a_hub_cannot_speak_in_the_name_of_another() -> None:
    done, copy = tell(full_delta(own_state(hub="dakhla", signed_by="dakar")))
    assert done.refused is Reason.BAD_SIGNATURE
    assert copy.heartbeat is None


def test_words_about_oneself_cannot_be_passed_off_as_words_about_another() -> None:
    delta = full_delta(own_state(hub="dakar", signed_by="dakar"))
    done, copy = tell(replace(delta, hub="dakhla"))
    assert done.refused is Reason.BAD_SIGNATURE
    assert copy.heartbeat is None


def test_an_entry_of_a_former_life_cannot_be_replayed_into_the_present_one() -> None:
    old, new = full_delta(own_state(generation=1)), full_delta(own_state(generation=2))
    done, copy = tell(replace(new, entries=old.entries))
    assert done.refused is Reason.BAD_SIGNATURE
    assert copy.values == {}


def test_a_state_of_the_past_cannot_be_replayed() -> None:
    own = own_state()
    old = full_delta(own)
    own.set("capacity", b"0")
    own.beat(now_s=0.2)
    _, copy = tell(full_delta(own))
    done, _ = tell(old, copy)
    assert done == Applied()
    assert copy.values == {"capacity": b"0"}


def test_a_heartbeat_is_no_entry_and_an_unknown_hub_has_no_signature() -> None:
    own = own_state()
    assert not VERIFIER.verify("dakhla", b"", own.heartbeat.signature)
    assert not VERIFIER.verify("nobody", b"", own.heartbeat.signature)


def test_a_hub_that_changes_its_key_is_believed_under_both() -> None:
    both = Ed25519Verifier({"dakhla": [*PUBLIC["dakhla"], *PUBLIC["dakar"]]})
    for signed_by in ("dakhla", "dakar"):
        delta = full_delta(own_state(signed_by=signed_by))
        assert apply(delta, HubState("dakhla"), both, SETTINGS).refused is None
