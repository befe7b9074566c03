"""What do hubs tell each other about alerts? Silences, acknowledgements and sent notifications: the last word wins.

Of two versions of a record the one with the later `updated_at_ms` is kept, and of two with the same time the one whose
bytes sort last. So hubs that saw the same records hold the same state, whatever the order and however often they came.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Literal

import msgspec
from msgspec import Struct

from harch.sentinel.model.labels import Labels
from harch.sentinel.model.matchers import Matcher, MatchKind

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


class Ack(Struct, frozen=True, kw_only=True, tag="ack"):
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
    """What a receiver was told last about a group: the fingerprints of its alerts.

    Before a message leaves, its entry says `in_doubt`, and `firing` names all that the receiver may believe to fire.
    What stays in doubt, because the process died or the answer got lost, is told again.
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


Record = Silence | Ack | Notified

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
