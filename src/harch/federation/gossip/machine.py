"""What does a hub know of the others, and when does it tell them what? The gossip machine: events in, messages out.

Every 200 ms it sends its digest to three peers, suspected ones included, so that hubs without a link to each other
still hear of each other through a third. What a hub changes about itself it pushes to all at once. Nothing here reads a
clock or knows a socket: `now_s` is monotonic and comes in, `Outgoing` goes out, and what is lost is made up for later.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Iterable, MutableSequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from harch.federation.gossip.membership import (
    Appeared,
    GossipView,
    IdentityCloned,
    Liveness,
    LivenessState,
    News,
    NewsQueue,
    Reason,
    Recovered,
    Suspected,
)
from harch.federation.gossip.messages import (
    ENTRIES_PER_HUB_MAX,
    HUBS_MAX,
    KEY_MAX,
    VALUE_BYTES_MAX,
    Digest,
    GossipAck,
    GossipEntry,
    GossipHeartbeat,
    HubDelta,
    KnownVersions,
    Message,
    Outgoing,
    Push,
    Signer,
    Syn,
    SynAck,
    Verifier,
    entry_is_genuine,
    entry_statement,
    heartbeat_is_genuine,
    heartbeat_statement,
)
from harch.federation.gossip.state import GossipSettings, HubState

# What does another hub lack, and what of theirs do we believe? Deltas, cut to size and applied with suspicion.
#
# Only what is new gets verified, and what is verified becomes known: so each signature is checked once, without a
# cache.


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


def _why_not(entry: GossipEntry, state: HubState, verifier: Verifier, settings: GossipSettings) -> Reason | None:
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


# How does a hub speak about itself? The only writer of its own state: versions, signatures, heartbeats, tombstones.


class OwnState:
    """`generation` must be above every one this hub has ever used: max(the stored one + 1, wall clock in ms)."""

    def __init__(self, hub: str, generation: int, signer: Signer, settings: GossipSettings) -> None:
        if generation < 1:
            raise ValueError(f"a generation is at least 1, not {generation}")
        self.state = HubState(hub, generation)
        self._signer, self._settings = signer, settings
        self._deleted_at_s: dict[str, float] = {}  # in the order of deletion
        self._beat = 0
        self.heartbeat = self._signed_heartbeat()

    def beat(self, now_s: float) -> None:
        """One more sign of life. Collects old tombstones first: the heartbeat tells others how far."""
        self._collect(now_s)
        self._beat += 1
        self.heartbeat = self._signed_heartbeat()

    def set(self, key: str, value: bytes) -> HubDelta | None:
        """The change to push; None when the key has this value already. ValueError: over a limit, nothing changed."""
        if not 1 <= len(key) <= KEY_MAX:
            raise ValueError(f"a key has 1 to {KEY_MAX} characters, not {len(key)}")
        if len(value) > VALUE_BYTES_MAX:
            raise ValueError(f"the value of `{key}` has {len(value)} bytes; at most {VALUE_BYTES_MAX} are gossiped")
        if self.state.values.get(key) == value:
            return None
        entry = self._signed_entry(key, value)
        if not self.state.has_room_for(entry, self._settings):
            raise ValueError(f"no room for `{key}`: {len(self.state.values)} keys, {self.state.bytes_used} bytes")
        self._deleted_at_s.pop(key, None)
        return self._put(entry)

    def delete(self, key: str, now_s: float) -> HubDelta | None:
        """None when there is no such key."""
        if key not in self.state.values:
            return None
        change = self._put(self._signed_entry(key, None))
        self._deleted_at_s[key] = now_s
        if len(self._deleted_at_s) > 2 * self._settings.tombstones_max:
            self.beat(now_s)  # others must hear that old ones are collected before theirs overflow
        return change

    def _put(self, entry: GossipEntry) -> HubDelta:
        since = self.state.version
        self.state.put(entry)
        return HubDelta(self.state.hub, self.heartbeat, since, 0, (entry,))

    def _collect(self, now_s: float) -> None:
        """Tombstones that are old, or too many. Whoever has not heard of them gets a full copy instead."""
        surplus = len(self._deleted_at_s) - self._settings.tombstones_max
        due = 0
        for number, (key, deleted_at_s) in enumerate(self._deleted_at_s.items()):
            version = self.state.entries[key].version
            too_old = now_s - deleted_at_s > self._settings.tombstone_keep_s
            if version == self.state.version or not (number < surplus or too_old):
                break
            due = version
        if due:
            self.state.collect_tombstones(due)
            self._deleted_at_s = {k: at for k, at in self._deleted_at_s.items() if k in self.state.entries}

    def _signed_entry(self, key: str, value: bytes | None) -> GossipEntry:
        version = self.state.version + 1
        statement = entry_statement(self.state.hub, self.state.generation, key, version, value)
        return GossipEntry(key, version, value, self._signer.sign(statement))

    def _signed_heartbeat(self) -> GossipHeartbeat:
        state = self.state
        facts = (state.generation, self._beat, state.version, state.collected, state.fingerprint)
        heartbeat = GossipHeartbeat(*facts, self._signer.sign(heartbeat_statement(state.hub, *facts)))
        state.heartbeat = heartbeat
        return heartbeat


_EARLY_S_MAX = 0.001  # timers of event loops may fire this much too soon


class Dice(Protocol):
    """A seeded `random.Random`."""

    def random(self) -> float: ...

    def shuffle(self, x: MutableSequence[Any]) -> None: ...


class Gossip:
    """The gossip of the hub `me`. `members` are the names of all others; `me` among them does no harm."""

    def __init__(
        self,
        me: str,
        *,
        generation: int,
        members: Iterable[str],
        signer: Signer,
        verifier: Verifier,
        dice: Dice,
        now_s: float,
        settings: GossipSettings | None = None,
    ) -> None:
        self.me = me
        self.settings = settings or GossipSettings()
        self.next_tick_s = now_s
        self._own = OwnState(me, generation, signer, self.settings)
        self._states: dict[str, HubState] = {me: self._own.state}
        self._verifier, self._dice = verifier, dice
        self._liveness = Liveness(self.settings)
        self._news = NewsQueue()
        self._turns: list[str] = []  # peers in the order in which they are spoken to next
        self._syn_number = 0
        self._syns: dict[str, tuple[int, float]] = {}  # the last one to each peer, until it is answered
        self._syn_received_at_s: dict[str, float] = {}  # when each peer asked last
        self._direct_at_s: dict[str, float] = {}
        self._via: dict[str, str] = {}
        self._clone_generation = 0
        for hub in members:
            self.add_member(hub, now_s)

    # Membership

    @property
    def peers(self) -> list[str]:
        return [hub for hub in self._states if hub != self.me]

    def add_member(self, hub: str, now_s: float) -> None:
        if hub in self._states:
            return
        if len(self._states) >= HUBS_MAX:
            raise ValueError(f"no room for `{hub}`: a federation has at most {HUBS_MAX} hubs")
        self._states[hub] = HubState(hub)
        self._liveness.watch(hub, now_s)

    def remove_member(self, hub: str) -> None:
        if hub == self.me or hub not in self._states:
            return
        del self._states[hub]
        self._liveness.unwatch(hub)
        for table in (self._syns, self._syn_received_at_s, self._direct_at_s, self._via):
            table.pop(hub, None)
        self._turns = [one for one in self._turns if one != hub]

    # Events in, messages out

    def tick(self, now_s: float) -> list[Outgoing]:
        """Due at `next_tick_s`, which it moves on. Before that it does nothing."""
        if now_s < self.next_tick_s - _EARLY_S_MAX:
            return []
        settings = self.settings
        self._liveness.note_own_lateness(now_s - self.next_tick_s)
        self.next_tick_s = now_s + settings.interval_s * (1 + settings.interval_spread * (2 * self._dice.random() - 1))
        self._own.beat(now_s)
        for hub in self._liveness.newly_suspected(now_s):
            self._news.publish(Suspected(hub, self._liveness.age_s(hub, now_s)))
        for hub in self.peers:
            if self._liveness.age_s(hub, now_s) > settings.forget_after_s and not self._states[hub].forgotten:
                self._news.changed(hub, set(self._states[hub].values))
                self._states[hub].forget()
        self._syn_number += 1
        return [self._syn(peer, now_s) for peer in self._next_turns(now_s)]

    def receive(self, from_hub: str, message: Message, now_s: float) -> list[Outgoing]:
        """`from_hub` is who the link says it is, not who the message says."""
        if from_hub not in self._states or from_hub == self.me:
            self._news.refuse(from_hub, from_hub, Reason.NO_MEMBER)
            return []
        self._direct_at_s[from_hub] = now_s
        match message:
            case Syn(number, digest):
                self._syn_received_at_s[from_hub] = now_s
                delta = delta_for(self._states.values(), digest, self.settings)
                return [Outgoing(from_hub, SynAck(number, delta, self._digest()))]
            case SynAck(number, delta, digest):
                self._note_answer(from_hub, number, now_s)
                answers = self._apply(from_hub, delta, now_s)
                if back := delta_for(self._states.values(), digest, self.settings):
                    answers.append(Outgoing(from_hub, GossipAck(back)))
                return answers
            case GossipAck(delta):
                return self._apply(from_hub, delta, now_s)
            case Push(change):
                return self._apply(from_hub, (change,), now_s)

    def set(self, key: str, value: bytes) -> list[Outgoing]:
        """Says something about this hub, to all peers at once. ValueError: over a limit, and nothing has changed."""
        return self._push(self._own.set(key, value))

    def delete(self, key: str, now_s: float) -> list[Outgoing]:
        return self._push(self._own.delete(key, now_s))

    # What is known

    def take_news(self) -> list[News]:
        """What has happened since the last call."""
        return self._news.take()

    def views(self, now_s: float) -> dict[str, GossipView]:
        """Of every member, this hub included."""
        return {hub: self.view(hub, now_s) for hub in self._states}

    def view(self, hub: str, now_s: float) -> GossipView:
        """KeyError for a hub that is no member."""
        state, is_me = self._states[hub], hub == self.me
        direct_at_s = self._direct_at_s.get(hub)
        return GossipView(
            hub=hub,
            standing=LivenessState.ALIVE if is_me else self._liveness.standing(hub),
            generation=state.generation,
            version=state.version,
            values=dict(state.values),
            complete=is_me or state.is_complete,
            age_s=0.0 if is_me else self._liveness.age_s(hub, now_s) if state.generation else None,
            direct_age_s=0.0 if is_me else None if direct_at_s is None else now_s - direct_at_s,
            via=hub if is_me else self._via.get(hub, ""),
            phi=0.0 if is_me else self._liveness.phi(hub, now_s),
            round_trip_s=None if is_me else self._liveness.round_trip_s(hub),
        )

    @property
    def refusals(self) -> dict[tuple[str, str, Reason], int]:
        """How often something about a hub, from a hub, was not believed, and why."""
        return dict(self._news.refusals)

    @property
    def stretch(self) -> float:
        """How much more patient than usual this hub is, because its own loop was late: 1 to 8."""
        return self._liveness.stretch

    # Speaking

    def _next_turns(self, now_s: float) -> list[str]:
        """Random peers, but everybody once before anybody twice: chance alone would leave some out for seconds.

        Who has asked this hub within the last interval had its turn: both know what the other knew. And as both ends of
        a link ask, nobody asks more than half of its peers at once. Together that saves a third of what five idle hubs
        send, and a kill is seen nearly as soon (simulated: after 1.8 s, 2.0 s at most).
        """
        settings = self.settings
        turns_max = min(settings.peers_per_tick, len(self._states) // 2)  # this hub has a state, too
        if len(self._turns) < len(self._states) - 1:
            fresh = self.peers
            self._dice.shuffle(fresh)
            fresh.sort(key=self._turns.__contains__)  # whose turn is still to come is not asked twice in one tick
            self._turns += fresh
        turns: list[str] = []
        later: list[str] = []
        for hub in self._turns:
            received_at_s = self._syn_received_at_s.get(hub)
            if len(turns) == turns_max or hub in turns:
                later.append(hub)
            elif received_at_s is None or now_s - received_at_s >= settings.interval_s:
                turns.append(hub)
        self._turns = later
        return turns

    def _syn(self, peer: str, now_s: float) -> Outgoing:
        self._syns[peer] = (self._syn_number, now_s)
        return Outgoing(peer, Syn(self._syn_number, self._digest()))

    def _resync(self, peer: str, now_s: float) -> list[Outgoing]:
        """At once, but not while an answer is due: a hundred pushes after a lost one need one question."""
        pending = self._syns.get(peer)
        if pending is not None and now_s - pending[1] < self.settings.interval_s:
            return []
        self._syn_number += 1
        return [self._syn(peer, now_s)]

    def _push(self, change: HubDelta | None) -> list[Outgoing]:
        if change is None:
            return []
        push = Push(change)
        return [Outgoing(peer, push) for peer in self.peers]

    def _digest(self) -> dict[str, KnownVersions]:
        """Names all members, heard or not: about others nobody need tell us."""
        return {hub: state.known for hub, state in self._states.items()}

    # Listening

    def _note_answer(self, peer: str, number: int, now_s: float) -> None:
        pending = self._syns.get(peer)
        if pending is not None and pending[0] == number:
            del self._syns[peer]
            self._liveness.note_round_trip(peer, now_s - pending[1])

    def _apply(self, via: str, delta: Iterable[HubDelta], now_s: float) -> list[Outgoing]:
        needs_resync = False
        for part in delta:
            if part.hub == self.me:
                self._look_for_clone(part, via)
                continue
            state = self._states.get(part.hub)
            if state is None:
                self._news.refuse(part.hub, via, Reason.NO_MEMBER)
                continue
            done = apply(part, state, self._verifier, self.settings)
            self._note(part.hub, via, done, now_s)
            if done.refused is None:
                # After a cut-off delta there is more to come; only progress may ask, or two hubs would ask forever.
                needs_resync |= done.gap or (bool(done.changed) and not state.is_complete)
        return self._resync(via, now_s) if needs_resync else []

    def _note(self, hub: str, via: str, done: Applied, now_s: float) -> None:
        self._news.changed(hub, done.changed)
        if done.refused is not None:
            self._news.refuse(hub, "" if done.refused is Reason.LEFT_OUT else via, done.refused)
        if done.beat:
            self._via[hub] = via
        if done.first_of_life:
            self._liveness.seen_first(hub, now_s)
            self._news.publish(Appeared(hub, self._states[hub].generation))
        elif done.beat and self._liveness.note_heartbeat(hub, now_s) is LivenessState.SUSPECTED:
            self._news.publish(Recovered(hub))

    def _look_for_clone(self, part: HubDelta, via: str) -> None:
        """Only this hub beats under its name: a later heartbeat than its own last one is somebody else's."""
        theirs, mine = part.heartbeat, self._own.heartbeat
        if (theirs.generation, theirs.beat) <= (mine.generation, mine.beat):
            return
        if theirs.generation <= self._clone_generation:  # announced already
            return
        if not heartbeat_is_genuine(self.me, theirs, self._verifier):
            self._news.refuse(self.me, via, Reason.BAD_SIGNATURE)
            return
        self._clone_generation = theirs.generation
        self._news.publish(IdentityCloned(theirs.generation, via))
