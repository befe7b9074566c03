"""Does a real, supervised message engine start, survive kill -9 with what it acknowledged, and tell who was refused?"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from nats_pull import acknowledge, fetch, stored_seq
from nats_world import ACT_MA, LIMITS, MIB, SENSE_MA, WANTED_MA, World, admin_of, until, world

from harch.base.errors import HarchError
from harch.execution.kernel import start_ticks
from harch.execution.process_record import found_running
from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.errors import AuthorizationFailed, JetStreamRefused
from harch.pipelines.engine.config import server_config
from harch.pipelines.engine.layout import EngineLayout, EngineUser, ServerLimits, StageGrant
from harch.pipelines.engine.log_lines import EngineEventKind
from harch.pipelines.engine.server import user_names
from harch.pipelines.engine.streams import DesiredStreams, StreamVerb, plan_streams


async def start_morocco(made: World, *, synced: bool = False) -> None:
    server = made.server("ma-1")
    await made.start(EngineLayout(domains=(made.morocco(server, synced=synced),), limits=LIMITS))


async def test_acknowledged_messages_outlive_kill_9_and_the_server_comes_back_by_itself(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await start_morocco(made, synced=True)
        control, admin = await admin_of(made, "ma-1", "MA")
        await admin.apply(plan_streams(WANTED_MA, await admin.found()))
        assert plan_streams(WANTED_MA, await admin.found()).changes == ()  # asked again, nothing differs

        worker = AioClient(made.options("ma-1", SENSE_MA.user_name))
        await worker.connect()
        acks = [
            await worker.publish_stored("juris.ma.soil.act.3", b"open valve", msg_id=f"m{number}")
            for number in range(20)
        ]
        assert [ack.seq for ack in acks] == list(range(1, 21))
        assert (await worker.publish_stored("juris.ma.soil.act.3", b"open valve", msg_id="m7")).duplicate

        first = made.servers["ma-1"].pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: made.servers["ma-1"].pid not in (None, first), "a new process")
        await until(made.servers["ma-1"].is_ready, "the new process is ready")
        await until(lambda: worker.is_connected and control.is_connected, "clients connect again")
        assert worker.reconnects >= 1

        reader = AioClient(made.options("ma-1", ACT_MA.user_name))
        await reader.connect()
        messages = await fetch(reader, "ma-soil-act", "act", batch=20, wait_s=10)
        assert [stored_seq(message) for message in messages] == list(range(1, 21))
        for message in messages:
            await acknowledge(reader, message)
        assert await fetch(reader, "ma-soil-act", "act", batch=1, wait_s=0.1) == []
        kinds = [event.what for event in made.events]
        assert kinds[0] is EngineEventKind.STARTED
        assert EngineEventKind.ENDED in kinds
        for client in (control, worker, reader):
            await client.close()


async def test_a_refused_worker_sees_silence_and_the_operator_sees_who_and_what(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await start_morocco(made)
        async with AioClient(made.options("ma-1", SENSE_MA.user_name)) as worker:
            worker.publish("juris.ma.other.act.0", b"x")
            worker.subscribe("juris.ma.>", lambda message: None)
            await worker.flush()
            await until(lambda: len(worker.refusals) == 2, "the client keeps the refusals")
        wanted = {
            (EngineEventKind.PUBLISH_REFUSED, SENSE_MA.user_name, "juris.ma.other.act.0"),
            (EngineEventKind.SUBSCRIBE_REFUSED, SENSE_MA.user_name, "juris.ma.>"),
        }
        await until(
            lambda: wanted <= {(e.what, e.user, e.subject) for e in made.events}, "events name user and subject"
        )

        stranger = made.options("ma-1", SENSE_MA.user_name, key="stranger")
        with pytest.raises(AuthorizationFailed):
            await AioClient(stranger).connect()
        await until(lambda: EngineEventKind.KEY_REFUSED in {e.what for e in made.events}, "a refused key is an event")
        seeds = [made.keys.seed(name) for name in (SENSE_MA.user_name, "stranger")]
        for path in [*tmp_path.rglob("*.log"), *tmp_path.rglob("*.conf")]:
            assert not any(seed in path.read_text() for seed in seeds)
            if path.suffix == ".conf":
                assert path.stat().st_mode & 0o077 == 0


async def test_a_server_of_an_earlier_hub_is_kept_and_a_stale_pid_harms_nobody(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await start_morocco(made)
        first = made.servers["ma-1"]
        pid = first.pid
        for task in first._tasks:  # the hub dies: nobody watches any more, the server runs on
            task.cancel()
        await asyncio.gather(*first._tasks, return_exceptions=True)
        second = made.add(first.server, first._config_text)
        await second.start()
        assert second.pid == pid
        assert second.starts == 0

        changed = made.add(
            first.server, first._config_text.replace('"max_connections": 1000', '"max_connections": 999')
        )
        for task in second._tasks:
            task.cancel()
        await changed.start()
        assert changed.pid != pid
        await changed.stop()

        record = tmp_path / "ma-1" / "ma-1.pid"
        record.write_text(f'{{"pid":{os.getpid()},"start_ticks":1,"config_sha256":""}}')  # somebody else's pid by now
        await changed.start()
        assert changed.pid != os.getpid()


async def test_a_broken_configuration_is_told_with_the_servers_own_words(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        server = made.server("ma-1")
        layout = EngineLayout(domains=(made.morocco(server),), limits=LIMITS)
        with pytest.raises(HarchError) as caught:
            await made.start(layout, configs={"ma-1": '{"listen": "127.0.0.1:nonsense"}'})
        assert caught.value.code == "E0703"
        assert "nonsense" in caught.value.hint or "port" in caught.value.hint


async def test_streams_beyond_the_limits_of_the_engine_are_refused_by_the_engine_too(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await start_morocco(made)
        control, admin = await admin_of(made, "ma-1", "MA")
        huge = WANTED_MA.streams[0].__class__(
            name="ma-huge", country="MA", subjects=("juris.ma.huge.act.*",), max_bytes=1024 * MIB
        )
        with pytest.raises(HarchError) as caught:
            await admin.apply(plan_streams(DesiredStreams(streams=(huge,)), await admin.found()))
        assert caught.value.code == "E0705"
        await admin.apply(plan_streams(WANTED_MA, await admin.found()))
        with pytest.raises(JetStreamRefused):
            await control.publish_stored("juris.ma.soil.act.0", b"x", expected_last_subject_seq=99)
        await control.close()


async def test_changed_streams_and_consumers_are_updated_in_place_and_removed_when_named(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await start_morocco(made)
        control, admin = await admin_of(made, "ma-1", "MA")
        await admin.apply(plan_streams(WANTED_MA, await admin.found()))
        await control.publish_stored("juris.ma.soil.act.0", b"kept")
        stream, *others = WANTED_MA.streams
        larger = DesiredStreams(
            streams=(msgspec.structs.replace(stream, max_bytes=stream.max_bytes * 2, max_age_s=3600.0), *others),
            consumers=(msgspec.structs.replace(WANTED_MA.consumers[0], ack_wait_s=5.0, max_deliver=9),),
        )
        plan = plan_streams(larger, await admin.found())
        assert [(change.verb, change.fields) for change in plan.changes] == [
            (StreamVerb.UPDATE, ("max_bytes", "max_age")),
            (StreamVerb.UPDATE, ("ack_wait", "max_deliver")),
        ]
        await admin.apply(plan)
        assert plan_streams(larger, await admin.found()).changes == ()
        assert (await admin.call(f"STREAM.INFO.{stream.name}"))["state"]["messages"] == 1
        await admin.apply(plan_streams(DesiredStreams(), await admin.found(), remove=[stream.name]))
        assert stream.name not in (await admin.found()).streams
        await control.close()


async def test_users_come_and_go_without_a_restart_and_what_needs_one_gets_one(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await start_morocco(made)
        engine = made.servers["ma-1"]
        pid = engine.pid
        domain = made.layout.domains[0]
        think = StageGrant(country="MA", pipeline="soil", stage="think", listens=("juris.ma.soil.think.*",))

        def layout(*users: EngineUser, limits: ServerLimits = LIMITS) -> EngineLayout:
            return EngineLayout(domains=(msgspec.structs.replace(domain, users=users),), limits=limits)

        async with AioClient(made.options("ma-1", SENSE_MA.user_name)) as sense:
            more = layout(*domain.users, made.worker(think))
            assert await engine.reload(server_config(more, "ma-1"), user_names(more))
            async with AioClient(made.options("ma-1", think.user_name)) as newcomer:
                await newcomer.flush()
                fewer = layout(*domain.users)
                assert await engine.reload(server_config(fewer, "ma-1"), user_names(fewer))
                await until(lambda: not newcomer.is_connected, "whose key is taken away is cut off")
            with pytest.raises(AuthorizationFailed):
                await AioClient(made.options("ma-1", think.user_name)).connect()
            await sense.flush()
            assert sense.reconnects == 0
            assert engine.pid == pid
            assert await engine.reload(server_config(fewer, "ma-1"), user_names(fewer))  # the same again: nothing to do

            moved = server_config(fewer, "ma-1").replace(domain.servers[0].store, str(tmp_path / "elsewhere"))
            assert not await engine.reload(moved, user_names(fewer))
            assert engine.pid != pid


SUPERVISOR = """
import asyncio, sys
from pathlib import Path
from nats_world import LIMITS, EngineLayout, World
from harch.pipelines.engine.server import find_nats_server
from harch.pipelines.engine.config import server_config
from harch.pipelines.engine.server import EngineServer

async def main():
    made = World(Path(sys.argv[1]))
    layout = EngineLayout(domains=(made.morocco(made.server("ma-1")),), limits=LIMITS)
    server = layout.domains[0].servers[0]
    engine = EngineServer(server, server_config(layout, "ma-1"), Path(sys.argv[1]), find_nats_server(), users={},
                          on_event=lambda event: None, tethered=sys.argv[2] == "tethered")
    await engine.start()
    print(engine.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["tethered", "free"])
async def test_a_tethered_server_ends_with_its_supervisor_and_a_free_one_goes_on(tmp_path: Path, kind: str) -> None:
    here = Path(__file__).parent
    supervisor = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(tmp_path), kind],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{here}:{here.parent}"},
    )
    assert supervisor.stdout is not None
    pid = int(await asyncio.to_thread(supervisor.stdout.readline))
    ticks = start_ticks(pid)
    os.kill(supervisor.pid, signal.SIGKILL)
    await asyncio.to_thread(supervisor.wait)
    if kind == "tethered":
        await until(lambda: start_ticks(pid) != ticks, "the server ends with its supervisor")
    else:
        running = found_running(tmp_path / "ma-1.pid")
        assert running is not None
        assert running.record.pid == pid
        await running.stop(10)
