"""What is known of one hub?

Its keys in the order of their versions, tombstones of deleted ones, limits on both, and the numbers that all hubs of
a federation should share.
"""

# harch: pure

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from harch.federation.gossip.messages import FINGERPRINT_BYTES, GossipEntry, GossipHeartbeat, HubDelta, KnownVersions


@dataclass(frozen=True, slots=True)
class GossipSettings:
    interval_s: float = 0.2
    interval_spread: float = 0.1  # ±: hubs that started together shall not stay in step
    peers_per_tick: int = 3  # at most, and no more than half of the peers

    # Liveness
    phi_max: float = 8.0
    intervals_kept: int = 200
    intervals_assumed: int = 5  # so that the first few intervals seen do not decide alone
    stretch_max: float = 8.0
    latency_s_max: float = 1.0  # no link earns more patience than this, however slow
    forget_after_s: float = 24 * 3600.0

    # Limits of what one hub may say about itself
    keys_max: int = 1024
    bytes_max: int = 1024 * 1024  # keys and values together
    tombstones_max: int = 256
    tombstone_keep_s: float = 3600.0

    # Limit of what one message may carry; it must hold the largest entry
    delta_bytes_max: int = 256 * 1024


# What is known of one hub? Its keys in the order of their versions, tombstones of deleted ones, and limits on both.


_FINGERPRINT_RANGE = 1 << (8 * FINGERPRINT_BYTES)


class HubState:
    """The copy of one hub's state, at the hub itself or at another. Generation 0: nothing was heard yet."""

    def __init__(self, hub: str, generation: int = 0) -> None:
        self.hub = hub
        self.heartbeat: GossipHeartbeat | None = None
        self.begin(generation)

    def begin(self, generation: int) -> None:
        """A hub that starts anew says everything anew: what its former life said no longer holds."""
        self.generation = generation
        self.forgotten = False
        self.clear()

    def clear(self, collected: int = 0) -> None:
        """Back to version 0, to be filled from the start by a copy that has no tombstones up to `collected`."""
        self.version = 0
        self.collected = collected
        self.entries: dict[str, GossipEntry] = {}  # in ascending versions: what changes moves to the end
        self.values: dict[str, bytes] = {}  # without the deleted
        self.bytes_used = 0
        self._fingerprint = 0

    # Reading

    @property
    def known(self) -> KnownVersions:
        beat = self.heartbeat.beat if self.heartbeat else 0
        return KnownVersions(self.generation, beat, self.version, self.collected)

    @property
    def is_complete(self) -> bool:
        """Nothing is missing of what the hub had said up to its last known heartbeat."""
        return self.heartbeat is not None and not self.forgotten and self.version >= self.heartbeat.version

    @property
    def is_being_filled(self) -> bool:
        """A full copy from a hub without tombstones up to `collected` has arrived in part."""
        return self.version < self.collected

    @property
    def fingerprint(self) -> bytes:
        """Of all values, whatever the order in which they came; tombstones leave no trace in it."""
        return self._fingerprint.to_bytes(FINGERPRINT_BYTES)

    @property
    def lacks_what_it_should_have(self) -> bool:
        """It has reached the version of a heartbeat that came after it, and yet differs."""
        heartbeat = self.heartbeat
        if heartbeat is None or self.forgotten or self.version != heartbeat.version:
            return False
        return self.fingerprint != heartbeat.fingerprint

    def delta_for(self, theirs: KnownVersions) -> HubDelta | None:
        """All that somebody lacks who knows `theirs`; None when it is nothing."""
        if self.heartbeat is None or self.forgotten or theirs.generation > self.generation:
            return None
        newer_life = theirs.generation < self.generation
        # Below `collected` they may hold keys whose tombstones are gone: only a full copy tells them.
        must_reset = theirs.version < self.collected and theirs.collected < self.collected
        if must_reset and self.is_being_filled:  # half a copy is no base for another
            return HubDelta(self.hub, self.heartbeat, 0, 0, ()) if self.heartbeat.beat > theirs.beat else None
        since = 0 if newer_life or must_reset else theirs.version
        entries: list[GossipEntry] = []
        for entry in reversed(self.entries.values()):
            if entry.version <= since:
                break
            entries.append(entry)
        if not entries and not newer_life and self.heartbeat.beat <= theirs.beat:
            return None
        return HubDelta(self.hub, self.heartbeat, since, self.collected, tuple(reversed(entries)))

    def has_room_for(self, entry: GossipEntry, settings: GossipSettings) -> bool:
        """Others may hold more tombstones than the hub itself, until they hear which of them are collected."""
        if entry.value is None:
            return len(self.entries) - len(self.values) < 4 * settings.tombstones_max
        old_bytes = _bytes_of(entry.key, self.values.get(entry.key))
        keys_after = len(self.values) + (entry.key not in self.values)
        bytes_after = self.bytes_used - old_bytes + _bytes_of(entry.key, entry.value)
        return keys_after <= settings.keys_max and bytes_after <= settings.bytes_max

    # Writing

    def put(self, entry: GossipEntry) -> None:
        """The caller has checked that its version is above all others, its signature, and that there is room."""
        self._count(self.entries.pop(entry.key, None), sign=-1)
        self.values.pop(entry.key, None)
        self.entries[entry.key] = entry
        if entry.value is not None:
            self.values[entry.key] = entry.value
        self._count(entry, sign=1)
        self.version = entry.version

    def collect_tombstones(self, up_to: int) -> None:
        """The newest entry stays even if it is a tombstone: the last entry's version is the state's version."""
        if up_to <= self.collected or up_to >= self.version:
            return
        old = []
        for entry in self.entries.values():
            if entry.version > up_to:
                break
            if entry.value is None:
                old.append(entry.key)
        for key in old:
            del self.entries[key]
        self.collected = up_to

    def forget(self) -> None:
        """Drops the content and keeps the numbers, so that others do not send the same content again."""
        self.forgotten = True
        self.entries, self.values, self.bytes_used, self._fingerprint = {}, {}, 0, 0

    def remember(self) -> None:
        """The hub is back after it was forgotten: ask for everything."""
        self.forgotten = False
        self.clear()

    def _count(self, entry: GossipEntry | None, *, sign: int) -> None:
        if entry is None or entry.value is None:
            return
        self.bytes_used += sign * _bytes_of(entry.key, entry.value)
        # A signature stands for hub, generation, version, key and value at once.
        share = int.from_bytes(sha256(entry.signature).digest()[:FINGERPRINT_BYTES])
        self._fingerprint = (self._fingerprint + sign * share) % _FINGERPRINT_RANGE


def _bytes_of(key: str, value: bytes | None) -> int:
    return 0 if value is None else len(key) + len(value)
