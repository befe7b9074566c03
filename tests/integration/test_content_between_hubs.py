"""Does content go where lent work goes, and nowhere else? Two linked hubs, their stores, and the bulk channel."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from pair_world import LiveHub, Pair, make_pair, until

from harch.base.errors import HarchError
from harch.content.frames import decode_frames, encode_frame, encode_ids, pack_chunk, unpack_chunk
from harch.content.packing import PackedFolder, pack, scan
from harch.execution.protocol import TaskArtifact, TaskKey
from harch.hub.audit.table import AuditQuery
from harch.hub.data import NewData
from harch.hub.federation.messages import ContentReply, ContentRequest
from harch.sovereignty.tags import DataKind
from harch.wire.content import FilesRequest, TransferView, TreeView
from harch.wire.data import DataView
from harch.workloads.lifecycle import State, Workload
from harch.workloads.spec import Artifact, Resources, WorkloadSpec

LOOSE: dict[str, object] = {"encrypt_at_rest": False, "encrypt_in_transit": False}
MOROCCO: dict[str, object] = {"process_in": ["MA"], "rest_in": ["MA"], **LOOSE}
BOTH: dict[str, object] = {
    "process_in": ["MA", "SN"],
    "rest_in": ["MA", "SN"],
    "transit_in": ["MR"],
    "may_cross_borders": True,
    **LOOSE,
}
PASSING: dict[str, object] = {**BOTH, "rest_in": ["MA"]}


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    made = make_pair(tmp_path)
    await made.ready()
    yield made
    await asyncio.gather(made.dakhla.stop(), made.dakar.stop())


def packed(folder: Path, size: int = 3_000_000) -> PackedFolder:
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    (folder / "weights.bin").write_bytes(os.urandom(size))
    return pack(scan(folder, rules=None, bytes_max=10**9, entries_max=1000))


async def upload(hub: LiveHub, content: PackedFolder) -> None:
    frames = [pack_chunk(content.raw(name), chunk=name) for name in content.ids]
    await hub.service.content.put(b"".join(map(encode_frame, frames)), tenant="t")


async def add(hub: LiveHub, name: str, content: PackedFolder, **fields: object) -> DataView:
    await upload(hub, content)
    new = NewData(name=name, content=content.digest, **fields)  # type: ignore[arg-type]
    return await hub.service.data.add(new, tenant="t", actor="key")


async def fill(hub: LiveHub) -> None:
    """All of its GPUs, so that what is submitted there goes to the other hub."""
    gpus = hub.service.summary().gpus_total
    for number in range(gpus // 4):
        spec = WorkloadSpec(name=f"full-{number}", resources=Resources(gpus=4), modelled_duration_s=600, stay_home=True)
        await hub.service.submit(spec, tenant="t", annotations={}, idempotency_key=None)
    await until(lambda: hub.service.summary().gpus_free == 0)


async def borrowed(hub: LiveHub, workload: Workload) -> Workload:
    """The same work as the runner knows it, once its task has been sent to a node."""
    await until(lambda: workload.state is State.RUNNING)
    return await hub.service.workload(workload.id, tenant=None)


async def arrived(hub: LiveHub, workload: Workload, ref: str) -> TreeView:
    """As an agent asks, until it is there."""
    async with asyncio.timeout(30):
        while True:
            found = await hub.service.content.tree_for(workload, ref)
            if isinstance(found, TreeView):
                return found
            assert isinstance(found, TransferView)
            await asyncio.sleep(0.02)


async def refused_at(hub: LiveHub, data_id: str) -> list[str]:
    records = await hub.service.audit.records(AuditQuery(data=data_id, limit=99))
    return [record.entry.kind for record in records if record.entry.verdict == "refused"]


async def test_code_of_lent_work_comes_from_its_owner_and_is_read_whole(pair: Pair, tmp_path: Path) -> None:
    content = packed(tmp_path / "code")
    code = await add(pair.dakhla, "code-1", content, kind=DataKind.CODE)
    workload = await pair.dakhla.submit(code="code-1", countries_allowed=("SN",))
    there = await borrowed(pair.dakar, workload)
    (task,) = pair.dakar.agent.agent.running.values()
    assert [(one.data_id, one.digest) for one in task.contents] == [(code.id, content.digest)]
    tree = await arrived(pair.dakar, there, code.id)
    assert (tree.digest, tree.size_bytes) == (content.digest, content.size_bytes)
    body = await pair.dakar.service.content.fetch_for(there, code.id, encode_ids(content.ids))
    assert [unpack_chunk(frame) for frame in decode_frames(body)] == [content.raw(name) for name in content.ids]
    await until(lambda: "dakar" in pair.dakar.service.data.find(code.id, tenant=None).hubs)


async def test_a_hub_does_not_get_what_no_work_lent_to_it_reads(pair: Pair, tmp_path: Path) -> None:
    content = packed(tmp_path / "code")
    data = await add(pair.dakhla, "corpus", content, tag=BOTH)
    for wanted in (
        ContentRequest(number=1, ref=data.id, tenant="t", digest=content.digest),
        ContentRequest(number=2, ref="data_unknown", tenant="t", digest=content.digest),
    ):
        with pytest.raises(HarchError) as caught:
            await pair.dakar.service.federation.request("dakhla", lambda number, one=wanted: one, ContentReply)  # type: ignore[misc]
        assert caught.value.code in ("E1102", "E0802")


async def test_what_was_tightened_after_it_was_lent_is_not_sent_any_more_and_that_is_audited(
    pair: Pair, tmp_path: Path
) -> None:
    content = packed(tmp_path / "code")
    data = await add(pair.dakhla, "corpus", content, tag=BOTH)
    workload = await pair.dakhla.submit(data=("corpus",), countries_allowed=("SN",))
    there = await borrowed(pair.dakar, workload)
    # The owner's tag is tightened without a word to the runner: only the gate of the hub that has the bytes is left.
    state = pair.dakhla.service._jobs.machine.state
    entry = state.catalog.entries[data.id]
    tag = state.guard.rules.open_tag(["MA"])
    state.catalog.put(replace(entry, object=replace(entry.object, tag=tag)))
    assert there.data_ids == (data.id,)
    with pytest.raises(HarchError) as caught:
        await pair.dakar.service.federation.request(
            "dakhla",
            lambda number: ContentRequest(number=number, ref=data.id, tenant="t", digest=content.digest),
            ContentReply,
        )
    assert caught.value.code == "E0907"
    assert await refused_at(pair.dakhla, data.id) == ["data.refused"]


async def test_the_hub_that_fetches_judges_by_the_tag_that_is_in_force_there(pair: Pair, tmp_path: Path) -> None:
    content = packed(tmp_path / "code")
    data = await add(pair.dakhla, "corpus", content, tag=BOTH)
    workload = await pair.dakhla.submit(data=("corpus",), countries_allowed=("SN",))
    there = await borrowed(pair.dakar, workload)
    state = pair.dakar.service._jobs.machine.state
    entry = state.catalog.entries[data.id]
    tag = state.guard.rules.open_tag(["MA"])
    state.catalog.put(replace(entry, object=replace(entry.object, tag=tag)))
    with pytest.raises(HarchError) as caught:
        await pair.dakar.service.content.tree_for(there, data.id)
    assert caught.value.code == "E0907"


async def test_what_may_be_read_there_and_not_kept_goes_when_the_work_has_ended(pair: Pair, tmp_path: Path) -> None:
    content = packed(tmp_path / "code")
    data = await add(pair.dakhla, "corpus", content, tag=PASSING)
    workload = await pair.dakhla.submit(data=("corpus",), countries_allowed=("SN",))
    there = await borrowed(pair.dakar, workload)
    await arrived(pair.dakar, there, data.id)
    assert pair.dakar.service.data.find(data.id, tenant=None).hubs == ("dakhla",)  # it passes, it does not rest
    (task,) = pair.dakar.agent.agent.running.values()
    assert task.scrub_after
    await pair.dakar.service.look_after_content()
    assert isinstance(await pair.dakar.service.content.tree_for(there, data.id), TreeView)  # still being read
    pair.dakar.agent.end(task.key)
    await until(lambda: workload.state is State.COMPLETED)
    await pair.dakar.service.look_after_content()
    status = await pair.dakar.service.content.status(tenant=None)
    assert [one.chunks for one in status.tenants] == [0]


async def test_results_of_lent_work_are_fetched_by_their_owner_when_somebody_reads_them(
    pair: Pair, tmp_path: Path
) -> None:
    content = packed(tmp_path / "out")
    await fill(pair.dakhla)
    workload = await pair.dakhla.submit(artifacts=(Artifact(name="model", path="out"),))
    await borrowed(pair.dakar, workload)
    await upload(pair.dakar, content)
    key = TaskKey(workload.id, 1, 0)
    pair.dakar.agent.end(key, TaskArtifact("model", content.digest, content.size_bytes, content.files))
    await until(lambda: workload.state is State.COMPLETED)
    kept = pair.dakhla.service.data.find("model", tenant="t")
    assert (kept.hubs, kept.content) == (("dakar",), content.digest)
    async with asyncio.timeout(30):
        while not isinstance(found := await pair.dakhla.service.content.tree("model", tenant="t"), TreeView):
            assert found.source_hub in ("", "dakar")
            await asyncio.sleep(0.02)
    assert found.digest == content.digest
    await until(lambda: set(pair.dakhla.service.data.find("model", tenant="t").hubs) == {"dakar", "dakhla"})


async def test_files_of_work_that_runs_elsewhere_come_through_its_owner(pair: Pair, tmp_path: Path) -> None:
    content = packed(tmp_path / "out")
    await fill(pair.dakhla)
    workload = await pair.dakhla.submit()
    await borrowed(pair.dakar, workload)
    await upload(pair.dakar, content)
    pair.dakar.agent.tree = content.digest
    kept = await pair.dakhla.service.content.snapshot(workload, FilesRequest(path="out"))
    assert kept.digest == content.digest
    body = await pair.dakhla.service.content.fetch(kept.ref, encode_ids(content.ids[:1]), tenant="t")
    assert next(iter(decode_frames(body))).id == content.ids[0]


async def test_what_work_leaves_that_may_run_in_one_country_only_is_not_read_through_a_hub_of_another(
    pair: Pair, tmp_path: Path
) -> None:
    content = packed(tmp_path / "out")
    workload = await pair.dakhla.submit(artifacts=(Artifact(name="model", path="out"),), countries_allowed=("SN",))
    there = await borrowed(pair.dakar, workload)
    await upload(pair.dakar, content)
    pair.dakar.agent.tree = content.digest
    with pytest.raises(HarchError) as caught:
        await pair.dakhla.service.content.snapshot(workload, FilesRequest())
    assert caught.value.code == "E0907"
    assert (await pair.dakar.service.content.snapshot(there, FilesRequest())).digest == content.digest
    key = TaskKey(workload.id, 1, 0)
    pair.dakar.agent.end(key, TaskArtifact("model", content.digest, content.size_bytes, content.files))
    await until(lambda: workload.state is State.COMPLETED)
    kept = pair.dakhla.service.data.find("model", tenant="t")
    with pytest.raises(HarchError, match="allowed: SN"):
        await pair.dakhla.service.content.tree("model", tenant="t")
    assert isinstance(await pair.dakar.service.content.tree(kept.id, tenant="t"), TreeView)


async def test_a_transfer_from_a_hub_that_is_gone_fails_with_a_reason_and_works_when_it_is_back(
    pair: Pair, tmp_path: Path
) -> None:
    content = packed(tmp_path / "code", 300_000)
    data = await add(pair.dakhla, "corpus", content, tag=BOTH)
    workload = await pair.dakhla.submit(data=("corpus",), countries_allowed=("SN",))
    there = await borrowed(pair.dakar, workload)
    await pair.dakhla.stop()
    with pytest.raises(HarchError) as caught:
        await arrived(pair.dakar, there, data.id)
    assert caught.value.code in ("E0802", "E1140")
    pair.dakhla = LiveHub(pair.home, 0)
    await pair.ready()
    assert (await arrived(pair.dakar, there, data.id)).digest == content.digest


async def test_the_home_of_data_knows_its_copies_and_what_it_forbids_or_removes_goes_there_too(
    pair: Pair, tmp_path: Path
) -> None:
    names = ("kept", "forbidden", "removed")
    made = {name: await add(pair.dakhla, name, packed(tmp_path / name, 200_000), tag=BOTH) for name in names}
    workload = await pair.dakhla.submit(data=names, countries_allowed=("SN",))
    there = await borrowed(pair.dakar, workload)
    for data in made.values():
        await arrived(pair.dakar, there, data.id)
    (task,) = pair.dakar.agent.agent.running.values()
    pair.dakar.agent.end(task.key)
    await until(lambda: workload.state is State.COMPLETED)
    await pair.dakar.service.look_after_content()
    own = pair.dakhla.service.data
    assert {name: set(own.find(name, tenant="t").hubs) for name in names} == {
        name: {"dakhla", "dakar"} for name in names
    }

    await own.retag("forbidden", MOROCCO, None, tenant="t", actor="key")
    await own.remove("removed", tenant="t", actor="key")
    catalog = pair.dakar.service._jobs.machine.state.catalog
    await until(lambda: made["removed"].id not in catalog.entries)
    await until(lambda: own.find("forbidden", tenant="t").hubs == ("dakhla",))
    store = pair.dakar.service._files.store
    held = {hold.holder.removeprefix("data:") for hold in await asyncio.to_thread(store.holders)}
    assert held == {made["kept"].id}


async def test_a_home_that_was_cut_off_is_heard_when_it_is_back(pair: Pair, tmp_path: Path) -> None:
    data = await add(pair.dakhla, "corpus", packed(tmp_path / "corpus", 200_000), tag=BOTH)
    workload = await pair.dakhla.submit(data=("corpus",), countries_allowed=("SN",))
    there = await borrowed(pair.dakar, workload)
    await arrived(pair.dakar, there, data.id)
    (task,) = pair.dakar.agent.agent.running.values()
    pair.dakar.agent.end(task.key)
    await until(lambda: workload.state is State.COMPLETED)
    await pair.dakar.stop()
    await pair.dakhla.service.data.retag("corpus", MOROCCO, None, tenant="t", actor="key")
    pair.dakar = LiveHub(pair.home, 1)
    await pair.ready()
    await pair.dakar.service.look_after_content()
    store = pair.dakar.service._files.store
    assert await asyncio.to_thread(store.holders) == []


async def test_what_went_over_the_bulk_channel_is_counted_by_peer(pair: Pair, tmp_path: Path) -> None:
    content = packed(tmp_path / "code", 400_000)
    code = await add(pair.dakhla, "code-1", content, kind=DataKind.CODE)
    workload = await pair.dakhla.submit(code="code-1", countries_allowed=("SN",))
    there = await borrowed(pair.dakar, workload)
    await arrived(pair.dakar, there, code.id)
    sent, received = pair.dakhla.service.metrics_text().decode(), pair.dakar.service.metrics_text().decode()
    assert int(value_of(sent, 'harch_bulk_bytes_sent_total{peer="dakar"}')) > 400_000
    assert int(value_of(received, 'harch_bulk_bytes_received_total{peer="dakhla"}')) > 400_000
    assert int(value_of(received, 'harch_bulk_bytes_repeated_total{peer="dakhla"}')) == 0
    assert int(value_of(received, "harch_content_bytes_stored")) > 400_000


def value_of(exposition: str, series: str) -> float:
    (line,) = (line for line in exposition.splitlines() if line.startswith(series + " "))
    return float(line.rpartition(" ")[2])
