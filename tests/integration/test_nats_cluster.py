"""Do three real servers keep what they acknowledged when one is killed, and what do placement tags protect? Nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import msgspec
from nats_world import LIMITS, MIB, SENSE_MA, World, identity, is_answered, until, world

from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.errors import NatsError
from harch.pipelines.client.options import TlsFiles
from harch.pipelines.engine.audit import DomainPolicy, audit_streams, observe
from harch.pipelines.engine.jetstream_admin import JetStreamAdmin
from harch.pipelines.engine.layout import CONTROLLER, Domain, EngineLayout
from harch.pipelines.engine.streams import ConsumerSpec, DesiredStreams, StreamSpec, plan_streams

CRITICAL = DesiredStreams(
    streams=(
        StreamSpec(name="ma-soil-act", country="MA", subjects=("juris.ma.soil.act.*",), max_bytes=16 * MIB, replicas=3),
    ),
    consumers=(ConsumerSpec(stream="ma-soil-act", name="act", filter_subject="juris.ma.soil.act.*"),),
)


async def apply(admin: JetStreamAdmin, wanted: DesiredStreams) -> None:
    """A young cluster may not have chosen a leader yet; it is asked until it has."""

    async def done() -> bool:
        try:
            await admin.apply(plan_streams(wanted, await admin.found()))
        except Exception:  # noqa: BLE001 (any refusal of a cluster that is not ready)
            return False
        return True

    await until(done, "the cluster takes the stream")


async def test_with_three_copies_kill_9_of_the_leader_loses_nothing_acknowledged(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        files = identity(tmp_path / "tls")  # as between hubs: routes and clients over TLS, certificates on both sides
        servers = tuple(made.server(f"ma-{number}", cluster=True, tls=files) for number in (1, 2, 3))
        await made.start(EngineLayout(domains=(made.morocco(*servers),), limits=LIMITS))
        trust = TlsFiles(ca=files.ca, certificate=files.certificate, key=files.key)
        everywhere = "ma-1,ma-2,ma-3"
        control = AioClient(made.options(everywhere, CONTROLLER, key="ma-harch", tls=trust))
        await control.connect()
        admin = JetStreamAdmin(control)
        await apply(admin, CRITICAL)
        info = (await admin.streams())[0]
        seen = observe(info)
        assert len({seen.leader, *seen.replicas}) == 3
        policy = DomainPolicy(
            country="MA",
            domain="ma",
            account="JURIS_MA",
            servers=frozenset(server.name for server in servers),
            wanted=CRITICAL,
        )
        assert audit_streams(policy, [observe(info, await admin.consumers("ma-soil-act"))]) == ()
        worker = AioClient(made.options(everywhere, SENSE_MA.user_name, tls=trust))
        await worker.connect()
        acknowledged: set[str] = set()

        async def publish(name: str) -> bool:
            """Sent again under the same id until it is acknowledged, as a source does."""
            try:
                await worker.publish_stored("juris.ma.soil.act.0", name.encode(), msg_id=name, timeout_s=2)
            except NatsError:
                return False
            acknowledged.add(name)
            return True

        for number in range(30):
            await until(lambda number=number: publish(f"before-{number}"), "an acknowledgement")
        victim = made.servers[seen.leader]
        for task in victim._tasks:  # stays dead: no supervisor brings it back
            task.cancel()
        await asyncio.gather(*victim._tasks, return_exceptions=True)
        pid = victim.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        for number in range(30):
            await until(lambda number=number: publish(f"after-{number}"), "two of three go on")

        async def new_leader() -> bool:
            try:
                answer = await admin.call("STREAM.INFO.ma-soil-act")
            except NatsError:
                return False
            return answer["cluster"].get("leader") not in (None, "", seen.leader)

        await until(new_leader, "another server leads")
        kept = set()
        state = (await admin.call("STREAM.INFO.ma-soil-act"))["state"]
        for seq in range(state["first_seq"], state["last_seq"] + 1):
            stored = await admin.call("STREAM.MSG.GET.ma-soil-act", {"seq": seq})
            kept.add(msgspec.json.decode(b'"' + stored["message"]["data"].encode() + b'"', type=bytes).decode())
        assert len(acknowledged) == 60
        assert acknowledged <= kept
        assert state["messages"] == 60  # each id once, however often it was sent
        await worker.close()
        await control.close()


def tagged(made: World, servers: list[Any], key: str) -> dict[str, str]:
    """One cluster over two countries, one account for all, held apart by placement tags only."""
    word = made.keys.word("cluster")
    texts = {}
    for server in servers:
        routes = [f"nats-route://h:{word}@127.0.0.1:{o.cluster_port}" for o in servers if o is not server]
        config = {
            "server_name": server.name,
            "listen": f"127.0.0.1:{server.client_port}",
            "http": f"127.0.0.1:{server.monitor_port}",
            "log_file": server.log_file,
            "server_tags": [f"country:{server.name[:2]}"],
            "jetstream": {"store_dir": server.store, "max_file": 64 * MIB, "max_mem": MIB},
            "accounts": {"ALL": {"jetstream": "enabled", "users": [{"nkey": key}]}, "SYS": {"users": []}},
            "system_account": "SYS",
            "cluster": {
                "name": "both",
                "listen": f"127.0.0.1:{server.cluster_port}",
                "authorization": {"user": "h", "password": word},
                "routes": routes,
            },
        }
        texts[server.name] = msgspec.json.encode(config).decode()
    return texts


async def test_control_a_changed_tag_moves_a_stream_abroad_and_the_audit_sees_it(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        servers = [made.server(name, cluster=True) for name in ("ma-1", "ma-2", "sn-1")]
        layout = EngineLayout(domains=(Domain(country="MA", name="ma", servers=tuple(servers)),), limits=LIMITS)
        await made.start(layout, configs=tagged(made, servers, made.keys.public_key("anybody")))
        options = msgspec.structs.replace(made.options("sn-1", "anybody"), inbox_prefix="_INBOX")
        async with AioClient(options) as thief:
            admin = JetStreamAdmin(thief)
            config = {**CRITICAL.streams[0].wire(), "num_replicas": 1, "placement": {"tags": ["country:ma"]}}

            async def created() -> bool:
                return await is_answered(thief, "$JS.API.STREAM.CREATE.ma-soil-act", config, timeout_s=5)

            await until(created, "the stream is there")
            before = observe((await admin.streams())[0])
            assert before.leader.startswith("ma-")
            await thief.publish_stored("juris.ma.soil.act.0", b"secret")
            moved = {**config, "placement": {"tags": ["country:sn"]}}
            assert await is_answered(thief, "$JS.API.STREAM.UPDATE.ma-soil-act", moved, timeout_s=10)

            async def abroad() -> bool:
                try:
                    return observe((await admin.streams())[0]).leader == "sn-1"
                except (NatsError, IndexError):
                    return False

            await until(abroad, "the stream moves to Senegal because a tag was changed")
            policy = DomainPolicy(
                country="MA",
                domain="ma",
                account="ALL",
                servers=frozenset({"ma-1", "ma-2"}),
                wanted=DesiredStreams(streams=(CRITICAL.streams[0],)),
            )
            found = audit_streams(policy, [observe(info) for info in await admin.streams()])
            assert {"leader", "placement", "config"} <= {reason.rule for reason in found[0].rejections}
