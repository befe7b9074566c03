"""Messages that a killed message server lets in a second time: does anything come of them twice?"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from nats_world import until
from pipeline_world import PipelineWorld, fields, version

from harch.base.errors import HarchError
from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.errors import NatsError
from harch.pipelines.client.protocol import Message
from harch.pipelines.workers.pull_consumer import Answered


async def recognised(world: PipelineWorld, stage: str) -> bool:
    """Whether a worker of the stage has met something that it had answered."""
    with contextlib.suppress(HarchError):
        found = [one for one in await world.pipeline.statuses() if one.stage == stage]
        return any(one.counters.get("messages_repeated", 0) for one in found)
    return False


async def stored_again(client: AioClient, message: Message) -> bool:
    """True if JetStream took it, under its old id, for something new: this is the hole."""
    identity = message.headers()["Nats-Msg-Id"]
    try:
        return not (await client.publish_stored(message.subject, message.payload, msg_id=identity)).duplicate
    except NatsError:
        return False


async def test_a_window_stored_again_after_a_kill_is_decided_once_also_by_another_version(tmp_path: Path) -> None:
    async with fields(tmp_path, synced_act=False) as world:
        engine, names = world.pipeline.engine, world.pipeline.parts.names
        told: list[Message] = []
        decided: list[Message] = []
        client = engine.admin.client
        client.subscribe(names.features("*"), lambda message: told.append(message.kept()))
        client.subscribe(names.outputs("*"), lambda message: decided.append(message.kept()))
        async with world.feeding():
            await until(lambda: len(told) > 3, "features are told")
        await world.settled()
        before = dict(world.sink.carried_out)
        pid = engine.main.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: engine.main.pid != pid, "the server is started again")
        await until(lambda: told_of_version_2(world), "the workers hear of a new version")
        await until(lambda: swapped(world), "the new version serves")

        for stage, message in (("think", told[0]), ("act", decided[0])):
            await until(lambda message=message: stored_again(client, message), "the same message is stored twice")
            await until(lambda stage=stage: recognised(world, stage), f"{stage} knows that it has answered it")
        assert world.sink.carried_out.keys() == before.keys()  # version 2 decided nothing that version 1 had


async def told_of_version_2(world: PipelineWorld) -> bool:
    with contextlib.suppress(HarchError):
        await world.pipeline.serve_models({"dryness": (version("2", "drier"),)})
        return True
    return False


async def swapped(world: PipelineWorld) -> bool:
    with contextlib.suppress(HarchError):
        found = [one for one in await world.pipeline.statuses() if one.stage == "think"]
        return any("2" in str(one.details) for one in found)
    return False


def test_the_memory_is_bounded_and_knows_no_message_without_an_identity() -> None:
    def message(identity: str) -> Message:
        header = f"NATS/1.0\r\nNats-Msg-Id: {identity}\r\n\r\n" if identity else ""
        return Message("juris.ma.x.think.0", 1, "", b"", header.encode())

    memory = Answered(kept_max=2)
    for name in ("1", "2", "3", ""):
        memory.add(message(name))
    assert [memory.has(message(name)) for name in ("1", "2", "3", "")] == [False, True, True, False]
