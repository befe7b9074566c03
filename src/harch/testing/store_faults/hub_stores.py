"""What does a hub keep? Its database with all books, the key of secrets, and who it is."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from harch.base.clock import iso
from harch.federation.identity.authority import FederationAuthority, found
from harch.federation.identity.folder import IdentityFolder
from harch.federation.identity.hub_identity import HubIdentity
from harch.federation.identity.members import Address, HubName
from harch.hub.audit import table as audit_table
from harch.hub.audit.table import AuditTrail
from harch.hub.keys import KeyRing, SecretBox
from harch.hub.store import rows
from harch.hub.store.database import Database
from harch.hub.store.records import IdempotencyEntry
from harch.hub.views import Role
from harch.sovereignty.audit.chain import PLACED, Draft
from harch.testing.clock import SimClock
from harch.testing.store_faults.faults import FaultyStore, as_killed
from harch.wire.events import EventRecord
from harch.workloads.lifecycle import Workload
from harch.workloads.spec import WorkloadSpec

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def make_hub(folder: Path) -> None:
    def fill(live: Path) -> Callable[[], None]:
        clock = SimClock()
        rng = random.Random(1)  # noqa: S311 - repeatable content
        database = Database(live / "hub.db")
        trail = AuditTrail("dakhla", database, clock)
        keys, box = KeyRing([]), SecretBox(live / "secrets.key", [])
        for number in range(120):
            spec = WorkloadSpec(name=f"job-{number}", labels={"team": rng.choice("ab")})
            made = NOW + timedelta(seconds=number)
            one = Workload(
                id=f"wl_{number:04d}", tenant="t", owner_hub="dakhla", spec=spec, created_at=made, updated_at=made
            )
            event = EventRecord(
                seq=number + 1, at=made, kind="workload.submitted", subject=one.id, tenant="t", message="", data={}
            )
            once = IdempotencyEntry(tenant="t", key=f"k{number}", workload_id=one.id, digest="d", created_at=made)
            info, token = keys.issue(name=f"key-{number}", tenant="t", role=Role.OPERATOR, now=made)
            drafts = [Draft(kind=PLACED, subject=one.id, verdict="allowed", data=(f"data-{number % 7}",))]
            database.write(
                [
                    rows.save_workload(one),
                    *rows.save_labels(one),
                    rows.save_event(event),
                    rows.save_idempotency_key(once),
                    keys.statement(info, token),
                    rows.save_condition("cordoned", f"node-{number}", 1.0, "for the bench"),
                    rows.save_secret("t", f"secret-{number}", box.seal(f"value {number}")),
                    *trail.link(drafts),
                ]
            )
            if number == 60:  # the first half is in the database, the rest in its log
                database.close()
                database = Database(live / "hub.db")
                trail = AuditTrail("dakhla", database, clock)
        return database.close

    as_killed(folder, fill)


def read_hub(folder: Path) -> object:
    database = Database(folder / "hub.db")
    try:
        secrets = database.secrets()
        opened = SecretBox(folder / "secrets.key", secrets).open("t", [name for _, name, _ in secrets])
        restored = database.workloads_to_restore(NOW)
        head = audit_table.head(database)
        return dump(database), opened, sorted(iso(one.created_at) for one in restored), head
    finally:
        database.close()


def dump(database: Database) -> dict[str, list[tuple[object, ...]]]:
    """All rows of all tables."""
    names = [str(name) for (name,) in database.query("SELECT name FROM sqlite_master WHERE type = 'table'")]
    try:
        return {name: sorted(database.query(f"SELECT * FROM {name}"), key=repr) for name in names}  # noqa: S608
    except (UnicodeDecodeError, ValueError) as broken:
        raise sqlite3.DatabaseError(str(broken)) from broken


def make_identity(folder: Path) -> None:
    authority = found(IdentityFolder(folder), HubName("harch.test", "dakhla"), Address("127.0.0.1", 7721), now=NOW)
    for number in range(3):
        authority.admit(f"hub-{number}", bytes([number]) * 32, Address("127.0.0.1", 7722 + number), now=NOW)


def read_identity(folder: Path) -> object:
    identity = HubIdentity(IdentityFolder(folder))
    identity.server_context()  # loads the hub's own key
    FederationAuthority(identity)
    return (
        identity.authority,
        identity.folder.certificate(),
        identity.state_key.private_bytes_raw(),
        [repr(one) for one in identity.roster.records()],
    )


HUB_STORES = (FaultyStore("hub", make_hub, read_hub), FaultyStore("identity", make_identity, read_identity))
