"""A hub's chain on disk: in the transaction of the decision, whole after failures, and with a key that can change."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.hub.audit import table
from harch.hub.audit.files import KeyFile
from harch.hub.audit.table import AuditQuery
from harch.hub.service import HubService, build_hub
from harch.hub.store.database import Database
from harch.hub.views import Role
from harch.sovereignty.audit.checkpoints import introduce
from harch.sovereignty.audit.verification import Tampering, VerificationOutcome, verify
from harch.testing.clock import SimClock
from harch.testing.samples import tiny_fleet
from harch.workloads.spec import WorkloadSpec
from unit.sovereignty_audit.chains import Chain, key

START = datetime(2026, 11, 15, tzinfo=UTC)


def open_hub(folder: Path, clock: SimClock | None = None) -> HubService:
    fleet = tiny_fleet()
    return build_hub(
        fleet=fleet,
        hub=fleet.hubs[0],
        state_dir=folder,
        clock=clock or SimClock(START),
        version="test",
        url="http://hub",
        peer_urls={"dakar": "http://127.0.0.1:1"},
        on_broken=lambda error: None,
    )


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[HubService]:
    service = open_hub(tmp_path)
    yield service
    await service.close()


async def kinds(hub: HubService, **filters: str) -> list[tuple[str, str, str]]:
    found = await hub.audit.records(AuditQuery(limit=1000, **filters))  # type: ignore[arg-type]
    return [(one.entry.kind, one.entry.subject, one.entry.actor) for one in found]


async def outcome_of(hub: HubService, *checkpoints: object) -> VerificationOutcome:
    closing = await hub.audit.head()
    lines = [line for _, line in await hub.audit.lines(after=0, upto=closing.checkpoint.seq, limit=100_000)]
    return verify([*lines, closing.line], checkpoints)  # type: ignore[arg-type]


async def submit(hub: HubService, name: str, **fields: object) -> str:
    spec = WorkloadSpec(name=name, modelled_duration_s=60, **fields)  # type: ignore[arg-type]
    workload, _ = await hub.submit(spec, tenant="t", annotations={}, idempotency_key=None, actor="key_1")
    return workload.id


async def test_every_decision_is_in_the_chain_with_who_made_it(hub: HubService) -> None:
    job = await submit(hub, "job")
    await hub.stop(job, tenant=None, reason="enough")
    info, _ = await hub.credentials.create_key(name="ci", tenant="t", role=Role.USER, actor="key_admin")
    await hub.credentials.revoke_key(info.id, tenant=None, actor="key_admin")
    await hub.credentials.put_secret("TOKEN", "s3cr3t-value", tenant="t", actor="key_1")
    await hub.credentials.delete_secret("TOKEN", tenant="t", actor="key_1")
    assert await kinds(hub) == [
        ("audit.key", "audit-key", "hub"),
        ("workload.admitted", job, "key_1"),
        ("workload.ended", job, "hub"),
        ("key.created", info.id, "key_admin"),
        ("key.revoked", info.id, "key_admin"),
        ("secret.stored", "TOKEN", "key_1"),
        ("secret.removed", "TOKEN", "key_1"),
    ]
    assert (await outcome_of(hub)).is_sound
    _, lines = zip(*await hub.audit.lines(after=0, upto=100, limit=100), strict=True)
    assert b"s3cr3t-value" not in b"".join(lines)


async def test_a_refusal_by_policy_is_written_before_anybody_hears_it(hub: HubService) -> None:
    with pytest.raises(HarchError) as refused:
        await submit(hub, "elsewhere", countries_allowed=("SN",))
    assert refused.value.code == "E0902"
    (entry,) = (one.entry for one in await hub.audit.records(AuditQuery(kind="workload")))
    assert (entry.kind, entry.subject, entry.verdict, entry.actor) == (
        "workload.refused",
        "elsewhere",
        "refused",
        "key_1",
    )
    assert entry.details["code"] == "E0902"
    assert entry.policy_version


async def test_what_merely_does_not_fit_is_no_decision_of_a_policy(hub: HubService) -> None:
    with pytest.raises(HarchError):
        await submit(hub, "huge", tasks=4000)
    assert [kind for kind, _, _ in await kinds(hub)] == ["audit.key"]


async def test_pages_are_filtered(hub: HubService) -> None:
    first, second = await submit(hub, "one"), await submit(hub, "two")
    assert await kinds(hub, subject=second) == [("workload.admitted", second, "key_1")]
    assert [subject for _, subject, _ in await kinds(hub, kind="workload")] == [first, second]
    assert await kinds(hub, data="ds_x") == []
    assert len(await hub.audit.records(AuditQuery(after=1, limit=1))) == 1


async def test_a_restarted_hub_continues_the_chain_with_the_same_key(tmp_path: Path) -> None:
    hub = open_hub(tmp_path)
    await submit(hub, "one")
    before = await hub.audit.head()
    await hub.close()
    hub = open_hub(tmp_path)
    await submit(hub, "two")
    outcome = await outcome_of(hub, before)
    await hub.close()
    assert (outcome.finding, outcome.entries, outcome.checkpoints) == (None, 3, 1)
    assert (tmp_path / "audit.key").stat().st_mode & 0o777 == 0o600


async def test_after_a_failed_write_the_chain_goes_on_from_what_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimClock(START)
    hub = open_hub(tmp_path, clock)
    await submit(hub, "before")
    commit = Database.commit

    def full(database: Database) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Database, "commit", full)
    for name in ("lost-1", "lost-2"):
        with pytest.raises(HarchError):
            await submit(hub, name)
    with pytest.raises(HarchError):  # turned away at once: it must not leave a hole either
        await hub.credentials.put_secret("X", "y", tenant="t")
    monkeypatch.setattr(Database, "commit", commit)
    for _ in range(100):
        await clock.advance(1)
        await asyncio.sleep(0.01)
        if not hub._jobs.not_ready:
            await hub._jobs.look_at_space()  # as the loop of a running hub does every few seconds
        if not hub.ready():
            break
    await submit(hub, "after")
    outcome = await outcome_of(hub)
    await hub.close()
    assert (outcome.finding, outcome.entries) == (None, 3)


async def test_a_rotated_key_is_introduced_by_the_old_one_and_survives_a_restart(tmp_path: Path) -> None:
    hub = open_hub(tmp_path)
    old = (await hub.audit.head()).checkpoint.key
    new = await hub.audit.rotate_key(actor="key_admin")
    await submit(hub, "one")
    assert (await hub.audit.head()).checkpoint.key == new != old
    await hub.close()
    hub = open_hub(tmp_path)
    assert (await hub.audit.head()).checkpoint.key == new
    outcome = await outcome_of(hub)
    await hub.close()
    assert (outcome.finding, outcome.entries) == (None, 3)


async def test_a_crash_between_the_chain_and_the_key_file_loses_no_key(tmp_path: Path) -> None:
    hub = open_hub(tmp_path)
    replacing, KeyFile.put_in_force = KeyFile.put_in_force, lambda self: None  # type: ignore[method-assign]
    try:
        new = await hub.audit.rotate_key(actor="key_admin")
    finally:
        KeyFile.put_in_force = replacing  # type: ignore[method-assign]
    await hub.close()
    hub = open_hub(tmp_path)
    assert (await hub.audit.head()).checkpoint.key == new
    assert (await outcome_of(hub)).is_sound
    await hub.close()


async def test_a_crash_before_the_chain_knew_the_new_key_keeps_the_old_one(tmp_path: Path) -> None:
    hub = open_hub(tmp_path)
    old = (await hub.audit.head()).checkpoint.key
    await hub.close()
    KeyFile(tmp_path / "audit.key").prepare()
    hub = open_hub(tmp_path)
    assert (await hub.audit.head()).checkpoint.key == old
    assert not (tmp_path / "audit.key.new").exists()
    await hub.close()


async def test_a_lost_key_does_not_stop_the_hub_but_is_told_for_ever(tmp_path: Path) -> None:
    hub = open_hub(tmp_path)
    await submit(hub, "one")
    await hub.close()
    (tmp_path / "audit.key").unlink()
    hub = open_hub(tmp_path)
    await submit(hub, "two")
    outcome = await outcome_of(hub)
    await hub.close()
    assert outcome.finding is not None
    assert (outcome.finding.seq, outcome.finding.kind) == (3, Tampering.BAD_KEY)


async def test_a_damaged_key_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "audit.key").write_text("nonsense")
    with pytest.raises(HarchError) as refused:
        open_hub(tmp_path)
    assert refused.value.code == "E1005"


async def test_checkpoints_of_peers_are_kept_once_and_contradictions_are_refused(hub: HubService) -> None:
    peer = Chain(key(5), hub="dakar").fill(3)
    first = peer.checkpoint()
    await hub.audit.keep(first, [])
    await hub.audit.keep(first, [])
    statement = introduce("dakar", key(6), by=key(5))
    peer.rotate(key(6))
    with pytest.raises(HarchError) as refused:
        await hub.audit.keep(peer.checkpoint(), [])
    assert refused.value.code == "E0920"
    await hub.audit.keep(peer.checkpoint(), [statement])
    assert await hub.audit.checkpoints("dakar") == [first, peer.checkpoint()]
    assert await hub.audit.checkpoints("tangier") == []
    assert len(await hub.audit.checkpoints(None)) == 2


def test_data_ids_are_found_through_their_own_table(tmp_path: Path) -> None:
    database = Database(tmp_path / "hub.db")
    chain = Chain().fill(6)
    for linked in chain.linked:
        database.write(table.save(linked))
    found = table.records(database, AuditQuery(data="ds_1"))
    assert [one.entry.subject for one in found] == ["wl_1"]
    assert table.head(database) == chain.head
