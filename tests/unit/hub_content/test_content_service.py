"""What does a hub do with content that people and nodes send and ask for? Through its API, on its real store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from content_world import FLEET, MOROCCO, SENEGAL, ApiUser, World, open_hub, packed_folder, world_of

from harch.content.frames import encode_frame, pack_chunk, unpack_chunk
from harch.content.packing import PackedFolder
from harch.execution.protocol import (
    FilesAnswer,
    StartTask,
    TaskArtifact,
    TaskEnded,
    TaskKey,
    TaskPreparing,
    TaskStarted,
)
from harch.hub.audit.table import AuditQuery
from harch.hub.content.service import UPLOADS_MAX
from harch.hub.service import HubService
from harch.hub.views import Role
from harch.testing.clock import SimClock
from harch.workloads.lifecycle import ExitReason, State, Workload
from harch.workloads.spec import Artifact, WorkloadSpec


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


@pytest.fixture
async def world(tmp_path: Path, clock: SimClock) -> AsyncIterator[World]:
    hub = open_hub(tmp_path / "state", clock)
    made = world_of(hub)
    serving = asyncio.create_task(hub.attach_agent(made.node, key_id=(await made.agent())[1]))
    yield made
    made.node.leave()
    await asyncio.gather(serving, return_exceptions=True)
    await made.client.aclose()
    await hub.close()


@pytest.fixture
def folder(tmp_path: Path) -> PackedFolder:
    return packed_folder(tmp_path / "folder", **{"train.py": b"print(1)\n", "data.bin": os.urandom(300_000)})


async def submit(world: World, **fields: object) -> Workload:
    spec = WorkloadSpec(**{"name": "job", "command": ("true",), **fields})  # type: ignore[arg-type]
    workload, _ = await world.hub.submit(spec, tenant="t", annotations={}, idempotency_key=None)
    return workload


async def start(world: World, workload: Workload) -> StartTask:
    """Until the node has the order."""
    async with asyncio.timeout(10):
        while True:
            for message in world.node.received:
                if isinstance(message, StartTask) and message.task.key.workload_id == workload.id:
                    return message
            await asyncio.sleep(0.01)


async def until(condition: object) -> None:
    async with asyncio.timeout(10):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.01)


async def kinds(hub: HubService, data_id: str) -> list[tuple[str, str]]:
    return [(one.entry.kind, one.entry.verdict) for one in await hub.audit.records(AuditQuery(data=data_id, limit=99))]


# Storing and reading


async def test_what_was_uploaded_and_registered_can_be_read_again_and_only_once_uploaded(
    world: World, folder: PackedFolder
) -> None:
    user = await world.user()
    names = b"".join(folder.ids)
    assert (await user.call("POST", "/content/missing", content=names)).content == names
    added = await user.add("corpus", folder, tag=MOROCCO)
    assert (added["content"], added["size_bytes"], added["hubs"]) == (folder.digest, 300_009, ["dakhla"])
    assert (await user.call("POST", "/content/missing", content=names)).content == b""
    tree = await user.json("POST", "/content/trees/corpus")
    assert (tree["digest"], tree["files"]) == (folder.digest, 2)
    frames = await user.frames("corpus", folder.ids)
    assert [unpack_chunk(frame) for frame in frames] == [folder.raw(name) for name in folder.ids]


async def test_a_tree_that_lacks_chunks_is_not_registered_and_says_which(world: World, folder: PackedFolder) -> None:
    user = await world.user()
    frames = [pack_chunk(folder.raw(name), chunk=name) for name in folder.ids]
    lost = frames.pop()
    await user.json("POST", "/content/chunks", content=b"".join(map(encode_frame, frames)))
    answer = await user.call("POST", "/data", json={"name": "corpus", "content": folder.digest, "tag": MOROCCO})
    assert answer.json()["error"]["code"] == "E1104"
    assert answer.json()["error"]["meta"]["missing"] == [lost.id.hex()]
    assert await user.error("GET", "/data/corpus") == "E0906"


async def test_damaged_chunks_and_bodies_that_are_no_chunks_are_refused_and_nothing_is_stored(
    world: World, folder: PackedFolder
) -> None:
    user = await world.user()
    frame = pack_chunk(folder.raw(folder.ids[0]), chunk=folder.ids[0])
    whole = encode_frame(frame)
    flipped = whole[:-1] + bytes([whole[-1] ^ 1])
    for body in (flipped, whole[:-1], whole[:20], b"no chunks at all" * 4):
        assert await user.error("POST", "/content/chunks", content=body) == "E1101"
    assert (await user.call("POST", "/content/missing", content=frame.id)).content == frame.id
    assert await user.error("POST", "/content/missing", content=b"short") == "E1101"


async def test_bodies_beyond_the_limit_are_refused_before_they_are_read(world: World) -> None:
    user = await world.user()
    assert await user.error("POST", "/content/chunks", content=b"x" * (19 * 2**20)) == "E0204"
    assert await user.error("POST", "/content/missing", content=b"x" * (2**20 + 32)) == "E0204"


async def test_tenants_do_not_see_each_others_content_not_even_that_it_is_there(
    world: World, folder: PackedFolder
) -> None:
    user, other = await world.user(), await world.user("other")
    await user.add("corpus", folder, tag=MOROCCO)
    names = b"".join(folder.ids)
    assert (await other.call("POST", "/content/missing", content=names)).content == names
    assert await other.error("POST", "/content/trees/corpus") == "E0906"
    assert await other.error("POST", "/content/fetch", params={"ref": "corpus"}, content=names) == "E0906"
    assert await other.error("DELETE", "/data/corpus") == "E0906"


async def test_chunks_are_read_only_as_parts_of_the_tree_that_is_named(
    world: World, folder: PackedFolder, tmp_path: Path
) -> None:
    user = await world.user()
    await user.add("mine", folder, tag=MOROCCO)
    elsewhere = packed_folder(tmp_path / "secret", secret=b"of another tree")
    await user.upload(elsewhere)
    assert await user.error("POST", "/content/fetch", params={"ref": "mine"}, content=elsewhere.ids[0]) == "E1102"


async def test_viewers_read_and_only_users_write(world: World, folder: PackedFolder) -> None:
    user, viewer = await world.user(), await world.user(role=Role.VIEWER)
    await user.add("corpus", folder, tag=MOROCCO)
    assert (await viewer.json("POST", "/content/trees/corpus"))["digest"] == folder.digest
    assert await viewer.error("POST", "/content/chunks", content=b"") == "E0103"
    assert await viewer.error("POST", "/content/missing", content=b"") == "E0103"
    assert await user.error("POST", "/content/collect") == "E0103"


# Borders


async def test_what_may_not_be_processed_here_is_not_read_through_this_hub_and_that_is_audited(
    world: World, folder: PackedFolder
) -> None:
    user = await world.user()
    added = await user.add("corpus", folder, tag={**MOROCCO, "process_in": ["MA", "SN"], "may_cross_borders": True})
    tightened = {"process_in": ["SN"], "rest_in": ["MA"], "may_cross_borders": True}
    await user.json("PUT", "/data/corpus/tag", json={"tag": tightened})
    assert await user.error("POST", "/content/trees/corpus") == "E0907"
    assert await user.error("POST", "/content/fetch", params={"ref": "corpus"}, content=folder.ids[0]) == "E0907"
    assert ("data.refused", "refused") in await kinds(world.hub, added["id"])


async def test_content_that_may_not_rest_here_is_not_registered(world: World, folder: PackedFolder) -> None:
    user = await world.user()
    await user.upload(folder)
    body = {"name": "corpus", "content": folder.digest, "tag": SENEGAL}
    assert await user.error("POST", "/data", json=body) == "E0907"
    await world.hub.content.collect(grace_s=0)
    assert (await user.json("GET", "/content"))["tenants"][0]["chunks"] == 0  # and nobody holds what was uploaded


# Code


async def test_equal_code_is_one_object_and_may_go_wherever_the_work_may(world: World, folder: PackedFolder) -> None:
    user = await world.user()
    first = await user.add("code-1", folder, kind="code")
    again = await user.add("code-1", folder, kind="code")
    assert first["id"] == again["id"]
    assert set(first["tag"]["process_in"]) == {hub.country for hub in FLEET.hubs}
    assert first["expires_at"] is not None
    bound = await user.add("code-1", folder, kind="code", tag=MOROCCO)
    assert bound["id"] != first["id"]
    assert bound["name"] != first["name"]
    assert await user.error("POST", "/data", json={"name": "empty", "kind": "code"}) == "E0201"


async def test_removed_data_takes_its_chunks_with_it(world: World, folder: PackedFolder) -> None:
    user = await world.user()
    await user.add("corpus", folder, tag=MOROCCO)
    await user.json("DELETE", "/data/corpus")
    assert await user.error("POST", "/content/trees/corpus") == "E0906"
    collected = await world.hub.content.collect(grace_s=0)
    assert collected.chunks == len(folder.ids)


# Nodes


async def test_a_node_reads_what_its_work_names_and_nothing_else(
    world: World, folder: PackedFolder, tmp_path: Path
) -> None:
    user, (agent, _) = await world.user(), await world.agent()
    code = await user.add("code-1", folder, kind="code")
    other = await user.add("other", packed_folder(tmp_path / "other", x=b"other"), tag=MOROCCO)
    workload = await submit(world, code="code-1")
    order = await start(world, workload)
    assert order.task.contents[0].data_id == code["id"]
    work = {"workload": workload.id}
    tree = await agent.json("POST", "/agents/content/trees", params={**work, "data": code["id"]})
    assert tree["digest"] == folder.digest
    names = b"".join(folder.ids)
    fetched = await agent.call("POST", "/agents/content/fetch", params={**work, "ref": code["id"]}, content=names)
    assert len(fetched.content) > 300_000
    for wrong in ({**work, "data": other["id"]}, {"workload": "wl_unknown", "data": code["id"]}):
        assert await agent.error("POST", "/agents/content/trees", params=wrong) in ("E0906", "E0301")
    stranger, _ = await world.agent("another-agent")
    assert await stranger.error("POST", "/agents/content/trees", params={**work, "data": code["id"]}) == "E0301"
    assert await user.error("POST", "/agents/content/trees", params={**work, "data": code["id"]}) == "E0103"
    assert await agent.error("POST", "/content/trees/code-1") == "E0103"


async def test_what_a_task_leaves_is_held_before_its_end_is_booked(world: World, folder: PackedFolder) -> None:
    user, (agent, _) = await world.user(), await world.agent()
    workload = await submit(world, artifacts=(Artifact(name="model", path="out"), Artifact(name="gone", path="no")))
    await start(world, workload)
    frames = [pack_chunk(folder.raw(name), chunk=name) for name in folder.ids]
    await agent.json(
        "POST",
        "/agents/content/chunks",
        params={"workload": workload.id},
        content=b"".join(map(encode_frame, frames)),
    )
    made = (
        TaskArtifact("model", folder.digest, 300_009, 2),
        TaskArtifact("gone", "ab" * 32, 1, 1),
        TaskArtifact("never-asked-for", folder.digest, 1, 1),
    )
    key = TaskKey(workload.id, 1, 0)
    world.node.say(TaskStarted(key=key, at=world.hub.clock.now()))
    end = TaskEnded(key=key, reason=ExitReason.EXITED, at=world.hub.clock.now(), exit_code=0, artifacts=made)
    world.node.say(end, end)
    await until(lambda: workload.state is State.COMPLETED)
    listed = await user.json("GET", f"/artifacts?workload={workload.id}")
    assert [(one["name"], one["digest"], one["workload_id"]) for one in listed["items"]] == [
        ("model", folder.digest, workload.id)
    ]
    await world.hub.content.collect(grace_s=0)
    assert len(await user.frames("model", folder.ids)) == len(folder.ids)
    events = await world.hub.events(after=0, limit=100, tenant="t", subject=workload.id, kind=None)
    assert [one.message for one in events if one.kind == "workload.artifact_lost"] != []


async def test_what_a_node_prepares_is_shown_until_it_starts(world: World) -> None:
    workload = await submit(world)
    await start(world, workload)
    key = TaskKey(workload.id, 1, 0)
    world.node.say(TaskPreparing(key=key, step="environment", detail="12 packages"))
    await until(lambda: world.hub.live_status(workload).preparing == "environment: 12 packages")
    world.node.say(TaskStarted(key=key, at=world.hub.clock.now()))
    await until(lambda: world.hub.live_status(workload).preparing == "")


# Files of work


async def test_files_of_running_work_are_read_as_a_snapshot_with_the_tags_of_what_it_reads(
    world: World, folder: PackedFolder, tmp_path: Path
) -> None:
    user = await world.user()
    census = await user.add("census", packed_folder(tmp_path / "census", rows=b"1,2"), tag=MOROCCO)
    workload = await submit(world, data=("census",))
    await start(world, workload)
    await user.upload(folder)
    world.node.tree = FilesAnswer(request_id=0, digest=folder.digest)
    kept = await user.json("POST", "/workloads/job/files", json={"path": "out"})
    assert (kept["digest"], kept["files"]) == (folder.digest, 2)
    assert len(await user.frames(kept["ref"], folder.ids)) == len(folder.ids)
    other = await world.user("other")
    assert await other.error("POST", f"/content/trees/{kept['ref']}") == "E1102"
    tightened = {"process_in": ["SN"], "rest_in": ["MA"]}
    assert census["tag"]["process_in"] == ["MA"]
    assert await user.error("PUT", "/data/census/tag", json={"tag": tightened}) in ("E0904", "E0908")


async def test_a_snapshot_is_gone_after_an_hour_and_its_chunks_with_it(
    world: World, folder: PackedFolder, clock: SimClock
) -> None:
    user = await world.user()
    workload = await submit(world)
    await start(world, workload)
    await user.upload(folder)
    world.node.tree = FilesAnswer(request_id=0, digest=folder.digest)
    kept = await user.json("POST", "/workloads/job/files", json={})
    await clock.advance(timedelta(hours=1, seconds=1).total_seconds())
    await world.hub.content.collect(grace_s=0)
    assert await user.error("POST", f"/content/trees/{kept['ref']}") == "E1102"


async def test_the_nodes_no_is_what_the_user_hears(world: World) -> None:
    user = await world.user()
    workload = await submit(world)
    await start(world, workload)
    world.node.tree = FilesAnswer(request_id=0, code="E1111", message="there is no `out`")
    answer = await user.call("POST", "/workloads/job/files", json={"path": "out"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "E1111")


async def test_files_are_placed_only_into_work_that_runs(world: World, folder: PackedFolder) -> None:
    user = await world.user()
    await submit(world, name="waiting", query=None)
    body = {"path": "in", "digest": folder.digest}
    await user.upload(folder)
    assert await user.error("PUT", "/workloads/waiting/files", json=body) == "E1111"
    assert await user.error("PUT", "/workloads/waiting/files", json={"path": "in", "digest": "x"}) in ("E0201", "E1111")


async def test_images_that_a_node_registered_are_there_for_the_next_one(world: World, folder: PackedFolder) -> None:
    user, (agent, _) = await world.user(), await world.agent()
    workload = await submit(world, image="registry.local/train:1")
    await start(world, workload)
    named = {"reference": "registry.local/train@sha256:ab"}
    work = {"workload": workload.id}
    assert await agent.error("POST", "/agents/content/images", params=work, json=named) == "E1102"
    await user.upload(folder)
    await agent.json("PUT", "/agents/content/images", params=work, json={**named, "digest": folder.digest})
    found = await agent.json("POST", "/agents/content/images", params=work, json=named)
    assert found["digest"] == folder.digest
    fetched = await agent.call(
        "POST", "/agents/content/fetch", params={**work, "ref": found["ref"]}, content=folder.ids[0]
    )
    assert fetched.status_code == 200


# Restarts


async def test_content_is_there_after_a_restart_and_what_nothing_stands_behind_goes(
    tmp_path: Path, folder: PackedFolder
) -> None:
    clock = SimClock()
    hub = open_hub(tmp_path / "state", clock)
    user: ApiUser = await world_of(hub).user()
    await user.add("corpus", folder, tag=MOROCCO)
    orphan = packed_folder(tmp_path / "orphan", x=b"held, and the hub died before it was registered")
    await user.upload(orphan)
    await hub.content.hold("data_never", orphan.digest, tenant="t")
    await hub.close()
    hub = open_hub(tmp_path / "state", clock)
    user = await world_of(hub).user()
    assert len(await user.frames("corpus", folder.ids)) == len(folder.ids)
    await hub.look_after_content()
    await clock.advance(31 * 60)
    await hub.look_after_content()
    await hub.content.collect(grace_s=0)
    assert (await user.json("GET", "/content"))["tenants"][0]["chunks"] == len(folder.ids)
    await hub.close()


async def test_a_lost_index_is_rebuilt_and_nothing_that_the_catalog_knows_is_collected(
    tmp_path: Path, folder: PackedFolder
) -> None:
    clock = SimClock()
    hub = open_hub(tmp_path / "state", clock)
    await (await world_of(hub).user()).add("corpus", folder, tag=MOROCCO)
    await hub.close()
    for file in (tmp_path / "state" / "content").glob("index.db*"):
        file.unlink()
    hub = open_hub(tmp_path / "state", clock)
    await hub.look_after_content()
    await hub.content.collect(grace_s=0)
    user = await world_of(hub).user()
    assert len(await user.frames("corpus", folder.ids)) == len(folder.ids)
    events = await hub.events(after=0, limit=100, tenant=None, subject=None, kind="content.recovered")
    assert "0 data objects are not whole" in events[0].message
    await hub.close()


async def test_code_of_work_that_may_run_abroad_may_be_there_and_at_the_hub_that_it_goes_through(
    world: World, folder: PackedFolder
) -> None:
    user = await world.user()
    abroad = await user.add("code-1", folder, kind="code", countries=["SN"])
    assert (abroad["tag"]["rest_in"], abroad["tag"]["may_cross_borders"]) == (["MA", "SN"], True)
    assert "MR" in abroad["tag"]["transit_in"]  # where the links between them lead through
    home = await user.add("code-1", folder, kind="code", countries=["MA"])
    assert (home["tag"]["rest_in"], home["tag"]["may_cross_borders"]) == (["MA"], False)


async def test_uploads_whose_bodies_would_not_fit_into_memory_wait_before_they_are_read(
    world: World, folder: PackedFolder
) -> None:
    user = await world.user()
    room = world.hub.content.upload_room
    for _ in range(UPLOADS_MAX):
        await room.acquire()
    read = False

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        read = True
        yield encode_frame(pack_chunk(folder.raw(folder.ids[0]), chunk=folder.ids[0]))

    sending = asyncio.create_task(user.json("POST", "/content/chunks", content=body()))
    for _ in range(20):
        await asyncio.sleep(0)
    assert (sending.done(), read) == (False, False)
    room.release()
    assert (await sending)["stored"] == 1


async def test_an_agent_that_is_not_back_yet_after_a_restart_of_the_hub_is_told_to_try_again(
    world: World, folder: PackedFolder
) -> None:
    """An artifact that it uploads in that moment would be lost otherwise."""
    agent, _ = await world.agent()
    workload = await submit(world)
    await start(world, workload)
    chunks = encode_frame(pack_chunk(folder.raw(folder.ids[0]), chunk=folder.ids[0]))
    params = {"workload": workload.id}
    world.node.leave()
    await until(lambda: world.hub.summary().agents == 0)
    answer = await agent.call("POST", "/agents/content/chunks", params=params, content=chunks)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "E0801")
    stranger, _ = await world.agent("with-nodes-of-its-own")
    assert await stranger.error("POST", "/agents/content/chunks", params=params, content=chunks) in ("E0301", "E0801")
