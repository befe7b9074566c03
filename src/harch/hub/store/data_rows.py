"""How do data objects and authorities become rows? Statements to run, and what to read back."""

from __future__ import annotations

from datetime import datetime

import msgspec

from harch.base.clock import iso
from harch.hub.catalog import CatalogEntry
from harch.hub.store.database import Database
from harch.hub.store.rows import Statement

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(CatalogEntry).decode


def save(entry: CatalogEntry) -> Statement:
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


def entries(database: Database) -> list[CatalogEntry]:
    return [_decode(body) for (body,) in database.query("SELECT body FROM data_objects")]


def save_authority(name: str, public_key: bytes, at: datetime) -> Statement:
    return (
        "INSERT INTO authorities (name, public_key, added_at) VALUES (?, ?, ?)"
        " ON CONFLICT (name) DO UPDATE SET public_key = excluded.public_key, added_at = excluded.added_at",
        (name, public_key.hex(), iso(at)),
    )


def drop_authority(name: str) -> Statement:
    return "DELETE FROM authorities WHERE name = ?", (name,)


def authorities(database: Database) -> dict[str, bytes]:
    """Names to raw public keys."""
    found = database.query("SELECT name, public_key FROM authorities")
    return {str(name): bytes.fromhex(str(public_key)) for name, public_key in found}
