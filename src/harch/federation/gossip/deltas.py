"""What does another hub lack, and what of theirs do we believe? Deltas, cut to size and applied with suspicion.

Only what is new gets verified, and what is verified becomes known: so each signature is checked once, without a cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from harch.federation.gossip.messages import ENTRIES_PER_HUB_MAX, Digest, Entry, HubDelta
from harch.federation.gossip.news import Reason
from harch.federation.gossip.settings import GossipSettings
from harch.federation.gossip.signatures import Verifier, entry_is_genuine, heartbeat_is_genuine
from harch.federation.gossip.state import HubState


def delta_for(states: Iterable[HubState], theirs: Digest, settings: GossipSettings) -> tuple[HubDelta, ...]:
    """All heartbeats they lack of the hubs they know as members, and as many entries as fit.

    Small deltas go first, so that a hub with much to tell holds nobody else up. A cut falls between two versions:
    what arrives is always everything up to some version.
    """
    wanted = [(state, theirs[state.hub]) for state in states if state.hub in theirs]
    lacking = [delta for state, known in wanted if (delta := state.delta_for(known)) is not None]
    sized = sorted(((sum(entry.size for entry in delta.entries), delta) for delta in lacking), key=lambda one: one[0])
    room = settings.delta_bytes_max
    fitting = []
    for size, delta in sized:
        if size > room or len(delta.entries) > ENTRIES_PER_HUB_MAX:
            delta = _cut(delta, room)
            size = sum(entry.size for entry in delta.entries)
        room -= size
        fitting.append(delta)
    return tuple(fitting)


@dataclass(slots=True)
class Applied:
    """What a delta has done. A refusal may come after a part that was believed."""

    first_of_life: bool = False
    beat: bool = False
    changed: set[str] = field(default_factory=set)
    gap: bool = False  # it builds on a version we do not have
    refused: Reason | None = None


def apply(delta: HubDelta, state: HubState, verifier: Verifier, settings: GossipSettings) -> Applied:
    """Takes over what is new and genuine. `state` is the copy of the delta's hub, which must be a member."""
    done = Applied()
    heartbeat = delta.heartbeat
    if heartbeat.generation < state.generation:
        return done
    known_beat = state.heartbeat.beat if state.heartbeat else -1
    if heartbeat.generation > state.generation or heartbeat.beat > known_beat:
        if not heartbeat_is_genuine(state.hub, heartbeat, verifier):
            done.refused = Reason.BAD_SIGNATURE
            return done
        if heartbeat.generation > state.generation:
            done.first_of_life = True
            done.changed.update(state.values)
            state.begin(heartbeat.generation)
        elif state.forgotten:
            state.remember()
        done.beat = True
        state.heartbeat = heartbeat
        # Before its entries are applied, and only then: a copy that came in pieces may lack what was replaced later.
        # But who has an entry also has the last heartbeat before it, so a heartbeat that is new to us and whose
        # version we have reached was signed after everything we were told of; then copy and hub must be alike.
        if state.lacks_what_it_should_have:
            done.refused = Reason.LEFT_OUT
            done.changed.update(state.values)
            state.clear()
            return done
    if not state.forgotten:
        _apply_entries(delta, state, verifier, settings, done)
    return done


def _apply_entries(
    delta: HubDelta, state: HubState, verifier: Verifier, settings: GossipSettings, done: Applied
) -> None:
    heartbeat = state.heartbeat
    if heartbeat is None or delta.collected > heartbeat.collected:
        done.refused = Reason.BAD_SIGNATURE  # a relay cannot know of more collected tombstones than the hub has signed
        return
    if state.collected < delta.collected and state.version < delta.collected:
        if delta.since > 0:
            done.gap = True
            return
        done.changed.update(state.values)  # some of them were deleted, and nobody remembers which
        state.clear(delta.collected)
    if delta.since > state.version:
        done.gap = True
        return
    if state.is_being_filled and delta.collected < state.collected:
        return  # an older copy may still hold keys whose tombstones the copy we fill from no longer has
    last_version = delta.since
    for entry in delta.entries:
        if entry.version <= last_version:
            done.refused = Reason.BAD_ORDER
            break
        last_version = entry.version
        if entry.version <= state.version:
            continue
        done.refused = _why_not(entry, state, verifier, settings)
        if done.refused is not None:
            break
        state.put(entry)
        done.changed.add(entry.key)
    if state.version >= heartbeat.collected:
        state.collect_tombstones(heartbeat.collected)


def _why_not(entry: Entry, state: HubState, verifier: Verifier, settings: GossipSettings) -> Reason | None:
    if not entry_is_genuine(state.hub, state.generation, entry, verifier):
        return Reason.BAD_SIGNATURE
    if not state.has_room_for(entry, settings):
        return Reason.TOO_LARGE
    return None


def _cut(delta: HubDelta, room: int) -> HubDelta:
    entries = []
    for entry in delta.entries[:ENTRIES_PER_HUB_MAX]:
        room -= entry.size
        if room < 0:
            break
        entries.append(entry)
    return HubDelta(delta.hub, delta.heartbeat, delta.since, delta.collected, tuple(entries))
