"""What a hub says about itself, and what copies make of it: versions, tombstones, full copies, limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harch.federation.gossip.machine import Applied, OwnState, apply, delta_for
from harch.federation.gossip.membership import Reason
from harch.federation.gossip.messages import KEY_MAX, VALUE_BYTES_MAX, HubDelta, KnownVersions
from harch.federation.gossip.state import GossipSettings, HubState
from sim.gossip_world import HashSigner, HashVerifier

HUB = "dakhla"
SETTINGS = GossipSettings()


def own_state(settings: GossipSettings = SETTINGS, generation: int = 1) -> OwnState:
    return OwnState(HUB, generation, HashSigner(HUB), settings)


def catch_up(copy: HubState, source: HubState, settings: GossipSettings = SETTINGS) -> Applied | None:
    """One delta from `source`; None when it had nothing to tell."""
    deltas = delta_for([source], {HUB: copy.known}, settings)
    return apply(deltas[0], copy, HashVerifier(), settings) if deltas else None


def copy_of(source: HubState) -> HubState:
    copy = HubState(HUB)
    catch_up(copy, source)
    return copy


# What a hub says


def test_every_change_has_its_own_version_and_names_the_one_it_builds_on() -> None:
    own = own_state()
    first, second, gone = own.set("a", b"1"), own.set("b", b"2"), own.delete("a", now_s=0.0)
    assert [(change.since, change.entries[0].version) for change in (first, second, gone) if change] == [
        (0, 1),
        (1, 2),
        (2, 3),
    ]
    assert own.state.values == {"b": b"2"}


def test_saying_the_same_again_is_no_change() -> None:
    own = own_state()
    own.set("a", b"1")
    assert own.set("a", b"1") is None
    assert own.delete("never there", now_s=0.0) is None
    assert own.state.version == 1


@pytest.mark.parametrize(
    ("key", "value"), [("", b""), ("k" * (KEY_MAX + 1), b""), ("big", b"x" * (VALUE_BYTES_MAX + 1))]
)
def test_a_key_or_value_over_its_limit_is_not_said(key: str, value: bytes) -> None:
    own = own_state()
    with pytest.raises(ValueError, match=r"key|value"):
        own.set(key, value)
    assert own.state.version == 0


def test_a_hub_says_no_more_than_the_limit_and_can_still_replace_and_delete() -> None:
    own = own_state(GossipSettings(keys_max=2, bytes_max=20))
    own.set("a", b"1")
    own.set("b", b"2")
    with pytest.raises(ValueError, match="no room"):
        own.set("c", b"3")
    with pytest.raises(ValueError, match="no room"):
        own.set("a", b"x" * 18)
    own.set("a", b"x" * 17)
    own.delete("b", now_s=0.0)
    own.set("c", b"")
    assert own.state.values == {"a": b"x" * 17, "c": b""}


def test_a_generation_is_positive() -> None:
    with pytest.raises(ValueError, match="generation"):
        own_state(generation=0)


# Deltas


def test_a_delta_holds_what_is_above_the_known_version_in_ascending_order() -> None:
    own = own_state()
    for key in "abcb":
        own.set(key, own.state.version.to_bytes(1))
    delta = own.state.delta_for(KnownVersions(1, 0, 1))
    assert delta is not None
    assert [(entry.key, entry.version) for entry in delta.entries] == [("c", 3), ("b", 4)]


def test_who_knows_all_is_told_nothing_and_a_heartbeat_alone_when_that_is_new() -> None:
    own = own_state()
    own.set("a", b"1")
    copy = copy_of(own.state)
    assert own.state.delta_for(copy.known) is None
    own.beat(now_s=0.2)
    delta = own.state.delta_for(copy.known)
    assert delta is not None
    assert delta.entries == ()
    assert apply(delta, copy, HashVerifier(), SETTINGS).beat


def test_who_knows_a_later_life_is_told_nothing() -> None:
    assert own_state(generation=1).state.delta_for(KnownVersions(generation=2)) is None


def test_a_large_state_comes_in_pieces_that_end_between_versions() -> None:
    settings = GossipSettings(delta_bytes_max=350)
    own, copy, versions = own_state(settings), HubState(HUB), list[int]()
    for number in range(10):
        own.set(f"key{number}", b"x" * 40)
    own.beat(now_s=0.0)
    while catch_up(copy, own.state, settings) is not None:
        versions.append(copy.version)
        assert copy.is_complete == (copy.version == 10)
    assert versions == [2, 4, 6, 8, 10]
    assert copy.values == own.state.values


def test_a_hub_with_much_to_tell_does_not_hold_up_others() -> None:
    settings = GossipSettings(delta_bytes_max=500)
    loud, quiet = own_state(settings), OwnState("quiet", 1, HashSigner("quiet"), settings)
    for number in range(10):
        loud.set(f"key{number}", b"x" * 100)
    quiet.set("a", b"x" * 60)
    deltas = {
        delta.hub: delta
        for delta in delta_for([loud.state, quiet.state], {HUB: KnownVersions(), "quiet": KnownVersions()}, settings)
    }
    assert len(deltas["quiet"].entries) == 1
    assert 0 < len(deltas[HUB].entries) < 10


def test_all_heartbeats_are_told_even_when_no_entry_fits() -> None:
    settings = GossipSettings(delta_bytes_max=1)
    owns = [OwnState(name, 1, HashSigner(name), settings) for name in ("a", "b")]
    for own in owns:
        own.set("key", b"value")
    deltas = delta_for([own.state for own in owns], {"a": KnownVersions(), "b": KnownVersions()}, settings)
    assert [len(delta.entries) for delta in deltas] == [0, 0]


def test_about_a_hub_that_they_do_not_know_as_a_member_nothing_is_told() -> None:
    own = own_state()
    own.set("a", b"1")
    assert delta_for([own.state], {"another": KnownVersions()}, SETTINGS) == ()


def test_a_push_that_builds_on_an_unknown_version_is_a_gap_and_changes_nothing() -> None:
    own = own_state()
    copy = copy_of(own.state)
    lost, push = own.set("a", b"1"), own.set("b", b"2")
    assert lost is not None
    assert push is not None
    done = apply(push, copy, HashVerifier(), SETTINGS)
    assert done.gap
    assert (copy.version, copy.values) == (0, {})
    apply(lost, copy, HashVerifier(), SETTINGS)
    apply(push, copy, HashVerifier(), SETTINGS)
    assert copy.values == {"a": b"1", "b": b"2"}


def test_a_delta_that_comes_late_or_twice_changes_nothing() -> None:
    own = own_state()
    own.set("a", b"old")
    (old,) = delta_for([own.state], {HUB: KnownVersions()}, SETTINGS)
    own.set("a", b"new")
    own.beat(now_s=0.0)
    copy = copy_of(own.state)
    done = apply(old, copy, HashVerifier(), SETTINGS)
    assert done == Applied()
    assert copy.values == {"a": b"new"}


def test_a_new_life_replaces_all_that_the_old_one_said_and_the_old_one_is_not_believed_any_more() -> None:
    old, new = own_state(generation=7), own_state(generation=8)
    old.set("lease", b"held")
    copy = copy_of(old.state)
    new.set("capacity", b"8")
    done = catch_up(copy, new.state)
    assert done is not None
    assert done.first_of_life
    assert done.changed == {"lease", "capacity"}
    assert copy.values == {"capacity": b"8"}
    old.set("lease", b"again")
    (late,) = delta_for([old.state], {HUB: KnownVersions()}, SETTINGS)
    assert apply(late, copy, HashVerifier(), SETTINGS) == Applied()
    assert copy.values == {"capacity": b"8"}


# Tombstones


def test_a_deleted_key_disappears_from_copies() -> None:
    own = own_state()
    own.set("a", b"1")
    copy = copy_of(own.state)
    own.delete("a", now_s=0.0)
    done = catch_up(copy, own.state)
    assert done is not None
    assert done.changed == {"a"}
    assert copy.values == {}


def test_old_tombstones_go_everywhere_and_the_newest_entry_stays_for_its_version() -> None:
    own = own_state(GossipSettings(tombstone_keep_s=60.0))
    for key in "abc":
        own.set(key, b"1")
    copy = copy_of(own.state)
    own.delete("a", now_s=0.0)
    own.delete("b", now_s=1.0)
    own.beat(now_s=59.0)
    assert set(own.state.entries) == {"a", "b", "c"}
    own.beat(now_s=100.0)
    assert set(own.state.entries) == {"b", "c"}
    catch_up(copy, own.state)
    assert set(copy.entries) == {"b", "c"}
    assert copy.is_complete
    assert copy_of(own.state).is_complete


def test_a_copy_that_ends_with_a_collected_tombstone_keeps_it_for_its_version() -> None:
    own = own_state(GossipSettings(tombstone_keep_s=60.0))
    own.set("a", b"1")
    own.delete("a", now_s=0.0)
    copy = copy_of(own.state)
    own.set("b", b"1")
    own.beat(now_s=100.0)
    apply(HubDelta(HUB, own.heartbeat, 2, 0, ()), copy, HashVerifier(), SETTINGS)
    passed_on = copy_of(copy)
    assert passed_on.version == copy.version == 2


def test_a_key_that_was_deleted_and_said_again_is_not_collected() -> None:
    own = own_state(GossipSettings(tombstone_keep_s=60.0))
    own.set("a", b"1")
    own.delete("a", now_s=0.0)
    own.set("a", b"2")
    own.set("b", b"3")
    own.beat(now_s=100.0)
    assert own.state.values == {"a": b"2", "b": b"3"}


def test_too_many_tombstones_are_collected_before_their_time() -> None:
    own = own_state(GossipSettings(tombstones_max=3))
    copy = copy_of(own.state)
    for number in range(50):
        for change in (own.set(f"job{number}", b"held"), own.delete(f"job{number}", now_s=0.0)):
            assert change is not None
            assert apply(change, copy, HashVerifier(), GossipSettings(tombstones_max=3)).refused is None
    assert len(own.state.entries) <= 2 * 3 + 1
    assert len(copy.entries) <= 4 * 3


def test_who_missed_a_collected_tombstone_gets_a_full_copy() -> None:
    own = own_state(GossipSettings(tombstone_keep_s=60.0))
    own.set("gone", b"1")
    own.set("kept", b"1")
    behind = copy_of(own.state)
    own.delete("gone", now_s=0.0)
    own.set("new", b"1")
    own.beat(now_s=100.0)
    done = catch_up(behind, own.state)
    assert done is not None
    assert done.changed == {"gone", "kept", "new"}
    assert behind.values == {"kept": b"1", "new": b"1"}
    assert behind.is_complete


def test_a_late_delta_on_a_version_that_is_not_known_does_not_clear_anything() -> None:
    own = own_state(GossipSettings(tombstone_keep_s=60.0))
    own.set("a", b"1")
    own.set("b", b"1")
    behind = copy_of(own.state)
    own.delete("a", now_s=0.0)
    own.set("c", b"1")
    own.beat(now_s=100.0)
    delta = own.state.delta_for(KnownVersions(generation=1, version=3, collected=3))
    assert delta is not None
    assert delta.since == 3
    assert apply(delta, behind, HashVerifier(), SETTINGS).gap
    assert behind.values == {"a": b"1", "b": b"1"}


def test_a_full_copy_in_pieces_goes_on_where_it_was_cut() -> None:
    settings = GossipSettings(delta_bytes_max=250, tombstone_keep_s=60.0)
    own = own_state(settings)
    own.set("gone", b"1")
    behind = copy_of(own.state)
    for number in range(6):
        own.set(f"key{number}", b"1")
    own.delete("gone", now_s=0.0)
    own.set("last", b"1")
    own.beat(now_s=100.0)
    versions = []
    while catch_up(behind, own.state, settings) is not None:
        versions.append(behind.version)
    assert versions == [3, 5, 7, 9]
    assert behind.values == own.state.values


def _half_and_older_copy() -> tuple[OwnState, HubState, HubState]:
    """A hub that has deleted `x` and collected its tombstone; a copy from before that, and the first piece of one."""
    own = own_state(GossipSettings(tombstone_keep_s=60.0))
    for key in ("a", "b", "x", "c"):
        own.set(key, b"1")
    own.delete("b", now_s=0.0)  # version 5
    older = copy_of(own.state)
    own.delete("x", now_s=0.0)  # version 6
    own.set("d", b"1")
    own.beat(now_s=100.0)
    (full,) = delta_for([own.state], {HUB: KnownVersions()}, SETTINGS)
    half = HubState(HUB)
    apply(HubDelta(HUB, full.heartbeat, 0, full.collected, full.entries[:1]), half, HashVerifier(), SETTINGS)
    return own, older, half


def test_a_copy_that_is_being_filled_takes_nothing_from_an_older_copy() -> None:
    """The older one still has `x`, and the copy it is filled from no longer has the tombstone of `x`."""
    own, older, half = _half_and_older_copy()
    assert half.is_being_filled
    catch_up(half, older)
    assert half.values == {"a": b"1"}
    catch_up(half, own.state)
    assert half.values == own.state.values == {"a": b"1", "c": b"1", "d": b"1"}


def test_half_a_copy_is_no_base_for_another() -> None:
    _, older, half = _half_and_older_copy()
    knew = dict(older.values)
    done = catch_up(older, half)
    assert done is not None
    assert done.beat
    assert older.values == knew, "it is told that the hub lives, and loses nothing"
    assert catch_up(older, half) is None


# Forgetting


def test_a_forgotten_state_is_neither_passed_on_nor_asked_for_until_the_hub_is_back() -> None:
    own = own_state()
    own.set("a", b"1")
    copy = copy_of(own.state)
    copy.forget()
    assert copy.values == {}
    assert copy.delta_for(KnownVersions()) is None
    assert catch_up(copy, own.state) is None, "others still have it, and need not send it"
    own.beat(now_s=0.0)
    catch_up(copy, own.state)
    catch_up(copy, own.state)
    assert copy.values == {"a": b"1"}


# What is not believed


def test_a_relay_that_leaves_an_entry_out_is_found_out_by_the_next_heartbeat() -> None:
    own, copy = own_state(), HubState(HUB)
    own.set("policy", b"7")
    own.set("capacity", b"8")
    own.beat(now_s=0.0)
    (full,) = delta_for([own.state], {HUB: KnownVersions()}, SETTINGS)
    apply(HubDelta(HUB, full.heartbeat, 0, 0, full.entries[1:]), copy, HashVerifier(), SETTINGS)
    assert copy.values == {"capacity": b"8"}
    own.beat(now_s=0.2)
    done = catch_up(copy, own.state)
    assert done is not None
    assert done.refused is Reason.LEFT_OUT
    catch_up(copy, own.state)
    assert copy.values == own.state.values


def test_entries_out_of_order_are_not_believed() -> None:
    own, copy = own_state(), HubState(HUB)
    own.set("a", b"1")
    own.set("b", b"2")
    (full,) = delta_for([own.state], {HUB: KnownVersions()}, SETTINGS)
    swapped = HubDelta(HUB, full.heartbeat, 0, 0, full.entries[::-1])
    assert apply(swapped, copy, HashVerifier(), SETTINGS).refused is Reason.BAD_ORDER


def test_a_relay_cannot_claim_that_more_tombstones_are_gone_than_the_hub_says() -> None:
    own = own_state()
    own.set("a", b"1")
    copy = copy_of(own.state)
    own.set("b", b"2")
    (full,) = delta_for([own.state], {HUB: KnownVersions()}, SETTINGS)
    claim = HubDelta(HUB, full.heartbeat, 0, 2, full.entries[1:])
    assert apply(claim, copy, HashVerifier(), SETTINGS).refused is Reason.BAD_SIGNATURE
    assert copy.values == {"a": b"1"}


@pytest.mark.parametrize(
    "limits", [replace(SETTINGS, keys_max=2), replace(SETTINGS, bytes_max=25)], ids=["keys", "bytes"]
)
def test_a_hub_that_says_more_than_is_allowed_is_believed_up_to_the_limit(limits: GossipSettings) -> None:
    own, copy = own_state(), HubState(HUB)
    for key in "abc":
        own.set(key, b"x" * 10)
    (full,) = delta_for([own.state], {HUB: KnownVersions()}, SETTINGS)
    assert apply(full, copy, HashVerifier(), limits).refused is Reason.TOO_LARGE
    assert (copy.version, set(copy.values)) == (2, {"a", "b"})


def test_tombstones_at_a_copy_are_limited_too() -> None:
    own, copy = own_state(GossipSettings(tombstones_max=100)), HubState(HUB)
    for number in range(20):
        own.set(f"key{number}", b"")
        own.delete(f"key{number}", now_s=0.0)
    (full,) = delta_for([own.state], {HUB: KnownVersions()}, SETTINGS)
    assert apply(full, copy, HashVerifier(), GossipSettings(tombstones_max=2)).refused is Reason.TOO_LARGE
    assert len(copy.entries) == 8
