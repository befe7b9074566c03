"""Does a task run in its image, from the order of the hub to its output, and does the next node get it from the hub?"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from content_fakes import ContentHub, given
from execution_fakes import task

from harch.execution.protocol import (
    ContentUse,
    ReadTaskLog,
    StartTask,
    StopTask,
    TaskEnded,
    TaskLogChunk,
    TaskPreparing,
)
from harch.testing.images import LayerFile, LayoutWriter, RegistryProcess, folder, layer, programs
from harch.workloads.lifecycle import ExitReason

pytestmark = pytest.mark.needs("bubblewrap", "skopeo", "umoci", "docker-registry")

BASE = layer([*programs("sh", "cat", "ls", "sleep"), folder("etc"), LayerFile("etc/issue", b"from an image\n")])
TRAIN = LayerFile("opt/train", b"#!/bin/sh\ncat /etc/issue; pwd; ls; echo $HOME $MODEL $HARCH_RANK\n", mode=0o755)
CONFIG = {"Env": ["PATH=/opt:/bin", "MODEL=small", "HARCH_RANK=99"], "Entrypoint": ["/bin/false"]}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProcess]:
    with RegistryProcess(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


@pytest.fixture
async def hub():
    async with ContentHub().listening() as hub:
        yield hub


@pytest.fixture
def image(registry, tmp_path) -> LayoutWriter:
    layout = LayoutWriter(tmp_path / "image", CONFIG).write(BASE, layer([TRAIN]))
    registry.push(layout.folder, "team/train:1")
    return layout


async def preparation_log(hub: ContentHub, key) -> str:
    await hub.say(ReadTaskLog(999, key, 0, 1 << 20, None, True))
    return (await hub.wait_for(TaskLogChunk, lambda one: one.request_id == 999)).data.decode()


async def test_a_task_runs_in_the_image_of_a_registry(hub, run_agent, registry, image):
    await run_agent()
    assert hub.hellos[0].features["images"] == "bubblewrap+skopeo+umoci"
    spec = task("train", image=f"{registry.address}/team/train:1")
    assert (await hub.run(spec)).exit_code == 0
    lines = (await hub.log(spec.key)).data.decode().splitlines()
    assert lines[0] == "from an image"
    assert lines[1].endswith("/work")
    assert lines[2:] == [f"{lines[1]} small 0"], "an empty folder, and what the image may decide"
    assert any(isinstance(one, TaskPreparing) and one.step == "image" for one in hub.messages)
    log = await preparation_log(hub, spec.key)
    assert image.digest in log
    assert "its entrypoint /bin/false is not used" in log


async def test_the_next_node_gets_it_from_the_hub_and_both_know_it_by_the_tag(
    hub, run_agent, registry, image, tmp_path
):
    await run_agent()
    await hub.run(task("train", image=f"{registry.address}/team/train:1"))
    before = len(registry.requests())
    await run_agent(state_dir=tmp_path / "other-node", agent_id="agent-2")
    await hub.until(lambda: len(hub.hellos) == 2)
    spec = task("train", image=f"{registry.address}/team/train:1")
    assert (await hub.run(spec)).exit_code == 0
    assert registry.requests()[before:] == []


async def test_layers_that_images_share_are_chunks_that_the_hub_has_once(hub, run_agent, registry, image, tmp_path):
    await run_agent()
    await hub.run(task("train", image=f"{registry.address}/team/train:1"))
    before = sum(frame.size for frame in hub.chunks.values())
    assert before > 500_000
    other = LayoutWriter(tmp_path / "other", CONFIG).write(BASE, layer([TRAIN, LayerFile("more", os.urandom(1000))]))
    registry.push(other.folder, "team/train:2")
    spec = task("train", image=f"{registry.address}/team/train:2")
    assert (await hub.run(spec)).exit_code == 0
    assert sum(frame.size for frame in hub.chunks.values()) - before < 10_000


async def test_an_image_in_a_data_object_needs_no_registry(hub, run_agent, tmp_path):
    layout = LayoutWriter(tmp_path / "image", CONFIG).write(BASE, layer([TRAIN]))
    held = hub.add(layout.folder, "trainer", ContentUse.IMAGE)
    await run_agent()
    spec = task("train", **given(held))
    assert (await hub.run(spec)).exit_code == 0
    assert b"from an image" in (await hub.log(spec.key)).data


async def test_an_image_that_is_absent_ends_the_task_with_its_reason(hub, run_agent, registry):
    await run_agent()
    end = await hub.run(task("train", image=f"{registry.address}/team/absent:1"))
    assert (end.reason, end.exit_code) == (ExitReason.NOT_STARTED, None)
    assert end.detail.startswith("E1132")
    assert "the registry has no such image" in end.detail


async def test_a_command_that_the_image_has_not_is_not_found_as_in_a_shell(hub, run_agent, registry, image):
    await run_agent()
    end = await hub.run(task("python3", image=f"{registry.address}/team/train:1"))
    assert (end.reason, end.exit_code) == (ExitReason.NOT_STARTED, 127)


async def test_a_task_in_an_image_can_be_stopped(hub, run_agent, registry, image):
    await run_agent()
    spec = task("sleep", "1000", image=f"{registry.address}/team/train:1")
    await hub.start(spec)
    await hub.say(StopTask(spec.key, 0.1))
    assert (await hub.ended(spec.key)).reason is ExitReason.STOPPED


async def test_a_task_that_is_stopped_while_its_image_is_fetched_does_not_start(hub, run_agent, registry, image):
    """The fetch is held back by the registry, which is stopped as a process is."""
    await run_agent()
    spec = task("train", image=f"{registry.address}/team/train:1")
    with registry.standing_still():
        await hub.say(StartTask(spec))
        await hub.wait_for(TaskPreparing, lambda one: one.key == spec.key and one.step == "image")
        await hub.say(StopTask(spec.key, 0.1))
        end = await hub.ended(spec.key)
    assert isinstance(end, TaskEnded)
    assert end.reason is ExitReason.STOPPED
