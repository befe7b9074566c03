"""How does a hub speak about itself? The only writer of its own state: versions, signatures, heartbeats, tombstones."""

from __future__ import annotations

from harch.federation.gossip.messages import KEY_MAX, VALUE_BYTES_MAX, Entry, Heartbeat, HubDelta
from harch.federation.gossip.settings import GossipSettings
from harch.federation.gossip.signatures import Signer, entry_statement, heartbeat_statement
from harch.federation.gossip.state import HubState


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

    def _put(self, entry: Entry) -> HubDelta:
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

    def _signed_entry(self, key: str, value: bytes | None) -> Entry:
        version = self.state.version + 1
        statement = entry_statement(self.state.hub, self.state.generation, key, version, value)
        return Entry(key, version, value, self._signer.sign(statement))

    def _signed_heartbeat(self) -> Heartbeat:
        state = self.state
        facts = (state.generation, self._beat, state.version, state.collected, state.fingerprint)
        heartbeat = Heartbeat(*facts, self._signer.sign(heartbeat_statement(state.hub, *facts)))
        state.heartbeat = heartbeat
        return heartbeat
