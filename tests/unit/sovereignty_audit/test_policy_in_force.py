"""Every decision in the audit chain names the policy that was in force when it was made, also after a recovery."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harch.base.clock import SystemClock
from harch.execution.protocol import TaskEnded, TaskKey
from harch.hub.audit.table import AuditQuery
from harch.hub.jobs import effects as fx
from harch.hub.jobs import events as ev
from harch.hub.jobs.machine import JobMachine
from harch.hub.service import HubService, build_hub
from harch.hub.store.records import CatalogEntry
from harch.sovereignty.audit.chain import POLICY_BUILTIN
from harch.sovereignty.tags import DataKind, DataObject
from harch.testing.samples import tiny_fleet
from harch.workloads.lifecycle import ExitReason
from harch.workloads.spec import WorkloadSpec
from unit.hub.conftest import Bench
from unit.sovereignty_policy.test_hub_policies import OPEN


def open_hub(folder: Path) -> HubService:
    fleet = tiny_fleet()
    return build_hub(
        fleet=fleet,
        hub=fleet.hubs[0],
        state_dir=folder,
        clock=SystemClock(),
        version="test",
        url="http://hub",
        peer_urls={},
        on_broken=lambda error: None,
    )


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[HubService]:
    service = open_hub(tmp_path)
    yield service
    await service.close()


def spec(name: str, **fields: object) -> WorkloadSpec:
    return WorkloadSpec(name=name, modelled_duration_s=60, **fields)  # type: ignore[arg-type]


async def submit(hub: HubService, name: str) -> str:
    workload, _ = await hub.submit(spec(name), tenant="t", annotations={}, idempotency_key=None, actor="key_1")
    return workload.id


async def decided(hub: HubService, subject: str) -> list[tuple[str, str]]:
    found = await hub.audit.records(AuditQuery(limit=100, subject=subject))
    return [(one.entry.kind, one.entry.policy_version) for one in found]


async def test_a_replaced_specification_names_the_policy_that_admitted_it(hub: HubService) -> None:
    job = await submit(hub, "job")
    digest = (await hub.policies.activate(OPEN, actor="me")).digest
    await hub.replace_spec(job, spec("job", labels={"a": "b"}), tenant="t", annotations={}, actor="key_1")
    assert await decided(hub, job) == [("workload.admitted", POLICY_BUILTIN), ("workload.admitted", digest)]


async def test_an_end_names_the_policy_of_its_own_moment_and_not_of_the_last_submission(hub: HubService) -> None:
    first, second = await submit(hub, "first"), await submit(hub, "second")
    digest = (await hub.policies.activate(OPEN, actor="me")).digest
    await hub.stop(first, tenant=None, reason="enough")
    await hub.policies.deactivate(actor="me")
    await hub.stop(second, tenant=None, reason="enough")
    assert await decided(hub, first) == [("workload.admitted", POLICY_BUILTIN), ("workload.ended", digest)]
    assert await decided(hub, second) == [("workload.admitted", POLICY_BUILTIN), ("workload.ended", POLICY_BUILTIN)]


async def test_the_first_decision_after_a_restart_names_the_policy_that_is_in_force(tmp_path: Path) -> None:
    hub = open_hub(tmp_path)
    job = await submit(hub, "job")
    digest = (await hub.policies.activate(OPEN, actor="me")).digest
    await hub.close()
    again = open_hub(tmp_path)
    await again.stop(job, tenant=None, reason="enough")
    assert (await decided(again, job))[-1] == ("workload.ended", digest)
    await again.close()


async def test_a_machine_that_was_rebuilt_from_disk_decides_under_the_policy_in_force(hub: HubService) -> None:
    job = await submit(hub, "job")
    digest = (await hub.policies.activate(OPEN, actor="me")).digest
    await hub._jobs.write([], [])  # everything so far is on disk
    hub._jobs.release()  # starts over from there
    await hub.stop(job, tenant=None, reason="enough")
    assert (await decided(hub, job))[-1] == ("workload.ended", digest)


def test_what_a_recovery_itself_decides_names_the_policy_too() -> None:
    bench = Bench()
    bench.join()
    job = bench.submit()
    bench.place()
    elsewhere = tiny_fleet().hubs[1]  # its nodes are others: the work cannot be where it was
    machine = JobMachine(tiny_fleet(), elsewhere)
    context = ev.EventContext(now=bench.now, policy_version="national-7")
    effects = machine.restore([job], [], context=context)
    assert [one.draft.policy_version for one in effects if isinstance(one, fx.Audit)] == ["national-7"]


def test_each_event_is_decided_under_the_policy_that_comes_with_it() -> None:
    bench = Bench()
    bench.join()
    job = bench.submit()
    bench.policy_version = "national-7"
    bench.place()
    bench.policy_version = "national-8"
    end = TaskEnded(key=TaskKey(job.id, 1, 0), reason=ExitReason.EXITED, exit_code=0, at=bench.now)
    effects = bench.handle(ev.TaskEndSeen("agent", end))
    assert [one.draft.policy_version for one in effects if isinstance(one, fx.Audit)] == ["national-8"]


def test_entries_about_agents_and_data_name_it_as_well() -> None:
    bench = Bench()
    bench.policy_version = "national-7"
    joined = bench.handle(ev.AgentJoined(bench.agent.hello(), 1))
    data = DataObject(id="data_1", kind=DataKind.DATASET, name="census", tenant="t", tag=None)
    added = bench.handle(ev.DataAdded(CatalogEntry(object=data, created_at=bench.now, updated_at=bench.now)))
    drafts = [one.draft for one in (*joined, *added) if isinstance(one, fx.Audit)]
    assert [(one.kind, one.policy_version) for one in drafts] == [
        ("agent.joined", "national-7"),
        ("data.added", "national-7"),
    ]
