"""The ledger and the sink on a real NATS server that syncs before it acknowledges."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from harch.base.clock import SystemClock
from harch.base.errors import HarchError
from harch.pipelines.act import ledger, review
from harch.pipelines.act.ledger import CommandState, LedgerEntry
from harch.pipelines.act.settings import NatsSink as NatsSettings
from harch.pipelines.act.sinks.base import Effect, SinkOutcome, SinkRequest
from harch.pipelines.act.sinks.nats import NatsSinkAdapter
from harch.pipelines.act.stage import ActStage
from harch.pipelines.act.store import LedgerConflict
from harch.pipelines.act.store_nats import NatsLedger
from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.options import ClientOptions, Credentials
from harch.pipelines.engine.jetstream_admin import JetStreamAdmin
from harch.pipelines.engine.layout import StageGrant, inbox_of, stage_user
from integration.act.act_servers import nats_server, until
from unit.pipelines.act.act_builders import MA, Chain, RecordingSink, act, batch, command

WEEK_S = 7 * 86_400.0


async def connected_to(url: str, **options: Any) -> AioClient:
    client = AioClient(ClientOptions(servers=(url,), **options))
    await client.connect()
    return client


async def with_stream(client: AioClient, *, duplicate_window_s: int) -> JetStreamAdmin:
    admin = JetStreamAdmin(client)
    config = {"name": "ACTIONS", "subjects": ["act.*"], "duplicate_window": duplicate_window_s * 1_000_000_000}
    await admin.call("STREAM.CREATE.ACTIONS", config)
    return admin


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    async with nats_server(tmp_path / "nats") as server:
        yield server.url


@pytest.fixture
async def client(url: str) -> AsyncIterator[AioClient]:
    connected = await connected_to(url)
    yield connected
    await connected.close()


@pytest.fixture
async def store(client: AioClient) -> AsyncIterator[NatsLedger]:
    opened = await NatsLedger.open(client, bucket="act-ma", retention_s=WEEK_S)
    yield opened
    await opened.close()


def entry(number: int = 0) -> LedgerEntry:
    return ledger.authorised(ledger.proposed(command(number), now_ms=number), now_ms=number)


def order(number: int = 0, *, device: str = "d0") -> SinkRequest:
    return SinkRequest(
        key=f"{number:064x}:0", cmd_id=f"{number:064x}", device=device, action="open", args={"value": 1.0}, fence=1,
        timeout_s=10, expires_ms=2**53,
    )  # fmt: skip


async def test_of_writers_with_the_same_revision_one_wins(store: NatsLedger, client: AioClient) -> None:
    other = await NatsLedger.open(client, bucket="act-ma", retention_s=WEEK_S)
    stored = await store.put(entry(), revision=0)
    results = await asyncio.gather(
        *(
            place.put(structs.replace(entry(), worker=f"w{number}"), revision=stored.revision)
            for number, place in enumerate([store, other] * 10)
        ),
        return_exceptions=True,
    )
    assert sum(isinstance(result, LedgerConflict) for result in results) == 19
    with pytest.raises(LedgerConflict):
        await other.put(entry(), revision=0)
    await other.close()


async def test_other_processes_see_what_is_open_and_a_stop(store: NatsLedger, url: str) -> None:
    elsewhere = await connected_to(url)
    other = await NatsLedger.open(elsewhere, bucket="act-ma", retention_s=WEEK_S)
    await store.put(entry(1), revision=0)
    await store.set_stop("fire")
    found: list[CommandState] = []

    async def heard() -> None:
        while not found or not other.stopped():
            found[:] = [row.entry.state for row in await other.scan([CommandState.AUTHORISED])]
            await asyncio.sleep(0.02)

    await asyncio.wait_for(heard(), 30)
    assert found == [CommandState.AUTHORISED]
    assert other.stopped() == "fire"
    await other.close()
    await elsewhere.close()


async def test_a_new_process_finds_what_an_old_one_left(store: NatsLedger, client: AioClient) -> None:
    for number in range(300):  # more than the client holds back by itself
        await store.put(entry(number), revision=0)
    done = structs.replace(entry(500), state=CommandState.DONE, closed=True)
    await store.put(done, revision=0)
    await store.put(structs.replace(entry(501), state=CommandState.DEAD, closed=True, letter=True), revision=0)
    later = await NatsLedger.open(client, bucket="act-ma", retention_s=WEEK_S)
    assert len(await later.scan([CommandState.AUTHORISED], limit=1000)) == 300
    assert [row.entry for row in await later.last_done()] == [done]
    assert len(await review.letters(later)) == 1
    assert await later.prune(closed_before_ms=0, letters_max=0) == 1
    assert await review.letters(later) == []
    await later.close()


async def test_without_its_server_the_ledger_refuses_and_nothing_may_be_sent(tmp_path: Path) -> None:
    async with nats_server(tmp_path / "short") as server:
        client = await connected_to(server.url, reconnect_attempts_max=0)
        store = await NatsLedger.open(client, bucket="act-ma", retention_s=WEEK_S)
        assert store.stopped() == ""
    await until(lambda: not client.is_connected, "the loss of the server is seen")
    with pytest.raises(HarchError):
        store.stopped()
    with pytest.raises(HarchError) as caught:
        await store.put(entry(), revision=0)
    assert caught.value.code == "E0775"
    await store.close()
    await client.close()


async def test_two_stages_and_a_person_share_one_ledger(url: str, client: AioClient) -> None:
    """Approved through one connection, carried out by one of two workers, once."""
    clock, chain, sink = SystemClock(), Chain(), RecordingSink()
    connections = [await connected_to(url) for _ in range(2)]
    stores = [await NatsLedger.open(one, bucket="act-ma", retention_s=WEEK_S) for one in connections]
    stages = [
        ActStage(act(mode="confirm-and-execute", ttl_s=600), store=store, sinks={"valve": sink}, clock=clock,
                 worker=f"w{number}", audit=chain, local_bit=MA)
        for number, store in enumerate(stores)
    ]  # fmt: skip
    tasks = [asyncio.create_task(stage.run()) for stage in stages]
    same = batch(*[0.9] * 20, at_ms=round(clock.now().timestamp() * 1000))
    await asyncio.gather(*(stage.submit(same) for stage in stages for _ in range(5)))
    person = await NatsLedger.open(client, bucket="act-ma", retention_s=WEEK_S)
    shown = await review.waiting(person, now=clock.now())
    assert len(shown) == 20
    for one in shown:
        await review.approve(person, one.cmd_id, one.digest, by="amina", now=clock.now(), audit_to=chain)
    await until(lambda: sum(stage.counters.ends["done"] for stage in stages) >= 20, "all are done")
    await asyncio.sleep(0)
    assert len(sink.orders) == 20
    assert len({one.key for one in sink.orders}) == 20
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for one in (*stores, person):
        await one.close()
    for connection in connections:
        await connection.close()


async def test_a_thousand_deliveries_to_a_stream_are_one_message_each(url: str, client: AioClient) -> None:
    streams = await with_stream(client, duplicate_window_s=3600)
    sink = NatsSinkAdapter(NatsSettings(url=url, subject="act.{device}", timeout_s=20), longest_ttl_s=60)
    assert (await sink.prepare(order())).refusal == ""
    outcomes = [await sink.execute(order(number % 10), lambda: "") for number in range(1000)]
    assert {outcome.effect for outcome in outcomes} == {Effect.YES}
    assert (await streams.call("STREAM.INFO.ACTIONS"))["state"]["messages"] == 10
    assert (await sink.execute(order(99), lambda: "expired")).effect is Effect.NO
    assert (await streams.call("STREAM.INFO.ACTIONS"))["state"]["messages"] == 10
    await sink.close()


async def test_a_stream_that_forgets_keys_too_early_is_refused(url: str, client: AioClient) -> None:
    await with_stream(client, duplicate_window_s=30)
    sink = NatsSinkAdapter(NatsSettings(url=url, subject="act.{device}", timeout_s=20), longest_ttl_s=60)
    prepared = await sink.prepare(order())
    assert "deduplicates for 30 s" in prepared.refusal
    assert not prepared.retry
    assert "part of a subject" in (await sink.prepare(order(device="a.b>"))).refusal
    await sink.close()


async def test_a_subject_without_a_stream_or_an_answer_is_a_clear_no(url: str) -> None:
    for jetstream in (True, False):
        sink = NatsSinkAdapter(
            NatsSettings(url=url, subject="nobody.{device}", jetstream=jetstream, timeout_s=20), longest_ttl_s=1
        )
        outcome = await sink.execute(order(), lambda: "")
        assert (outcome.effect, outcome.detail) == (Effect.NO, "no subscribers on the subject")
        await sink.close()


async def test_a_worker_that_may_use_only_its_own_bucket_can_keep_its_ledger(tmp_path: Path) -> None:
    grant = StageGrant(country="MA", pipeline="soil", stage="act", buckets=("act-ma",), scans=("act-ma",))
    allowed = stage_user(grant, "")
    users = f"""authorization {{ users: [
        {{user: admin, password: admin}},
        {{user: act, password: act, permissions: {{
            publish: {{allow: {json.dumps(allowed.publish)}}}, subscribe: {{allow: {json.dumps(allowed.subscribe)}}}
        }}}}
    ]}}"""
    async with nats_server(tmp_path / "nats", more=users) as server:
        admin = await connected_to(server.url, credentials=Credentials(user="admin", password="admin"))
        made = await NatsLedger.open(admin, bucket="act-ma", retention_s=WEEK_S)
        await made.put(entry(1), revision=0)
        await made.close()
        client = await connected_to(
            server.url,
            credentials=Credentials(user="act", password="act"),
            inbox_prefix=inbox_of(grant.user_name),
        )
        store = await NatsLedger.open(client, bucket="act-ma", retention_s=WEEK_S)
        assert [row.entry for row in await store.scan([CommandState.AUTHORISED])] == [entry(1)]
        stored = await store.put(entry(2), revision=0)
        assert await store.get(entry(2).cmd_id) == stored
        with pytest.raises(LedgerConflict):
            await store.put(entry(2), revision=0)
        await store.close()
        await client.close()
        await admin.close()


async def test_a_server_that_is_killed_again_and_again_makes_nothing_happen_twice(tmp_path: Path) -> None:
    """kill -9 of the ledger's server while commands are under way; the worker goes on when it is back."""

    class Readable(RecordingSink):
        async def probe(self, order: SinkRequest) -> SinkOutcome:
            return SinkOutcome(Effect.YES if any(one.key == order.key for one in self.orders) else Effect.NO)

    clock, chain = SystemClock(), Chain()
    sink = Readable(timeout_s=0.5, keeps_keys=False, reads_back=True)
    settings = act(ttl_s=600, settle_s=0.5, retries={"attempts": 20, "base_s": 0.05, "max_s": 0.2})
    async with nats_server(tmp_path / "nats") as server:
        client = await connected_to(server.url, reconnect_attempts_max=10_000, backoff_s_max=0.1)
        store = await NatsLedger.open(client, bucket="act-ma", retention_s=WEEK_S)
        stage = ActStage(
            settings, store=store, sinks={"valve": sink}, clock=clock, worker="w", audit=chain, local_bit=MA
        )
        running = asyncio.create_task(stage.run())
        taken: set[int] = set()

        async def deliver(window: int) -> None:
            """As a stream would: again, until it was taken."""
            at_ms = round(clock.now().timestamp() * 1000)
            while window not in taken:
                try:
                    await stage.submit(batch(*[0.9] * 10, window=window, at_ms=at_ms))
                    taken.add(window)
                except HarchError:  # the ledger is away
                    await asyncio.sleep(0.1)

        for kill in range(3):
            delivery = asyncio.create_task(deliver(kill))
            before = len(sink.orders)
            await until(lambda before=before: len(sink.orders) > before, "commands are under way")
            server.kill()
            await server.start()
            await delivery
        await until(lambda: stage.counters.ends["done"] >= 30, "all are done")
        running.cancel()
        await asyncio.wait([running])
        keys = [one.key for one in sink.orders]
        assert len(keys) == len(set(keys)) == 30
        assert {row.entry.state for row in await store.last_done()} == {CommandState.DONE}
        await store.close()
        await client.close()
