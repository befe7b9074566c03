"""A pipeline on streams of three copies, in a cluster of others and in its hub's own: is anything lost?"""

from __future__ import annotations

import asyncio
import base64
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from external_world import ExternalCluster
from nats_world import MIB, until, world
from running_hub import LoneHub, running_hub

from harch.base.clock import SystemClock
from harch.base.errors import HarchError
from harch.hub.pipelines.engine import HubEngine
from harch.hub.pipelines.engine_backends import OwnServers
from harch.hub.pipelines.planning import plan
from harch.pipelines.client.errors import NatsError
from harch.pipelines.engine.audit import observe
from harch.pipelines.engine.keys import KeyFolder
from harch.pipelines.engine.server import EngineServer
from harch.pipelines.engine.settings import EngineSettings
from harch.pipelines.workers.names import names_of
from harch.sovereignty.gates import GateAction, Violation
from unit.hub_pipelines.pipeline_samples import ground, spec

pytestmark = pytest.mark.uses("bubblewrap")

NAMES = names_of("MA", "fields")
EVERY_STREAM = {
    NAMES.features_stream,
    NAMES.outputs_stream,
    NAMES.late_stream,
    NAMES.dead_stream,
    NAMES.audit_stream,
    f"KV_{NAMES.state_bucket}",
    f"KV_{NAMES.status_bucket}",
    f"KV_{NAMES.ledger_bucket}",
    "ma-advisories",
}


async def copies(engine: HubEngine) -> dict[str, set[str]]:
    """Servers that keep each stream."""
    infos = await engine.admin("ma").streams()
    return {one.name: {one.leader, *one.replicas} - {""} for one in map(observe, infos)}


async def kill_for_good(server: EngineServer) -> None:
    for task in server._tasks:  # stays dead: no supervisor brings it back
        task.cancel()
    await asyncio.gather(*server._tasks, return_exceptions=True)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)


async def leader_of(engine: HubEngine, stream: str) -> str:
    return observe(await engine.admin("ma").call(f"STREAM.INFO.{stream}")).leader


def told(hub: LoneHub, *words: str) -> bool:
    return any(all(word in f"{subject} {message}" for word in words) for _, subject, message in hub.desk.notes)


async def test_a_hub_on_three_servers_of_others_loses_nothing_when_the_leader_is_killed(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        cluster = ExternalCluster(made, tmp_path, ("ma-1", "ma-2", "ma-3"))
        await cluster.start()
        async with running_hub(tmp_path / "hub", cluster.settings()) as hub:
            with pytest.raises(HarchError, match="names no engine that syncs"):
                await hub.apply(hub.text(("act: stored, ", "")))
            await hub.apply(hub.text())
            engine = hub.pipelines._open().engine
            kept = await copies(engine)
            assert set(kept) == EVERY_STREAM
            assert all(servers == {"ma-1", "ma-2", "ma-3"} for servers in kept.values()), kept
            await hub.feed(4)
            victim = await leader_of(engine, NAMES.features_stream)
            await kill_for_good(made.servers[victim])
            await hub.feed(12)
            await hub.settled()
            await until(lambda: told(hub, f"the copy at {victim} is behind or offline"), "the audit tells of it")
            assert not told(hub, "pause")
            assert not any((tmp_path / "hub").rglob("*.conf"))  # the hub runs no server of its own
            log = "".join(path.read_text() for path in (tmp_path / "hub").rglob("*.log"))
            assert cluster.signing_seed not in log


async def test_a_hub_s_own_engine_of_three_servers_keeps_three_copies_of_every_stream(tmp_path: Path) -> None:
    disks = tuple(str(tmp_path / f"disk-{number}") for number in (1, 2, 3))
    settings = EngineSettings(replicas=3, servers=3, stores=disks)
    told: list[Violation] = []
    place, engine = own_engine(tmp_path, settings, told)
    deployment = plan(spec(("scaling:", "durability: {act: stored, replicas: 3}\nscaling:")), ground()).deployment
    large = plan(
        spec(("scaling:", f"durability: {{act: stored, stream_bytes_max: {3000 * MIB}}}\nscaling:")), ground()
    ).deployment
    with pytest.raises(HarchError, match="bytes with replicas"):
        engine.check([large])
    _, lone = own_engine(tmp_path / "lone", EngineSettings(), told)
    with pytest.raises(HarchError, match="needs 3 copies, but this hub keeps 1"):
        lone.check([deployment])
    try:
        await engine.ensure([deployment])
        admin, servers = engine.admin("ma"), {f"ma-dakhla-{number}" for number in (1, 2, 3)}
        assert await copies(engine) == dict.fromkeys(EVERY_STREAM, servers)
        victim = place._running[await leader_of(engine, NAMES.late_stream)]
        acknowledged: set[bytes] = set()

        async def stored(name: bytes) -> bool:
            try:
                await admin.client.publish_stored(NAMES.late(0), name, msg_id=name.decode(), timeout_s=2)
            except NatsError:
                return False
            acknowledged.add(name)
            return True

        for number in range(10):
            await until(lambda number=number: stored(b"%d" % number), "an acknowledgement")
        pid = victim.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        for number in range(10, 20):
            await until(lambda number=number: stored(b"%d" % number), "two of three go on")
        await until(lambda: victim.pid != pid, "its supervisor starts it again")
        kept = {base64.b64decode((await got(engine, seq))["message"]["data"]) for seq in range(1, 21)}
        assert kept == acknowledged
        assert not [one for one in told if GateAction.PAUSE in one.actions]
    finally:
        await engine.stop()
    (tmp_path / "where").write_text("the account A")
    with pytest.raises(HarchError, match=r"are in the account A, but engine\.toml now names the hub's own"):
        engine.check([deployment])
    fewer, _ = own_engine(tmp_path, EngineSettings(), told)
    with pytest.raises(HarchError, match="was created with 3 server") as refused:
        fewer.check("ma")
    assert refused.value.code == "E0747"


async def got(engine: HubEngine, seq: int) -> dict[str, Any]:
    """A message by its number, from whoever leads now."""
    found: list[dict[str, Any]] = []

    async def answered() -> bool:
        try:
            found.append(await engine.admin("ma").call(f"STREAM.MSG.GET.{NAMES.late_stream}", {"seq": seq}))
        except NatsError:
            return False
        return True

    await until(answered, "the stream answers")
    return found[0]


def own_engine(folder: Path, settings: EngineSettings, told: list[Violation]) -> tuple[OwnServers, HubEngine]:
    keys, clock = KeyFolder(folder / "keys"), SystemClock()
    place = OwnServers(
        "dakhla", "MA", folder / "engine", settings=settings, keys=keys, clock=clock, on_event=lambda event: None
    )
    where = folder / "where"
    engine = HubEngine("MA", place, keys, where, clock=clock, on_violation=told.append, on_alert=lambda alert: None)
    return place, engine
