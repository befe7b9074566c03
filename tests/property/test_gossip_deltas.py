"""Whatever order deltas of a hub's state come in, late, twice, in pieces or through others, copies agree with the hub.

Limits are so small here that almost every story meets cut-off deltas, collected tombstones and full copies.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from harch.federation.gossip.machine import OwnState, apply, delta_for
from harch.federation.gossip.messages import HubDelta, KnownVersions
from harch.federation.gossip.state import GossipSettings, HubState
from sim.gossip_world import HashSigner, HashVerifier

HUB = "dakhla"
COPIES = 4
KEYS = 6
TIGHT = GossipSettings(delta_bytes_max=220, tombstones_max=2, tombstone_keep_s=5.0)  # two entries in a delta
LOOSE = GossipSettings()
VERIFIER = HashVerifier()


class Rumours:
    """A hub, copies of its state at others, and deltas on their way between them."""

    def __init__(self) -> None:
        self.own = OwnState(HUB, 1, HashSigner(HUB), TIGHT)
        self.copies = [HubState(HUB) for _ in range(COPIES)]
        self.holders = [self.own.state, *self.copies]
        self.on_their_way: list[tuple[HubState, HubDelta]] = []
        self.log: list[tuple[str, bytes | None]] = []
        self.now_s = 0.0

    def do(self, step: tuple[str, int, int]) -> None:
        kind, one, two = step
        self.now_s += 1.0
        key = f"key{one % KEYS}"
        if kind == "set" and (change := self.own.set(key, f"{self.now_s}".encode())):
            self.log.append((key, self.own.state.values[key]))
            self.push(change)
        elif kind == "delete" and (change := self.own.delete(key, self.now_s)):
            self.log.append((key, None))
            self.push(change)
        elif kind == "beat":
            self.own.beat(self.now_s)
        elif kind == "tell":
            self.tell(self.holders[one % len(self.holders)], self.copies[two % COPIES])
        elif kind == "deliver" and self.on_their_way:
            self.deliver(*self.on_their_way[one % len(self.on_their_way)])  # and it stays: it may come again
        elif kind == "lose" and self.on_their_way:
            del self.on_their_way[one % len(self.on_their_way)]

    def push(self, change: HubDelta) -> None:
        self.on_their_way += [(copy, change) for copy in self.copies]

    def tell(self, teller: HubState, listener: HubState) -> None:
        for delta in delta_for([teller], {HUB: listener.known}, TIGHT):
            self.on_their_way.append((listener, delta))

    def deliver(self, listener: HubState, delta: HubDelta) -> None:
        assert apply(delta, listener, VERIFIER, TIGHT).refused is None
        self.check(listener)

    def check(self, copy: HubState) -> None:
        """Who knows version v knows what held at v, but for keys that were replaced after v."""
        assert list(copy.entries.values()) == sorted(copy.entries.values(), key=lambda entry: entry.version)
        then, later = dict(self.log[: copy.version]), {key for key, _ in self.log[copy.version :]}
        for key in (then.keys() | copy.values.keys()) - later:
            assert copy.values.get(key) == then.get(key), f"`{key}` at version {copy.version}"

    def settle(self) -> None:
        """Everybody hears from the hub until they know all: as many deltas as entries, and one more, must do."""
        self.own.beat(self.now_s)
        for copy in self.copies:
            for _ in range(len(self.own.state.entries) + 2):
                self.on_their_way.clear()
                self.tell(self.own.state, copy)
                for listener, delta in self.on_their_way:
                    self.deliver(listener, delta)


STEP = st.tuples(
    st.sampled_from(["set", "set", "delete", "delete", "beat", "tell", "tell", "tell", "deliver", "deliver", "lose"]),
    st.integers(0, 60),
    st.integers(0, 60),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(STEP, min_size=20, max_size=120))
def test_copies_are_never_wrong_and_agree_in_the_end(steps: list[tuple[str, int, int]]) -> None:
    rumours = Rumours()
    for step in steps:
        rumours.do(step)
    rumours.settle()
    for copy in rumours.copies:
        assert copy.values == rumours.own.state.values
        assert copy.fingerprint == rumours.own.state.fingerprint
        assert copy.is_complete


CHANGE = st.tuples(st.sampled_from(["set", "set", "delete"]), st.integers(0, KEYS - 1))


@settings(max_examples=50, deadline=None)
@given(st.lists(CHANGE, min_size=1, max_size=20), st.data())
def test_the_order_and_number_of_deliveries_do_not_matter(changes: list[tuple[str, int]], data: st.DataObject) -> None:
    own = OwnState(HUB, 1, HashSigner(HUB), LOOSE)
    deltas: list[HubDelta] = []
    for number, (kind, key) in enumerate(changes):
        if kind == "set":
            own.set(f"key{key}", str(number).encode())
        else:
            own.delete(f"key{key}", float(number))
        # Once from the start: every delta stands alone, so that any order can be applied.
        deltas += delta_for([own.state], {HUB: KnownVersions()}, LOOSE)
    copy = HubState(HUB)
    for delta in data.draw(st.permutations(deltas)) + data.draw(st.lists(st.sampled_from(deltas))):
        assert apply(delta, copy, VERIFIER, LOOSE).refused is None
    assert (copy.values, copy.version) == (own.state.values, own.state.version)
    before = (copy.known, dict(copy.entries))
    for delta in deltas:
        done = apply(delta, copy, VERIFIER, LOOSE)
        assert (done.beat, done.changed, done.gap) == (False, set(), False)
    assert (copy.known, copy.entries) == before
