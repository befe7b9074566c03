"""Does a pipeline file become real servers on which each stage can do its work, and nothing beyond it?"""

from __future__ import annotations

from pathlib import Path

from nats_pull import acknowledge, fetch
from nats_world import LIMITS, World, is_answered, until, world

from harch.pipelines.act.ledger import CommandState, authorised, proposed
from harch.pipelines.act.store_nats import NatsLedger
from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.options import ClientOptions, Credentials
from harch.pipelines.engine.audit import DomainPolicy
from harch.pipelines.engine.jetstream_admin import JetStreamAdmin, StreamAuditor
from harch.pipelines.engine.layout import EngineLayout
from harch.pipelines.engine.streams import check_streams, plan_streams
from harch.pipelines.spec.deployment import Deployment, assemble_domain, plan_deployment
from harch.sovereignty.gates import Violation
from unit.pipelines.act.act_builders import command
from unit.pipelines.spec.pipeline_files import irrigation, proved, rules

SENSE, THINK, ACT = (f"ma-souss-irrigation-{stage}" for stage in ("sense", "think", "act"))
ROOT = "juris.ma.souss-irrigation"


def deployment() -> Deployment:
    spec = irrigation()
    proof = proved(spec, declassified=["water-used"])
    plan = plan_deployment(spec, proof, rules().terrain)
    assert isinstance(plan, Deployment)
    return plan


async def deploy(made: World, told: list[Violation]) -> None:
    """The country's engine, and the one that syncs."""
    servers = {"ma": made.server("ma-1"), "ma-act": made.server("ma-act-1")}
    assembled = {
        name: assemble_domain(name, "MA", (server,), [deployment()], made.keys.public_key)
        for name, server in servers.items()
    }
    assert [domain.synced for domain, _ in assembled.values()] == [False, True]
    await made.start(EngineLayout(domains=tuple(domain for domain, _ in assembled.values()), limits=LIMITS))
    for domain, wanted in assembled.values():
        assert check_streams(wanted, LIMITS, servers=1, synced=domain.synced) == ()
        async with AioClient(made.controller_options(domain.servers[0].name, "MA")) as control:
            admin = JetStreamAdmin(control)
            await admin.apply(plan_streams(wanted, await admin.found()))
            policy = DomainPolicy(
                country="MA",
                domain=domain.name,
                account=domain.account,
                servers=frozenset({domain.servers[0].name}),
                wanted=wanted,
            )
            await StreamAuditor(admin, policy, told.append, stores=(Path(domain.servers[0].store),)).audit()


async def test_a_pipeline_file_becomes_engines_on_which_its_stages_work_and_only_they(tmp_path: Path) -> None:
    told: list[Violation] = []
    async with world(tmp_path) as made:
        await deploy(made, told)
        assert told == []
        heard: list[bytes] = []
        async with (
            AioClient(made.options("ma-1", SENSE)) as sense,
            AioClient(made.options("ma-1", THINK)) as think,
            AioClient(made.options("ma-act-1", THINK)) as think_to_act,
            AioClient(made.options("ma-act-1", ACT)) as act,
            AioClient(made.options("ma-1", ACT)) as act_hot,
        ):
            think.subscribe(f"{ROOT}.think.*", lambda message: heard.append(bytes(message.payload)))
            await think.flush()
            sense.publish(f"{ROOT}.think.5", b"features")
            await sense.flush()
            await until(lambda: heard == [b"features"], "THINK hears SENSE")
            assert (await sense.publish_stored("$KV.ma-souss-irrigation-state.p5", b"state")).seq == 1
            assert (await sense.publish_stored(f"{ROOT}.late.5", b"late")).stream == "ma-souss-irrigation-late"

            await think_to_act.publish_stored(f"{ROOT}.act.5", b"open", msg_id="1")
            (message,) = await fetch(act, ACT, "act", batch=1, wait_s=10)
            assert bytes(message.payload) == b"open"
            await acknowledge(act, message)

            copied = await sense.publish_stored(f"{ROOT}.export.5", b"copy")
            assert copied.stream == "ma-souss-irrigation-export"
            for client, subject in (
                (sense, "$KV.ma-souss-irrigation-ledger.x"),
                (think, "$JS.API.STREAM.PURGE.KV_ma-souss-irrigation-state"),
                (think_to_act, f"$JS.API.CONSUMER.MSG.NEXT.{ACT}.act"),
                (act, f"{ROOT}.act.5"),
                (act_hot, f"{ROOT}.export.5"),
                (act_hot, "export.agg.ma.souss-irrigation.water-used"),
                (act, "$JS.API.STREAM.DELETE.KV_ma-souss-irrigation-ledger"),
            ):
                assert not await is_answered(client, subject), subject
            for client in (sense, think, think_to_act, act, act_hot):
                assert client.server_info["domain"] == ("ma-act" if client in (think_to_act, act) else "ma")


async def test_the_ledger_of_actions_works_with_the_users_that_a_deployment_makes(tmp_path: Path) -> None:
    """With ACT's key and inbox: open, list, write, compare-and-set; nothing of it needs more permission."""
    async with world(tmp_path) as made:
        await deploy(made, [])
        options = ClientOptions(
            servers=(made.servers["ma-act-1"].url,),
            credentials=Credentials(seed=made.keys.seed(ACT)),
            inbox_prefix=f"_INBOX.{ACT}",
        )
        async with AioClient(options) as client:
            ledger = await NatsLedger.open(client, bucket="ma-souss-irrigation-ledger", retention_s=7 * 86_400.0)
            first = await ledger.put(proposed(command(1), now_ms=1), revision=0)
            await ledger.put(authorised(first.entry, now_ms=2), revision=first.revision)
            found = await ledger.get(first.entry.cmd_id)
            assert found is not None
            assert found.entry.state is CommandState.AUTHORISED
            await until(lambda: ledger._index.keys() == {first.entry.cmd_id}, "the watch tells it too")
            await ledger.close()
