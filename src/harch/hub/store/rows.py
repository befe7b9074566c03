"""How do the hub's values become rows? Statements with parameters, ready to run in somebody's transaction."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from harch.base.clock import iso
from harch.hub.store.records import AgentKey, CatalogEntry, IdempotencyEntry
from harch.hub.views import KeyInfo
from harch.wire.events import EventRecord
from harch.workloads.lifecycle import Workload

Statement = tuple[str, tuple[object, ...]]

_encode = msgspec.json.Encoder().encode
_decode_workload = msgspec.json.Decoder(Workload).decode
_decode_entry = msgspec.json.Decoder(CatalogEntry).decode
_decode_data = msgspec.json.Decoder(dict[str, object]).decode

EVENTS_MAX = 1_000_000  # older ones are dropped, a few thousand at a time


SAVE_WORKLOAD = (
    "INSERT INTO workloads (id, tenant, name, type, state, active, hidden, created_at, body, guest_of)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (id) DO UPDATE SET state = excluded.state, active = excluded.active, hidden = excluded.hidden,"
    " body = excluded.body"  # not what an index sorts by: SQLite would write its entry anew at each change of state
)
SAVE_EVENT = "INSERT INTO events (seq, at, kind, subject, tenant, message, data) VALUES (?, ?, ?, ?, ?, ?, ?)"


def save_workload(workload: Workload) -> Statement:
    """`active`: needed after a restart; also a guest whose end its owner does not have yet."""
    spec = workload.spec
    return (
        SAVE_WORKLOAD,
        (
            workload.id,
            workload.tenant,
            spec.name,
            spec.type.value,
            workload.state.value,
            0 if workload.state.is_final and not workload.report_due else 1,
            int(workload.hidden),
            iso(workload.created_at),
            _encode(workload),
            workload.owner_hub if workload.borrowed else "",
        ),
    )


def save_name(workload: Workload) -> Statement:
    """What `save_workload` writes only once, for one whose specification was replaced."""
    spec = workload.spec
    return "UPDATE workloads SET name = ?, type = ? WHERE id = ?", (spec.name, spec.type.value, workload.id)


def save_labels(workload: Workload) -> list[Statement]:
    statements: list[Statement] = [("DELETE FROM workload_labels WHERE workload_id = ?", (workload.id,))]
    statements += [
        ("INSERT INTO workload_labels (workload_id, label, value) VALUES (?, ?, ?)", (workload.id, label, value))
        for label, value in workload.spec.labels.items()
    ]
    return statements


def load_workload(body: bytes) -> Workload:
    return _decode_workload(body)


def save_event(event: EventRecord) -> Statement:
    return (
        SAVE_EVENT,
        (
            event.seq,
            iso(event.at),
            event.kind,
            event.subject,
            event.tenant,
            event.message,
            _encode(event.data),
        ),
    )


def drop_events_before(seq: int) -> Statement:
    return "DELETE FROM events WHERE seq < ?", (seq,)


def load_event(row: tuple[int, str, str, str, str, str, bytes]) -> EventRecord:
    seq, at, kind, subject, tenant, message, data = row
    return EventRecord(
        seq=seq,
        at=datetime.fromisoformat(at),
        kind=kind,
        subject=subject,
        tenant=tenant,
        message=message,
        data=_decode_data(data),
    )


def save_idempotency_key(entry: IdempotencyEntry) -> Statement:
    return (
        "INSERT INTO idempotency_keys (tenant, key, workload_id, digest, created_at) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (tenant, key) DO UPDATE SET workload_id = excluded.workload_id, digest = excluded.digest,"
        " created_at = excluded.created_at",
        (entry.tenant, entry.key, entry.workload_id, entry.digest, iso(entry.created_at)),
    )


def drop_idempotency_keys_before(now: datetime, window: timedelta) -> Statement:
    return "DELETE FROM idempotency_keys WHERE created_at < ?", (iso(now - window),)


def save_condition(kind: str, subject: str, value: float | None, why: str) -> Statement:
    if value is None:
        return "DELETE FROM conditions WHERE kind = ? AND subject = ?", (kind, subject)
    return (
        "INSERT INTO conditions (kind, subject, value, why) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (kind, subject) DO UPDATE SET value = excluded.value, why = excluded.why",
        (kind, subject, value, why),
    )


def save_api_key(info: KeyInfo, digest: str) -> Statement:
    return (
        "INSERT INTO api_keys (id, digest, name, tenant, role, prefix, created_at, last_used_at, revoked)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET revoked = excluded.revoked,"
        " last_used_at = excluded.last_used_at",
        (
            info.id,
            digest,
            info.name,
            info.tenant,
            info.role.value,
            info.prefix,
            iso(info.created_at),
            iso(info.last_used_at) if info.last_used_at else None,
            int(info.revoked),
        ),
    )


def save_agent_key(one: AgentKey) -> Statement:
    return (
        "INSERT INTO agent_keys (key_id, agent_id, node_ids) VALUES (?, ?, ?)"
        " ON CONFLICT (key_id, agent_id) DO UPDATE SET node_ids = excluded.node_ids",
        (one.key_id, one.agent_id, msgspec.json.encode(one.node_ids).decode()),
    )


def drop_agent_keys(key_id: str) -> Statement:
    return "DELETE FROM agent_keys WHERE key_id = ?", (key_id,)


def save_secret(tenant: str, name: str, sealed: bytes) -> Statement:
    return (
        "INSERT INTO secrets (tenant, name, sealed) VALUES (?, ?, ?)"
        " ON CONFLICT (tenant, name) DO UPDATE SET sealed = excluded.sealed",
        (tenant, name, sealed),
    )


def drop_secret(tenant: str, name: str) -> Statement:
    return "DELETE FROM secrets WHERE tenant = ? AND name = ?", (tenant, name)


def save_data(entry: CatalogEntry) -> Statement:
    data = entry.object
    return (
        "INSERT INTO data_objects (id, tenant, name, kind, tag_revision, created_at, body) VALUES (?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (id) DO UPDATE SET tag_revision = excluded.tag_revision, body = excluded.body",
        (
            data.id,
            data.tenant,
            data.name,
            data.kind.value,
            data.tag_revision,
            iso(entry.created_at),
            _encode(entry),
        ),
    )


def drop_data(data_id: str) -> Statement:
    return "DELETE FROM data_objects WHERE id = ?", (data_id,)


def load_data(body: bytes) -> CatalogEntry:
    return _decode_entry(body)


def save_authority(name: str, public_key: bytes, at: datetime) -> Statement:
    return (
        "INSERT INTO authorities (name, public_key, added_at) VALUES (?, ?, ?)"
        " ON CONFLICT (name) DO UPDATE SET public_key = excluded.public_key, added_at = excluded.added_at",
        (name, public_key.hex(), iso(at)),
    )


def drop_authority(name: str) -> Statement:
    return "DELETE FROM authorities WHERE name = ?", (name,)
