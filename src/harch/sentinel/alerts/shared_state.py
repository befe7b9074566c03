"""What is silenced, acknowledged and already told? Records of this hub and of its peers, in one place.

Every accepted record, own or foreign, gets the next number of this hub. `export_changes` answers what came after a
number, so that a peer that is one change behind gets one record, and a new one gets all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from harch.base.errors import HarchError
from harch.sentinel.alerts.alert import TENANT_LABEL
from harch.sentinel.alerts.matchers import all_match
from harch.sentinel.alerts.records import Ack, Notified, Record, Silence, SilenceState, encode_record, is_newer, kind_of
from harch.sentinel.model.matchers import Matcher, MatchKind

SILENCES_MAX = 10_000
ACKS_MAX = 50_000
NOTIFIED_MAX = 100_000
RECORD_BYTES_MAX = 1_048_576
EXPORT_RECORDS_MAX = 1_000
LIMITS: dict[type[Record], int] = {Silence: SILENCES_MAX, Ack: ACKS_MAX, Notified: NOTIFIED_MAX}

Kind = TypeVar("Kind", Silence, Ack, Notified)


class SharedState:
    """No I/O: whoever owns it takes `changes` to the disk and to the peers."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], Record] = {}
        self._numbers: dict[tuple[str, str], int] = {}  # in the order of the numbers
        self._counts: dict[type[Record], int] = {Silence: 0, Ack: 0, Notified: 0}
        self._last_number = 0
        self._index = _SilenceIndex()
        self._unsaved: dict[tuple[str, str], Record | None] = {}

    # Records

    def silence(self, silence_id: str) -> Silence | None:
        return self._get(Silence, "silence", silence_id)

    def silences(self) -> list[Silence]:
        return [record for record in self._records.values() if isinstance(record, Silence)]

    def ack(self, fingerprint: str) -> Ack | None:
        return self._get(Ack, "ack", fingerprint)

    def acks(self) -> list[Ack]:
        return [record for record in self._records.values() if isinstance(record, Ack)]

    def notified(self, receiver: str, group_key: str) -> Notified | None:
        return self._get(Notified, "notified", f"{receiver}|{group_key}")

    def _get(self, kind: type[Kind], tag: str, key: str) -> Kind | None:
        found = self._records.get((tag, key))
        return found if isinstance(found, kind) else None

    def silenced_by(self, labels: Mapping[str, str], *, now_ms: int) -> list[str]:
        """The ids of active silences that match."""
        found = (self.silence(silence_id) for silence_id in self._index.candidates(labels))
        return sorted(
            one.id
            for one in found
            if one is not None
            and one.state(now_ms) is SilenceState.ACTIVE
            and one.tenant in ("", labels.get(TENANT_LABEL, ""))  # again: a peer may have let another matcher pass
            and all_match(self._index.matchers(one.id), labels)
        )

    # Changes

    def put(self, record: Record, *, now_ms: int) -> None:
        """A change of this hub: it is later than what it replaces, even if that came from a clock ahead of ours.

        Raises E0649 when there are too many.
        """
        address = (kind_of(record), record.key)
        before = self._records.get(address)
        if before is None and self._counts[type(record)] >= LIMITS[type(record)]:
            self.collect_garbage(now_ms=now_ms)
            if self._counts[type(record)] >= LIMITS[type(record)]:
                raise HarchError(
                    "E0649",
                    f"there are {LIMITS[type(record)]} records of kind {address[0]} already",
                    hint="wait until old ones are forgotten, or use fewer with wider matchers",
                )
        if before is not None and not is_newer(record, before):
            record = msgspec.structs.replace(record, updated_at_ms=before.updated_at_ms + 1)
        self._keep(address, record)

    def merge(self, records: Iterable[Record], *, now_ms: int) -> list[Record]:
        """Takes over what is newer than what is known; answers what was. Expired records and those over the limits
        are left out."""
        accepted: list[Record] = []
        for record in records:
            address = (kind_of(record), record.key)
            before = self._records.get(address)
            if record.expires_at_ms <= now_ms or not _is_sound(record):
                continue
            if before is None and self._counts[type(record)] >= LIMITS[type(record)]:
                continue
            if before is None or is_newer(record, before):
                self._keep(address, record)
                accepted.append(record)
        return accepted

    def export_changes(self, after: int = 0, *, limit: int = EXPORT_RECORDS_MAX) -> tuple[list[Record], int]:
        """Records that changed after a number, and the number to ask with next time."""
        found: list[Record] = []
        number = after
        for address, number_of_change in reversed(self._numbers.items()):
            if number_of_change <= after:
                break
            found.append(self._records[address])
        found.reverse()
        if len(found) > limit:
            found = found[:limit]
        if found:
            number = self._numbers[kind_of(found[-1]), found[-1].key]
        return found, number

    def collect_garbage(self, *, now_ms: int) -> int:
        """Forgets what has expired. A record that comes back from a peer would be refused."""
        expired = [address for address, record in self._records.items() if record.expires_at_ms <= now_ms]
        for address in expired:
            record = self._records.pop(address)
            del self._numbers[address]
            self._counts[type(record)] -= 1
            self._unsaved[address] = None
            if isinstance(record, Silence):
                self._index.remove(record.id)
        return len(expired)

    def take_unsaved(self) -> dict[tuple[str, str], Record | None]:
        """What is not on disk yet; None for what has to go."""
        unsaved, self._unsaved = self._unsaved, {}
        return unsaved

    def load(self, records: Iterable[Record], *, now_ms: int) -> None:
        """What the disk held. What has expired meanwhile goes from there, too."""
        found = list(records)
        self.merge(found, now_ms=now_ms)
        addresses = ((kind_of(record), record.key) for record in found)
        self._unsaved = {address: None for address in addresses if address not in self._records}

    def _keep(self, address: tuple[str, str], record: Record) -> None:
        self._counts[type(record)] += address not in self._records
        self._records[address] = record
        self._last_number += 1
        self._numbers.pop(address, None)
        self._numbers[address] = self._last_number
        self._unsaved[address] = record
        if isinstance(record, Silence):
            self._index.add(record)


