"""What is silenced, acknowledged and already sent?

Records of this hub and of its peers, in one place: the last word wins.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

from harch.base.errors import HarchError
from harch.sentinel.alerts.alert import TENANT_LABEL
from harch.sentinel.alerts.matchers import all_match
from harch.sentinel.model.labels import Labels, Matcher, MatchKind

# What do hubs tell each other about alerts? Silences, acknowledgements and sent notifications: the last word wins.
#
# Of two versions of a record the one with the later `updated_at_ms` is kept, and of two with the same time the one
# whose
# bytes sort last. So hubs that saw the same records hold the same state, whatever the order and however often they
# came.


SILENCE_RETENTION_MS = 5 * 86_400_000  # after its end
ACK_RETENTION_MS = 5 * 86_400_000


class SilenceState(StrEnum):
    ACTIVE = "active"
    PENDING = "pending"
    EXPIRED = "expired"


class Match(Struct, frozen=True, array_like=True):
    """A matcher on the wire and on disk."""

    name: str
    value: str
    kind: Literal["=", "!=", "=~", "!~"] = "="

    @property
    def matcher(self) -> Matcher:
        return Matcher(MatchKind(self.kind), self.name, self.value)


class Silence(Struct, frozen=True, kw_only=True, tag="silence", omit_defaults=True):
    """Alerts that match all of `matches` are not notified while it is active.

    An operator's silence has no `tenant` and is written as ever, so that hubs of other releases hold the same bytes.
    """

    id: str
    matches: tuple[Match, ...]
    starts_at_ms: int
    ends_at_ms: int
    updated_at_ms: int
    created_by: str
    comment: str
    tenant: str = ""  # whose users made it: it matches alerts of this tenant alone; empty: operators

    @property
    def key(self) -> str:
        return self.id

    @property
    def expires_at_ms(self) -> int:
        return self.ends_at_ms + SILENCE_RETENTION_MS

    @property
    def matchers(self) -> tuple[Matcher, ...]:
        return tuple(match.matcher for match in self.matches)

    def state(self, now_ms: int) -> SilenceState:
        if now_ms < self.starts_at_ms:
            return SilenceState.PENDING
        return SilenceState.EXPIRED if now_ms >= self.ends_at_ms else SilenceState.ACTIVE


class AlertAck(Struct, frozen=True, kw_only=True, tag="ack"):
    """Somebody looks after the alert: it is not repeated. It covers what began before it, until that is resolved."""

    fingerprint: str
    labels: Labels
    at_ms: int  # when it was acknowledged
    updated_at_ms: int
    by: str
    why: str
    until_ms: int = 0  # 0: until the alert is resolved
    is_withdrawn: bool = False

    @property
    def key(self) -> str:
        return self.fingerprint

    @property
    def expires_at_ms(self) -> int:
        return max(self.updated_at_ms, self.until_ms) + ACK_RETENTION_MS

    def covers(self, starts_at_ms: int, now_ms: int) -> bool:
        in_time = self.until_ms == 0 or now_ms < self.until_ms
        return not self.is_withdrawn and in_time and starts_at_ms <= self.at_ms


class Notified(Struct, frozen=True, kw_only=True, tag="notified"):
    """What a receiver was last notified of for a group: the fingerprints of its alerts.

    Before a message leaves, its entry says `in_doubt`, and `firing` names all that the receiver may believe to fire.
    What stays in doubt, because the process died or the answer got lost, is sent again.
    """

    receiver: str  # with the integration's kind and number
    group_key: str
    firing: tuple[str, ...]
    resolved: tuple[str, ...]
    updated_at_ms: int
    expires_at_ms: int
    in_doubt: bool = False

    @property
    def key(self) -> str:
        return f"{self.receiver}|{self.group_key}"


Record = Silence | AlertAck | Notified

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)
_list_decoder = msgspec.json.Decoder(list[Record])


def encode_record(record: Record) -> bytes:
    return _encoder.encode(record)


def decode_record(body: bytes) -> Record:
    """Raises msgspec.ValidationError."""
    return _decoder.decode(body)


def encode_records(records: Iterable[Record]) -> bytes:
    return _encoder.encode(list(records))


def decode_records(body: bytes) -> list[Record]:
    """Raises msgspec.ValidationError for anything that is no list of records."""
    return _list_decoder.decode(body)


def kind_of(record: Record) -> str:
    return str(record.__struct_config__.tag)


def is_newer(record: Record, than: Record) -> bool:
    """The total order that makes merging the same everywhere."""
    return (record.updated_at_ms, encode_record(record)) > (than.updated_at_ms, encode_record(than))


# What is silenced, acknowledged and already notified? Records of this hub and of its peers, in one place.
#
# Every accepted record, own or foreign, gets the next number of this hub. `export_changes` answers what came after a
# number, so that a peer that is one change behind gets one record, and a new one gets all of them.


SILENCES_MAX = 10_000
ACKS_MAX = 50_000
NOTIFIED_MAX = 100_000
RECORD_BYTES_MAX = 1_048_576
EXPORT_RECORDS_MAX = 1_000
LIMITS: dict[type[Record], int] = {Silence: SILENCES_MAX, AlertAck: ACKS_MAX, Notified: NOTIFIED_MAX}

Kind = TypeVar("Kind", Silence, AlertAck, Notified)


class SharedState:
    """No I/O: whoever owns it takes `changes` to the disk and to the peers."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], Record] = {}
        self._numbers: dict[tuple[str, str], int] = {}  # in the order of the numbers
        self._counts: dict[type[Record], int] = {Silence: 0, AlertAck: 0, Notified: 0}
        self._last_number = 0
        self._index = _SilenceIndex()
        self._unsaved: dict[tuple[str, str], Record | None] = {}

    # Records

    def silence(self, silence_id: str) -> Silence | None:
        return self._get(Silence, "silence", silence_id)

    def silences(self) -> list[Silence]:
        return [record for record in self._records.values() if isinstance(record, Silence)]

    def ack(self, fingerprint: str) -> AlertAck | None:
        return self._get(AlertAck, "ack", fingerprint)

    def acks(self) -> list[AlertAck]:
        return [record for record in self._records.values() if isinstance(record, AlertAck)]

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
                    hint="wait until old ones expire, or use fewer with wider matchers",
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
