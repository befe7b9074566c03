"""A pipeline of real processes on real message engines: killed, updated, drained, fed with rubbish, and still exact."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import aiomqtt
import httpx
import numpy as np
import pytest
from msgspec import structs
from nats_world import free_ports, until
from pipeline_world import DEVICES, KEY, SHOWN, PipelineWorld, broker, fields, version

from harch.pipelines.client.bucket import NatsBucket
from harch.pipelines.listener_keys import key_digest
from harch.pipelines.sense.gate import PolicyTable
from harch.pipelines.sense.inputs.batches import frame, key_frame
from harch.pipelines.sense.settings import FileSource, MqttSource, NatsSource
from harch.pipelines.wire.columns import Columns, encode_columns
from harch.pipelines.wire.header import BatchHeader, pack_batch
from harch.pipelines.workers.config import ActOptions, ThinkOptions, WorkerStage
from harch.pipelines.workers.names import lease_key
from harch.pipelines.workers.parts import PipelineParts

pytestmark = pytest.mark.timeout(240)
SEASON_MS = 1_790_000_000_000  # a season that is over


async def _exact(world: PipelineWorld) -> None:
    """Every accepted event in exactly one window, no window told in two ways, one action per device and window."""
    end_ns = await world.settled()
    assert world.counted(end_ns) == world.accepted
    assert world.contradictions == 0
    assert len(world.sink.carried_out) == world.acted_on(end_ns), "an action too many"
    decided = [(body["device"], body["args"]) for body in world.sink.carried_out.values()]
    assert len(decided) == world.acted_on(end_ns)


async def test_kill_9_of_every_worker_and_server_in_turn_loses_and_repeats_nothing(tmp_path: Path) -> None:
    async with fields(tmp_path) as world:
        async with world.feeding():
            for worker in ("sense-0", "think-0", "act-0", "source-0", "sense-0"):
                before = world.accepted
                await world.pipeline.workers[worker].kill()
                await until(lambda worker=worker: world.pipeline.workers[worker].pid is not None, "it starts again")
                await world.pipeline.ready(timeout_s=60)
                await until(lambda before=before: world.accepted > before + 10 * DEVICES, "events go on")
            assert max(world.windows.values()) == 1, "a window was told twice"
            # A server that is killed forgets the ids of what was read and removed: the same may be stored once more.
            for server in (world.pipeline.engine.main, world.pipeline.engine.act):
                before, starts = world.accepted, server.starts
                os.kill(server.pid or 0, signal.SIGKILL)
                await until(lambda server=server, starts=starts: server.starts > starts, "the server starts again")
                await until(server.is_ready, "the server is ready again")
                await until(lambda before=before: world.accepted > before + 10 * DEVICES, "events go on")
        assert world.accepted > 70 * DEVICES
        await _exact(world)
        status = await world.status("sense-0")
        counters = status.counters
        parts = ("events_accepted", "events_aside", "events_dropped", "events_refused")
        assert counters["events_in"] == sum(counters[name] for name in parts)


async def test_a_new_model_and_new_sense_workers_under_load_then_a_drain_that_leaves_nothing(tmp_path: Path) -> None:
    def with_endpoint(parts: PipelineParts) -> PipelineParts:
        return structs.replace(parts, thinking=ThinkOptions(endpoint=True, endpoint_key_sha256=key_digest(KEY)))

    async with fields(tmp_path, with_endpoint, workers={"source": 1, "sense": 2, "think": 1, "act": 1}) as world:
        pipeline = world.pipeline
        held = {(await world.status(name)).partitions for name in ("sense-0", "sense-1")}
        assert held == {(0,), (1,)}
        async with world.feeding():
            await until(lambda: len(world.sink.carried_out) > DEVICES, "the first model decides")
            revision = await pipeline.serve_models({"dryness": (version("2", "drier"),)})

            async def served() -> bool:
                return (await world.status("think-0")).details.get("models_revision") == str(revision)

            await until(served, "the new model is served")
            await until(lambda: 2.0 in _needs(world), "the new model decides")
            await pipeline.learn_policy(PolicyTable(2, {"dakar": 0, "dakhla": 1}))  # hubs have other bits from now on
            await pipeline.renew("sense")
            assert sorted(pipeline.workers) == ["act-0", "sense-2", "sense-3", "source-0", "think-0"]
            await pipeline.scale("think", 2)
            await pipeline.ready()
            before = world.accepted
            await until(lambda: world.accepted > before + 20 * DEVICES, "events go on")
        assert world.refused == 0, "no sender noticed anything"
        await _exact(world)
        assert max(world.windows.values()) == 1, "a window was told twice"
        assert _needs(world) == {1.0, 2.0}
        details = (await world.status("think-1")).details
        assert details["model.dryness@2"] == "active"
        inference = (await world.status("think-0")).endpoints["inference"]
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"{inference}/v2/health/ready")).status_code == 401
            assert (await client.get(f"{inference}/v2/health/ready", headers=SHOWN)).status_code == 200
        await pipeline.drain("source")
        await pipeline.drain("sense")
        bucket = NatsBucket(pipeline.engine.admin.client, pipeline.parts.names.state_bucket)
        for partition in (0, 1):
            entry = await bucket.get(lease_key(partition))
            assert entry is not None
            assert b'"owner":""' in entry.value, "a lease was not given back"


async def test_a_fused_worker_takes_the_fast_lane_and_rubbish_costs_only_itself(tmp_path: Path) -> None:
    def on_file(parts: PipelineParts) -> PipelineParts:
        return structs.replace(parts, acting=ActOptions(ledger="sqlite"))

    workers: dict[WorkerStage, int] = {"source": 1, "fused": 1}
    async with fields(tmp_path, on_file, workers=workers, partitions=1, synced_act=False) as world:
        host, port = (await world.address("fast")).removeprefix("tcp://").split(":")
        url = await world.address("web")
        stranger, unknown = await asyncio.open_connection(host, int(port))
        unknown.write(key_frame("another key") + frame(_batch(world, 1)))
        assert b"E0102" in await stranger.read(), "and that is all it hears"
        unknown.close()
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(key_frame(KEY))
        sent = 0
        for seq in range(1, 41):
            writer.write(frame(_batch(world, seq)))
            sent += DEVICES
            if seq % 10 == 0:
                writer.write(frame(bytes(100)))  # no header
                writer.write(frame(_batch(world, seq)))  # once more
                await writer.drain()
                await _rubbish(world, url)
            if seq == 20:
                await world.pipeline.workers["fused-0"].kill()
            await asyncio.sleep(0.05)
        _, other = await asyncio.open_connection(host, int(port))
        other.write(key_frame(KEY) + b"\xff" * 64)  # a length that cannot be one ends that connection, and no other
        async with world.feeding():
            await until(lambda: world.accepted >= 10 * DEVICES, "the lane goes on")

        async def taken() -> bool:
            counters = (await world.status("fused-0")).counters
            return counters.get("events_in", 0) >= sent + world.accepted

        await until(taken, "all good events have arrived")
        status, source = await world.status("fused-0"), await world.status("source-0")
        assert status.counters["events_in"] == sent + world.accepted
        assert source.counters["batches_repeated"] == 4
        assert source.counters["messages_refused"] == 4
        assert source.counters["aside_unknown_device"] == 4
        assert source.counters["aside_bad_value"] == 4
        assert source.counters["aside_bad_frame"] >= 1
        assert source.counters["aside_unauthorised"] == 9, "one connection, and two requests of each round of rubbish"
        await until(lambda: len(world.sink.carried_out) > DEVICES, "actions are carried out")
        assert len({(body["device"], key) for key, body in world.sink.carried_out.items()}) == len(
            world.sink.carried_out
        )
        writer.close()
        other.close()


async def test_a_file_a_bus_and_a_broker_end_in_the_same_windows_also_after_they_fall_silent(tmp_path: Path) -> None:
    lines = [f"{(SEASON_MS + place * 5)},field-{place % DEVICES},0.5" for place in range(600)]
    (tmp_path / "season.csv").write_text("\n".join(["ts,device,v0", *lines]) + "\n")
    port = free_ports(1)[0]

    def with_sources(parts: PipelineParts) -> PipelineParts:
        sources = (
            FileSource(name="season", path=str(tmp_path / "season.csv")),
            NatsSource(name="bus", subject="juris.ma.fields.in.field"),
            MqttSource(name="broker", host="127.0.0.1", port=port, topics=("fields/{device}/moisture",)),
        )
        return structs.replace(parts, sense=structs.replace(parts.sense, sources=sources, source_idle_s=1.0))

    async with broker(port), fields(tmp_path, with_sources) as world:
        await until(lambda: sum(world.rows.values()) == 600, "the file is read to its end, and its windows are closed")
        bus = world.pipeline.engine.admin.client
        for seq in range(1, 6):
            bus.publish("juris.ma.fields.in.field", _batch(world, seq))
        async with aiomqtt.Client("127.0.0.1", port) as client:
            for place in range(50):
                await client.publish(f"fields/field-{place % DEVICES}/moisture", "0.4", qos=1)
            await client.publish("fields/nobody/moisture", "0.4", qos=1)
        await until(lambda: sum(world.rows.values()) >= 650 + 5 * DEVICES, "silent sources close their windows")
        counters = (await world.status("source-0")).counters
        assert counters["events_accepted"] == 650 + 5 * DEVICES
        assert counters["aside_unknown_device"] == 1
        assert sum(world.rows.values()) == 650 + 5 * DEVICES


def _needs(world: PipelineWorld) -> set[float]:
    found = set()
    for body in world.sink.carried_out.values():
        arguments = body["args"]
        assert isinstance(arguments, dict)
        found.add(float(arguments["need"]))
    return found


async def _rubbish(world: PipelineWorld, url: str) -> None:
    now_ms = world.now_ns() // 1_000_000
    rows = [{"ts": now_ms, "device": "nobody", "v0": 1.0}, {"ts": now_ms, "device": "field-1", "v0": "wet"}]
    async with httpx.AsyncClient() as client:
        for keys in ({}, {"x-api-key": "another key"}):
            assert (await client.post(f"{url}/v1/events", json=rows, headers=keys, timeout=20)).status_code == 401
        answer = await client.post(f"{url}/v1/events", json=rows, headers=SHOWN, timeout=20)
        assert answer.json()["reasons"] == {"unknown_device": 1, "bad_value": 1}
        broken = await client.post(f"{url}/v1/events", content=b"\x00not json", headers=SHOWN, timeout=20)
        assert broken.status_code in (202, 400, 422)


def _batch(world: PipelineWorld, seq: int) -> bytes:
    schema = world.pipeline.parts.sense.event_schema
    zeros, first_ns = np.zeros(DEVICES), world.now_ns()
    columns = Columns(zeros, np.arange(DEVICES), zeros, zeros, np.full((2, DEVICES), 0.5))
    payload = encode_columns(schema, columns)
    header = BatchHeader(
        schema=schema.id,
        n=DEVICES,
        juris_mask=1,
        policy_version=1,
        source=77,
        seq=seq,
        t_first_ns=first_ns,
        watermark_ns=first_ns,
        payload_len=len(payload),
    )
    return pack_batch(header, payload)
