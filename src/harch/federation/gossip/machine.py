"""What does a hub know of the others, and when does it tell them what? The gossip machine: events in, messages out.

Every 200 ms it sends its digest to three peers, suspected ones included, so that hubs without a link to each other
still hear of each other through a third. What a hub changes about itself it pushes to all at once. Nothing here reads a
clock or knows a socket: `now_s` is monotonic and comes in, `Outgoing` goes out, and what is lost is made up for later.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableSequence
from typing import Any, Protocol

from harch.federation.gossip.deltas import Applied, apply, delta_for
from harch.federation.gossip.liveness import Liveness, Standing
from harch.federation.gossip.messages import HUBS_MAX, Ack, HubDelta, Known, Message, Outgoing, Push, Syn, SynAck
from harch.federation.gossip.news import (
    Appeared,
    HubView,
    IdentityCloned,
    News,
    NewsDesk,
    Reason,
    Recovered,
    Suspected,
)
from harch.federation.gossip.own_state import OwnState
from harch.federation.gossip.settings import GossipSettings
from harch.federation.gossip.signatures import Signer, Verifier, heartbeat_is_genuine
from harch.federation.gossip.state import HubState

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
        self._desk = NewsDesk()
        self._turns: list[str] = []  # peers in the order in which they are spoken to next
        self._syn_number = 0
        self._syns: dict[str, tuple[int, float]] = {}  # the last one to each peer, until it is answered
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
        for table in (self._syns, self._direct_at_s, self._via):
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
            self._desk.tell(Suspected(hub, self._liveness.age_s(hub, now_s)))
        for hub in self.peers:
            if self._liveness.age_s(hub, now_s) > settings.forget_after_s and not self._states[hub].forgotten:
                self._desk.changed(hub, set(self._states[hub].values))
                self._states[hub].forget()
        self._syn_number += 1
        return [self._syn(peer, now_s) for peer in self._next_turns()]

    def receive(self, from_hub: str, message: Message, now_s: float) -> list[Outgoing]:
        """`from_hub` is who the link says it is, not who the message says."""
        if from_hub not in self._states or from_hub == self.me:
            self._desk.refuse(from_hub, from_hub, Reason.NO_MEMBER)
            return []
        self._direct_at_s[from_hub] = now_s
        match message:
            case Syn(number, digest):
                delta = delta_for(self._states.values(), digest, self.settings)
                return [Outgoing(from_hub, SynAck(number, delta, self._digest()))]
            case SynAck(number, delta, digest):
                self._note_answer(from_hub, number, now_s)
                answers = self._apply(from_hub, delta, now_s)
                if back := delta_for(self._states.values(), digest, self.settings):
                    answers.append(Outgoing(from_hub, Ack(back)))
                return answers
            case Ack(delta):
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
        return self._desk.take()

    def views(self, now_s: float) -> dict[str, HubView]:
        """Of every member, this hub included."""
        return {hub: self.view(hub, now_s) for hub in self._states}

    def view(self, hub: str, now_s: float) -> HubView:
        """KeyError for a hub that is no member."""
        state, is_me = self._states[hub], hub == self.me
        direct_at_s = self._direct_at_s.get(hub)
        return HubView(
            hub=hub,
            standing=Standing.ALIVE if is_me else self._liveness.standing(hub),
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
        return dict(self._desk.refusals)

    @property
    def stretch(self) -> float:
        """How much more patient than usual this hub is, because its own loop was late: 1 to 8."""
        return self._liveness.stretch

    # Speaking

    def _next_turns(self) -> list[str]:
        """Random peers, but everybody once before anybody twice: chance alone would leave some out for seconds."""
        wanted = min(self.settings.peers_per_tick, len(self._states) - 1)
        if len(self._turns) < wanted:
            fresh = self.peers
            self._dice.shuffle(fresh)
            fresh.sort(key=self._turns.__contains__)  # whose turn is still to come is not asked twice in one tick
            self._turns += fresh
        turns, self._turns = self._turns[:wanted], self._turns[wanted:]
        return turns

    def _syn(self, peer: str, now_s: float) -> Outgoing:
        self._syns[peer] = (self._syn_number, now_s)
        return Outgoing(peer, Syn(self._syn_number, self._digest()))

    def _ask_again(self, peer: str, now_s: float) -> list[Outgoing]:
        """At once, but not while an answer is due: a hundred pushes after a lost one need one question."""
        asked = self._syns.get(peer)
        if asked is not None and now_s - asked[1] < self.settings.interval_s:
            return []
        self._syn_number += 1
        return [self._syn(peer, now_s)]

    def _push(self, change: HubDelta | None) -> list[Outgoing]:
        if change is None:
            return []
        push = Push(change)
        return [Outgoing(peer, push) for peer in self.peers]

    def _digest(self) -> dict[str, Known]:
        """Names all members, heard or not: about others nobody need tell us."""
        return {hub: state.known for hub, state in self._states.items()}

    # Listening

    def _note_answer(self, peer: str, number: int, now_s: float) -> None:
        asked = self._syns.get(peer)
        if asked is not None and asked[0] == number:
            del self._syns[peer]
            self._liveness.note_round_trip(peer, now_s - asked[1])

    def _apply(self, via: str, delta: Iterable[HubDelta], now_s: float) -> list[Outgoing]:
        ask_again = False
        for part in delta:
            if part.hub == self.me:
                self._look_for_clone(part, via)
                continue
            state = self._states.get(part.hub)
            if state is None:
                self._desk.refuse(part.hub, via, Reason.NO_MEMBER)
                continue
            done = apply(part, state, self._verifier, self.settings)
            self._note(part.hub, via, done, now_s)
            if done.refused is None:
                # After a cut-off delta there is more to come; only progress may ask, or two hubs would ask for ever.
                ask_again |= done.gap or (bool(done.changed) and not state.is_complete)
        return self._ask_again(via, now_s) if ask_again else []

    def _note(self, hub: str, via: str, done: Applied, now_s: float) -> None:
        self._desk.changed(hub, done.changed)
        if done.refused is not None:
            self._desk.refuse(hub, "" if done.refused is Reason.LEFT_OUT else via, done.refused)
        if done.beat:
            self._via[hub] = via
        if done.first_of_life:
            self._liveness.seen_first(hub, now_s)
            self._desk.tell(Appeared(hub, self._states[hub].generation))
        elif done.beat and self._liveness.heard(hub, now_s) is Standing.SUSPECTED:
            self._desk.tell(Recovered(hub))

    def _look_for_clone(self, part: HubDelta, via: str) -> None:
        """Only this hub beats under its name: a later heartbeat than its own last one is somebody else's."""
        theirs, mine = part.heartbeat, self._own.heartbeat
        if (theirs.generation, theirs.beat) <= (mine.generation, mine.beat):
            return
        if theirs.generation <= self._clone_generation:  # told already
            return
        if not heartbeat_is_genuine(self.me, theirs, self._verifier):
            self._desk.refuse(self.me, via, Reason.BAD_SIGNATURE)
            return
        self._clone_generation = theirs.generation
        self._desk.tell(IdentityCloned(theirs.generation, via))
