"""How do bundles and decisions become rows? Statements to run, and what to read back."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from harch.base.clock import iso
from harch.hub.policy.memory import Counted
from harch.hub.store.database import Database
from harch.hub.store.rows import Statement
from harch.sovereignty.policy.document import Document
from harch.sovereignty.policy.trial import PastDecision

ACTIVE = "active"
DECISIONS_MAX = 20_000  # distinct ones; the oldest go first

_encode = msgspec.json.Encoder().encode
_decode_files = msgspec.json.Decoder(dict[str, str]).decode
_decode_input = msgspec.json.Decoder(Document).decode


class StoredBundle(Struct, frozen=True, kw_only=True):
    """A bundle as it was activated."""

    digest: str
    name: str
    version: str
    activated_at: str
    actor: str
    files: dict[str, str]


def save_bundle(bundle: StoredBundle) -> Statement:
    return (
        "INSERT INTO policy_bundles (role, digest, name, version, activated_at, actor, files)"
        " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (role) DO UPDATE SET digest = excluded.digest,"
        " name = excluded.name, version = excluded.version, activated_at = excluded.activated_at,"
        " actor = excluded.actor, files = excluded.files",
        (
            ACTIVE,
            bundle.digest,
            bundle.name,
            bundle.version,
            bundle.activated_at,
            bundle.actor,
            _encode(bundle.files),
        ),
    )


def drop_bundle() -> Statement:
    return "DELETE FROM policy_bundles WHERE role = ?", (ACTIVE,)


def active_bundle(database: Database) -> StoredBundle | None:
    found = database.query(
        "SELECT digest, name, version, activated_at, actor, files FROM policy_bundles WHERE role = ?", (ACTIVE,)
    )
    for digest, name, version, activated_at, actor, files in found:
        return StoredBundle(
            digest=str(digest),
            name=str(name),
            version=str(version),
            activated_at=str(activated_at),
            actor=str(actor),
            files=_decode_files(files),
        )
    return None


def save_decisions(counted: Iterable[Counted]) -> list[Statement]:
    statements: list[Statement] = [
        (
            "INSERT INTO policy_decisions (digest, policy, ground, question, allowed, count, first_at, last_at, input)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (digest, policy, ground) DO UPDATE SET"
            " count = policy_decisions.count + excluded.count, last_at = excluded.last_at",
            (
                entry.asked.digest,
                entry.verdict.policy,
                entry.verdict.ground.value,
                "workload",
                int(entry.verdict.allowed),
                entry.count,
                iso(entry.first_at),
                iso(entry.last_at),
                _encode(entry.asked.document),
            ),
        )
        for entry in counted
    ]
    if statements:
        statements.append(
            (
                "DELETE FROM policy_decisions WHERE last_at < (SELECT last_at FROM policy_decisions"
                " ORDER BY last_at DESC LIMIT 1 OFFSET ?)",
                (DECISIONS_MAX,),
            )
        )
    return statements


def last_decisions(database: Database, limit: int) -> list[PastDecision]:
    """The newest ones, as many kinds as it takes to reach `limit` decisions."""
    found = database.query(
        "SELECT question, input, count, allowed, ground, policy, first_at, last_at FROM policy_decisions"
        " ORDER BY last_at DESC LIMIT ?",
        (min(limit, DECISIONS_MAX),),
    )
    decisions: list[PastDecision] = []
    left = limit
    for question, body, count, allowed, ground, policy, first_at, last_at in found:
        if left <= 0:
            break
        taken = min(int(count), left)
        left -= taken
        decisions.append(
            PastDecision(
                question=str(question),
                input=_decode_input(body),
                count=taken,
                allowed=bool(allowed),
                ground=str(ground),
                policy=str(policy),
                first_at=str(first_at),
                last_at=str(last_at),
            )
        )
    return decisions
