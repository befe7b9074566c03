"""A whole hub and its catalog: on disk, audited, watched by the clock, and asked before an offer leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from harch.base.errors import HarchError
from harch.fleet.file import shipped_fleet
from harch.hub.audit.table import AuditQuery
from harch.hub.data import NewData
from harch.hub.service import HubService, build_hub
from harch.sovereignty.tags import NOWHERE, DataKind
from harch.testing.clock import SimClock
from harch.workloads.lifecycle import State, Workload
from harch.workloads.spec import WorkloadSpec

FLEET = shipped_fleet("five-hubs")
MOROCCO: dict[str, object] = {"process_in": ["MA"], "rest_in": ["MA"]}


def open_hub(folder: Path, clock: SimClock) -> HubService:
    return build_hub(
        fleet=FLEET,
        hub=FLEET.hubs[0],
        state_dir=folder,
        clock=clock,
        version="test",
        url="http://hub",
        peer_urls={},
        on_broken=lambda error: None,
    )


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


@pytest.fixture
async def hub(tmp_path: Path, clock: SimClock) -> AsyncIterator[HubService]:
    service = open_hub(tmp_path, clock)
    yield service
    await service.close()


async def submit(hub: HubService, *data: str) -> Workload:
    spec = WorkloadSpec(name="reader", modelled_duration_s=60, data=data)
    workload, _ = await hub.submit(spec, tenant="t", annotations={}, idempotency_key=None, actor="key_1")
    return workload


async def story(hub: HubService, data_id: str) -> list[tuple[str, str]]:
    found = await hub.audit.records(AuditQuery(data=data_id, limit=100))
    return [(one.entry.kind, one.entry.verdict) for one in found]


async def test_what_is_registered_is_there_after_a_restart_and_in_the_chain(tmp_path: Path, clock: SimClock) -> None:
    hub = open_hub(tmp_path, clock)
    data = await hub.data.add(NewData(name="census", tag=MOROCCO, sha256="a" * 64), tenant="t", actor="key_1")
    await hub.data.add_authority("cndp", "ab" * 32, actor="key_admin")
    await hub.close()
    hub = open_hub(tmp_path, clock)
    assert hub.data.find("census", tenant="t") == data
    assert hub.data.listed(tenant="t", kind=DataKind.MODEL, name=None) == []
    assert [one.name for one in hub.data.authorities()] == ["cndp"]
    assert await story(hub, data.id) == [("data.added", "done")]
    await hub.close()


async def test_refusals_about_data_are_in_its_story(hub: HubService) -> None:
    data = await hub.data.add(NewData(name="census", tag=MOROCCO), tenant="t", actor="key_1")
    with pytest.raises(HarchError) as caught:
        await hub.data.retag("census", {**MOROCCO, "classification": "public"}, None, tenant="t", actor="key_1")
    assert caught.value.code == "E0908"
    with pytest.raises(HarchError) as caught:
        await hub.data.retag("census", {**MOROCCO, "classification": "public"}, None, tenant="other", actor="key_2")
    assert caught.value.code == "E0906"  # that it exists is not told
    assert await story(hub, data.id) == [("data.added", "done"), ("data.refused", "refused")]


async def test_an_offer_goes_only_to_hubs_that_may_run_the_work_and_is_audited(hub: HubService) -> None:
    data = await hub.data.add(NewData(name="census", tag=MOROCCO), tenant="t", actor="key_1")
    workload = await submit(hub, "census")
    verdict = await hub.data.before_offer(workload, ["tangier", "casablanca", "dakar", "abidjan"])
    assert verdict.eligible == ("tangier", "casablanca")
    assert (await story(hub, data.id))[-1] == ("workload.offered", "allowed")


async def test_a_copy_goes_where_links_are_encrypted_and_stay_inside_the_country(hub: HubService) -> None:
    await hub.data.add(NewData(name="census", tag=MOROCCO), tenant="t", actor="key_1")
    where = hub.data.where("census", tenant="t")
    assert [(rules.hub, rules.may_process, rules.may_rest) for rules in where.hubs] == [
        ("dakhla", True, True),
        ("tangier", True, True),
        ("casablanca", True, True),
        ("dakar", False, False),
        ("abidjan", False, False),
    ]
    assert [copy.hub for copy in where.copies] == ["dakhla"]


async def test_a_plan_and_a_why_ask_the_tags_too(hub: HubService) -> None:
    await hub.data.add(NewData(name="census", tag=MOROCCO), tenant="t", actor="key_1")
    await hub.data.add(NewData(name="raw"), tenant="t", actor="key_1")
    (own,) = hub.plan(WorkloadSpec(name="a", modelled_duration_s=1, data=("raw",)), tenant="t").hubs
    assert (own.rules[0].rule, own.rules[0].passed) == ("residency", False)
    (own,) = hub.plan(WorkloadSpec(name="a", modelled_duration_s=1, data=("census",)), tenant="t").hubs
    assert own.rules[0].passed


async def test_the_clock_brings_the_fourth_gate_to_what_nobody_told_the_machine_of(
    hub: HubService, clock: SimClock
) -> None:
    data = await hub.data.add(NewData(name="census", tag=MOROCCO), tenant="t", actor="key_1")
    workload = await submit(hub, "census")
    driver = hub._jobs  # to change the catalog behind the machine's back
    watching = asyncio.create_task(driver.keep_auditing())
    entry = driver.machine.state.catalog.entries[data.id]
    driver.machine.state.catalog.put(
        msgspec.structs.replace(entry, object=msgspec.structs.replace(entry.object, tag=NOWHERE))
    )
    await clock.advance(3)
    assert workload.state is State.CANCELLED
    await driver.write([], [])  # a barrier: all of it is on disk
    assert [kind for kind, _ in await story(hub, data.id)][-2:] == ["sovereignty.violation", "workload.ended"]
    watching.cancel()
