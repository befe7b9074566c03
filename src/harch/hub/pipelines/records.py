"""What is kept of pipelines? Statements to run in somebody's transaction, and what to read back."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from harch.hub.pipelines.values import PipelineRecord
from harch.hub.store.database import Database
from harch.hub.store.rows import Statement

VERSIONS_KEPT = 50

_encode = msgspec.json.Encoder().encode


class VersionRow(Struct, frozen=True):
    version: int
    applied_at: str
    applied_by: str


def save(record: PipelineRecord) -> list[Statement]:
    return [
        (
            "INSERT INTO pipelines (name, body) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET body = excluded.body",
            (record.name, _encode(record)),
        )
    ]


def save_version(record: PipelineRecord) -> list[Statement]:
    """The record, and its specification among the versions, of which the newest are kept."""
    body = (record.name, record.version, record.applied_at, record.applied_by, _encode(record.spec))
    return [
        *save(record),
        (
            "INSERT INTO pipeline_versions (name, version, applied_at, applied_by, spec) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT DO NOTHING",
            body,
        ),
        (
            "DELETE FROM pipeline_versions WHERE name = ? AND version <= ?",
            (record.name, record.version - VERSIONS_KEPT),
        ),
    ]


def forget(name: str) -> list[Statement]:
    """The versions stay, since the audit chain names them."""
    return [
        ("DELETE FROM pipelines WHERE name = ?", (name,)),
        ("DELETE FROM pipeline_audited WHERE pipeline = ?", (name,)),
    ]


def save_audited(pipeline: str, seq: int) -> Statement:
    """In the transaction that takes these entries into the chain, so that none is taken twice."""
    return (
        "INSERT INTO pipeline_audited (pipeline, seq) VALUES (?, ?) ON CONFLICT (pipeline) DO UPDATE SET"
        " seq = excluded.seq",
        (pipeline, seq),
    )


def all_records(database: Database) -> list[PipelineRecord]:
    found = database.query("SELECT body FROM pipelines ORDER BY name", ())
    return [msgspec.json.decode(body, type=PipelineRecord) for (body,) in found]


def versions(database: Database, name: str) -> list[VersionRow]:
    """Newest first."""
    found = database.query(
        "SELECT version, applied_at, applied_by FROM pipeline_versions WHERE name = ? ORDER BY version DESC", (name,)
    )
    return [VersionRow(*row) for row in found]


def last_version(database: Database, name: str) -> int:
    """Also of one that was removed: versions of a name go on."""
    found = database.query("SELECT MAX(version) FROM pipeline_versions WHERE name = ?", (name,))
    return int(found[0][0] or 0) if found else 0


def audited(database: Database, pipeline: str) -> int:
    found = database.query("SELECT seq FROM pipeline_audited WHERE pipeline = ?", (pipeline,))
    return int(found[0][0]) if found else 0