def _is_sound(record: Record) -> bool:
    """Peers may run another release: a pattern that does not compile here must not break the matching of all others."""
    if len(encode_record(record)) > RECORD_BYTES_MAX:
        return False
    try:
        return not isinstance(record, Silence) or not all(one.matches_empty() for one in record.matchers)
    except HarchError:
        return False


class _SilenceIndex:
    """Which silences could match? By one of their equalities, so that thousands of silences cost an alert nothing."""

    def __init__(self) -> None:
        self._by_pair: dict[tuple[str, str], set[str]] = {}
        self._pair_of: dict[str, tuple[str, str] | None] = {}
        self._others: set[str] = set()
        self._matchers: dict[str, tuple[Matcher, ...]] = {}

    def add(self, silence: Silence) -> None:
        self.remove(silence.id)
        matchers = silence.matchers
        equal = next((m for m in matchers if m.kind is MatchKind.EQUAL and m.value), None)
        pair = (equal.name, equal.value) if equal is not None else None
        self._pair_of[silence.id] = pair
        self._matchers[silence.id] = matchers
        (self._others if pair is None else self._by_pair.setdefault(pair, set())).add(silence.id)

    def remove(self, silence_id: str) -> None:
        if silence_id not in self._pair_of:
            return
        pair = self._pair_of.pop(silence_id)
        del self._matchers[silence_id]
        if pair is None:
            self._others.discard(silence_id)
            return
        self._by_pair[pair].discard(silence_id)
        if not self._by_pair[pair]:
            del self._by_pair[pair]

    def candidates(self, labels: Mapping[str, str]) -> set[str]:
        found = set(self._others)
        for pair in labels.items():
            found |= self._by_pair.get(pair, frozenset())
        return found

    def matchers(self, silence_id: str) -> tuple[Matcher, ...]:
        return self._matchers[silence_id]
