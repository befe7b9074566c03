"""How did the tables come to be? Numbered steps, applied once each, in order, in one transaction.

The SQL keeps to what SQLite and PostgreSQL both understand. Never change a step that was released: add one.
"""

from __future__ import annotations

import sqlite3

from harch.base.errors import HarchError

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE workloads (
            id TEXT PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL, type TEXT NOT NULL, state TEXT NOT NULL,
            active INTEGER NOT NULL, hidden INTEGER NOT NULL, created_at TEXT NOT NULL, body BLOB NOT NULL)""",
        "CREATE INDEX workloads_by_age ON workloads (created_at)",
        "CREATE INDEX workloads_by_name ON workloads (tenant, name)",
        "CREATE INDEX workloads_unfinished ON workloads (active) WHERE active = 1",
        """CREATE TABLE workload_labels (
            workload_id TEXT NOT NULL, label TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (workload_id, label))""",
        "CREATE INDEX workload_labels_by_value ON workload_labels (label, value)",
        """CREATE TABLE events (
            seq INTEGER PRIMARY KEY, at TEXT NOT NULL, kind TEXT NOT NULL, subject TEXT NOT NULL, tenant TEXT NOT NULL,
            message TEXT NOT NULL, data BLOB NOT NULL)""",
        "CREATE INDEX events_by_subject ON events (subject, seq)",
        """CREATE TABLE idempotency_keys (
            tenant TEXT NOT NULL, key TEXT NOT NULL, workload_id TEXT NOT NULL, digest TEXT NOT NULL,
            created_at TEXT NOT NULL, PRIMARY KEY (tenant, key))""",
        """CREATE TABLE api_keys (
            id TEXT PRIMARY KEY, digest TEXT NOT NULL UNIQUE, name TEXT NOT NULL, tenant TEXT NOT NULL,
            role TEXT NOT NULL, prefix TEXT NOT NULL, created_at TEXT NOT NULL, last_used_at TEXT,
            revoked INTEGER NOT NULL)""",
        """CREATE TABLE secrets (
            tenant TEXT NOT NULL, name TEXT NOT NULL, sealed BLOB NOT NULL, PRIMARY KEY (tenant, name))""",
    ),
    (
        # Append-only. `kind` and `subject` repeat what `entry` says, to find it; only `entry` is hashed and exported.
        """CREATE TABLE audit (
            seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, subject TEXT NOT NULL, hash TEXT NOT NULL,
            entry BLOB NOT NULL)""",
        "CREATE INDEX audit_by_subject ON audit (subject, seq)",
        "CREATE TABLE audit_data (data_id TEXT NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (data_id, seq))",
        """CREATE TABLE audit_checkpoints (
            hub TEXT NOT NULL, seq INTEGER NOT NULL, hash TEXT NOT NULL, line BLOB NOT NULL,
            PRIMARY KEY (hub, seq, hash))""",
    ),
    (
        """CREATE TABLE policy_bundles (
            role TEXT PRIMARY KEY, digest TEXT NOT NULL, name TEXT NOT NULL, version TEXT NOT NULL,
            activated_at TEXT NOT NULL, actor TEXT NOT NULL, files BLOB NOT NULL)""",
        # Bounded: what a later bundle is compared on. Equal questions share a row.
        """CREATE TABLE policy_decisions (
            digest TEXT NOT NULL, policy TEXT NOT NULL, ground TEXT NOT NULL, question TEXT NOT NULL,
            allowed INTEGER NOT NULL, count INTEGER NOT NULL, first_at TEXT NOT NULL, last_at TEXT NOT NULL,
            input BLOB NOT NULL, PRIMARY KEY (digest, policy, ground))""",
        "CREATE INDEX policy_decisions_by_age ON policy_decisions (last_at)",
    ),
    (
        """CREATE TABLE conditions (
            kind TEXT NOT NULL, subject TEXT NOT NULL, value REAL NOT NULL, why TEXT NOT NULL,
            PRIMARY KEY (kind, subject))""",
    ),
    (
        # `tenant`, `name` and `kind` repeat what `body` says, for people who look into the table.
        """CREATE TABLE data_objects (
            id TEXT PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL,
            tag_revision INTEGER NOT NULL, created_at TEXT NOT NULL, body BLOB NOT NULL)""",
        """CREATE TABLE authorities (
            name TEXT PRIMARY KEY, public_key TEXT NOT NULL, added_at TEXT NOT NULL)""",
    ),
    (
        # The hub that owns it, of work that runs here under a lease; empty for own work.
        "ALTER TABLE workloads ADD COLUMN guest_of TEXT NOT NULL DEFAULT ''",
    ),
    (
        # Bounded by age. The mean of an hour is `total / readings`.
        """CREATE TABLE carbon_hours (
            signal TEXT NOT NULL, hour TEXT NOT NULL, source TEXT NOT NULL, total REAL NOT NULL,
            readings INTEGER NOT NULL, PRIMARY KEY (signal, hour, source))""",
        "CREATE INDEX carbon_hours_by_age ON carbon_hours (hour)",
    ),
    (
        # Append-only. The columns beside `entry` repeat what it says, to find it; only `entry` is hashed and exported.
        """CREATE TABLE carbon_ledger (
            seq INTEGER PRIMARY KEY, job TEXT NOT NULL, tenant TEXT NOT NULL, starts_at TEXT NOT NULL,
            ends_at TEXT NOT NULL, corrects INTEGER NOT NULL, hash TEXT NOT NULL, entry BLOB NOT NULL)""",
        "CREATE INDEX carbon_ledger_by_time ON carbon_ledger (starts_at, seq)",
        "CREATE INDEX carbon_ledger_by_end ON carbon_ledger (ends_at)",
        "CREATE INDEX carbon_ledger_by_job ON carbon_ledger (job, seq)",
        "CREATE INDEX carbon_ledger_corrected ON carbon_ledger (corrects) WHERE corrects > 0",
    ),
    (
        # Bounded by age, both. The columns beside `body` repeat what it says, to find it.
        "CREATE TABLE energy_steps (at TEXT PRIMARY KEY, body BLOB NOT NULL)",
        # Append-only but for its age. `number` counts the rows of one bid, so that none is written twice.
        """CREATE TABLE energy_book (
            bid_id TEXT NOT NULL, number INTEGER NOT NULL, delivery TEXT NOT NULL, at TEXT NOT NULL,
            body BLOB NOT NULL, PRIMARY KEY (bid_id, number))""",
        "CREATE INDEX energy_book_by_delivery ON energy_book (delivery)",
    ),
    (
        "CREATE TABLE pipelines (name TEXT PRIMARY KEY, body BLOB NOT NULL)",
        # Bounded per name. They outlive their pipeline, because the audit chain names versions.
        """CREATE TABLE pipeline_versions (
            name TEXT NOT NULL, version INTEGER NOT NULL, applied_at TEXT NOT NULL, applied_by TEXT NOT NULL,
            spec BLOB NOT NULL, PRIMARY KEY (name, version))""",
        # How far the actions of a pipeline are in the audit chain: a number of its stream.
        "CREATE TABLE pipeline_audited (pipeline TEXT PRIMARY KEY, seq INTEGER NOT NULL)",
    ),
    (
        # `node_ids` is JSON. A key that was made before belongs to all agents that have been seen: they may share it.
        """CREATE TABLE agent_keys (
            key_id TEXT NOT NULL, agent_id TEXT NOT NULL, node_ids TEXT NOT NULL, PRIMARY KEY (key_id, agent_id))""",
        """INSERT INTO agent_keys (key_id, agent_id, node_ids)
            SELECT DISTINCT api_keys.id, events.subject, '[]' FROM api_keys, events
            WHERE api_keys.role = 'agent' AND api_keys.revoked = 0 AND events.kind = 'agent.joined'""",
    ),
)


def migrate(connection: sqlite3.Connection) -> int:
    """Brings the tables up to date and returns their version. Refuses a database from the future."""
    connection.execute("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)")
    row = connection.execute("SELECT MAX(version) FROM schema_version").fetchone()
    version: int = row[0] or 0
    if version > len(MIGRATIONS):
        raise HarchError(
            "E1006",
            f"the database has schema version {version}, this program knows {len(MIGRATIONS)}",
            hint="upgrade HarchOS, or restore an older copy of the state folder",
        )
    for number, statements in enumerate(MIGRATIONS[version:], start=version + 1):
        connection.execute("BEGIN IMMEDIATE")
        for statement in statements:
            connection.execute(statement)
        connection.execute("INSERT INTO schema_version (version) VALUES (?)", (number,))
        connection.execute("COMMIT")
    return len(MIGRATIONS)
