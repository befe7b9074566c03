"""Can somebody with all of Senegal's credentials get at Moroccan data? Every way that is known, tried for real.

Each attack is tried twice: on an unsafe layout, where it must succeed (else the attempt proves nothing), and on ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats_world import (
    LIMITS,
    MIB,
    SENSE_MA,
    WANTED_MA,
    WORK_SN,
    World,
    admin_of,
    identity,
    is_answered,
    two_countries,
    until,
    world,
)

from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.errors import AuthorizationFailed
from harch.pipelines.client.options import ClientOptions, TlsFiles
from harch.pipelines.client.protocol import Message
from harch.pipelines.engine.audit import DomainPolicy
from harch.pipelines.engine.jetstream_admin import StreamAuditor, kept_streams
from harch.pipelines.engine.layout import Domain, EngineLayout
from harch.pipelines.engine.log_lines import EngineEventKind
from harch.pipelines.engine.streams import plan_streams
from harch.sovereignty.gates import GateAction, Violation

SECRET = b"moisture of every field in the Souss"
STREAM = "ma-soil-act"
SETTLE_S = 0.3  # for messages that must not come; those that must are waited for


@pytest.fixture
async def ours(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path) as made:
        await two_countries(made)
        control, admin = await admin_of(made, "ma-1", "MA")
        await admin.apply(plan_streams(WANTED_MA, await admin.found()))
        for _ in range(5):
            await control.publish_stored("juris.ma.soil.act.1", SECRET)
        await control.close()
        yield made


@pytest.fixture
async def unsafe(tmp_path: Path) -> AsyncIterator[World]:
    """What one gets without the rules: one account for all, an open leaf link, no permissions."""
    async with world(tmp_path) as made:
        morocco, senegal = made.server("ma-1", border=True), made.server("sn-1")
        key = made.keys.public_key("anybody")
        common = {"accounts": {"ALL": {"jetstream": "enabled", "users": [{"nkey": key}]}}, "max_payload": 8 * MIB}

        def text(server: Any, domain: str, leaf: dict[str, Any]) -> str:
            return msgspec.json.encode(
                {
                    "server_name": server.name,
                    "listen": f"127.0.0.1:{server.client_port}",
                    "http": f"127.0.0.1:{server.monitor_port}",
                    "jetstream": {"store_dir": server.store, "domain": domain, "max_file": 64 * MIB, "max_mem": MIB},
                    "leafnodes": leaf,
                    "log_file": server.log_file,
                    **common,
                }
            ).decode()

        remote = {
            "url": f"nats-leaf://127.0.0.1:{morocco.border_port}",
            "nkey": made.keys.seed("anybody"),
            "account": "ALL",
        }
        await made.start(
            EngineLayout(domains=(Domain(country="MA", name="ma", servers=(morocco, senegal)),), limits=LIMITS),
            configs={
                "ma-1": text(morocco, "ma", {"listen": f"127.0.0.1:{morocco.border_port}"}),
                "sn-1": text(senegal, "sn", {"remotes": [remote], "reconnect": 1}),
            },
        )
        async with AioClient(unsafe_options(made, "ma-1")) as control:
            spec = WANTED_MA.streams[0]
            assert await is_answered(control, f"$JS.API.STREAM.CREATE.{STREAM}", spec.wire(), timeout_s=10)
            for _ in range(5):
                await control.publish_stored("juris.ma.soil.act.1", SECRET)
        yield made


def unsafe_options(made: World, server: str) -> ClientOptions:
    return msgspec.structs.replace(made.options(server, "anybody"), inbox_prefix="_INBOX")


async def linked(made: World, client: AioClient, subject: str, payload: bytes, receiver: AioClient) -> None:
    """Waits until what is published here arrives there: the border link is up."""
    got: list[bytes] = []
    receiver.subscribe(subject, lambda message: got.append(bytes(message.payload)))
    await receiver.flush()

    async def arrived() -> bool:
        client.publish(subject, payload)
        await client.flush()
        return bool(got)

    await until(arrived, "the border link carries what it may")


# An attack is a request to JetStream that must not be answered with anything but a refusal.
API_ATTACKS: dict[str, tuple[str, object]] = {
    "list streams": ("$JS{}.API.STREAM.NAMES", None),
    "read the configuration": (f"$JS{{}}.API.STREAM.INFO.{STREAM}", None),
    "read a message": (f"$JS{{}}.API.STREAM.MSG.GET.{STREAM}", {"seq": 1}),
    "read the last message of a subject": (
        f"$JS{{}}.API.STREAM.MSG.GET.{STREAM}",
        {"last_by_subj": "juris.ma.soil.act.1"},
    ),
    "create a consumer": (
        f"$JS{{}}.API.CONSUMER.CREATE.{STREAM}.thief",
        {"stream_name": STREAM, "config": {"name": "thief", "ack_policy": "none", "deliver_policy": "all"}},
    ),
    "re-tag, so that it moves": (
        f"$JS{{}}.API.STREAM.UPDATE.{STREAM}",
        {**WANTED_MA.streams[0].wire(), "description": "now elsewhere"},
    ),
    "purge": (f"$JS{{}}.API.STREAM.PURGE.{STREAM}", {"keep": 5}),
    "take a snapshot": (
        f"$JS{{}}.API.STREAM.SNAPSHOT.{STREAM}",
        {"deliver_subject": "_INBOX.snapshot", "no_consumers": True},
    ),
    "ask about the account": ("$JS{}.API.INFO", None),
    "delete a message": (f"$JS{{}}.API.STREAM.MSG.DELETE.{STREAM}", {"seq": 5, "no_erase": True}),
}
# On the unsafe layout `deny_delete` of the stream itself still refuses two of them, whoever asks.
REFUSED_BY_THE_STREAM = {"purge", "delete a message"}
PREFIXES = ("", ".ma")  # the local domain's name for the API, and that of Morocco's


async def test_control_on_the_unsafe_layout_every_attack_succeeds(unsafe: World) -> None:
    async with AioClient(unsafe_options(unsafe, "ma-1")) as morocco, AioClient(unsafe_options(unsafe, "sn-1")) as thief:
        await linked(unsafe, morocco, "juris.ma.soil.think.0", SECRET, thief)  # raw data crosses: the first leak

        async def sees_streams() -> bool:
            return await is_answered(thief, "$JS.ma.API.STREAM.NAMES")

        await until(sees_streams, "the API of the other domain answers over the link")
        leaked = [
            name
            for name, (subject, body) in API_ATTACKS.items()
            if await is_answered(thief, subject.format(".ma"), body, timeout_s=5)
        ]
        assert set(leaked) >= set(API_ATTACKS) - REFUSED_BY_THE_STREAM

        for name, extra in (
            ("mirror", {"mirror": {"name": STREAM, "external": {"api": "$JS.ma.API"}}}),
            ("source", {"sources": [{"name": STREAM, "external": {"api": "$JS.ma.API"}}]}),
        ):
            config = {"name": f"stolen-{name}", "storage": "file", "max_bytes": 4 * MIB, **extra}
            assert await is_answered(thief, f"$JS.API.STREAM.CREATE.stolen-{name}", config, timeout_s=5)

            async def copied(copy: str = f"stolen-{name}") -> bool:
                answer = await thief.request(f"$JS.API.STREAM.INFO.{copy}", b"", timeout_s=5)
                return msgspec.json.decode(answer.payload)["state"]["messages"] == 5

            await until(copied, f"a {name} copies all messages abroad")


@pytest.mark.parametrize("credential", ["worker", "controller"])
async def test_with_senegals_keys_at_senegals_engine_nothing_moroccan_is_reached(ours: World, credential: str) -> None:
    options = ours.controller_options("sn-1", "SN")
    if credential == "worker":
        options = ours.options("sn-1", WORK_SN.user_name)
    heard: list[Message] = []
    async with AioClient(options) as thief, AioClient(ours.options("ma-1", SENSE_MA.user_name)) as sense:
        await linked(ours, sense, "export.agg.ma.soil", b"mean of a region", thief)  # the link works, and for this only
        for prefix in PREFIXES:
            for name, (subject, body) in API_ATTACKS.items():
                if credential == "controller" and not prefix and name in ("list streams", "ask about the account"):
                    continue  # Senegal's controller may ask its own engine about its own account
                assert not await is_answered(thief, subject.format(prefix), body), f"{name} with `{prefix}`"
        for subject in ("juris.>", "juris.ma.>", "_INBOX.>", "$JS.ACK.>", "$KV.>", ">"):
            thief.subscribe(subject, lambda message: heard.append(message.kept()))
        await thief.flush()
        sense.publish("juris.ma.soil.think.0", SECRET)
        await sense.publish_stored("juris.ma.soil.act.1", SECRET)
        sense.publish("export.agg.ma.soil", b"mean of a region")
        await sense.flush()
        await asyncio.sleep(SETTLE_S)
        assert [message for message in heard if bytes(message.payload) == SECRET or "juris.ma" in message.subject] == []


async def test_senegals_controller_can_copy_nothing_over_the_border(ours: World) -> None:
    """Its own account is its own: it may make a mirror there, and the mirror stays empty."""
    control, admin = await admin_of(ours, "sn-1", "SN")
    async with AioClient(ours.options("ma-1", SENSE_MA.user_name)) as sense:
        await linked(ours, sense, "export.agg.ma.soil", b"mean of a region", control)
    for name, extra in (
        ("mirror", {"mirror": {"name": STREAM, "external": {"api": "$JS.ma.API"}}}),
        ("source", {"sources": [{"name": STREAM, "external": {"api": "$JS.ma.API"}}]}),
        ("same", {"mirror": {"name": STREAM}}),
        ("listener", {"subjects": ["juris.ma.>"]}),
    ):
        config = {"name": f"stolen-{name}", "storage": "file", "max_bytes": 4 * MIB, **extra}
        if await is_answered(control, f"$JS.API.STREAM.CREATE.stolen-{name}", config, timeout_s=5):
            await asyncio.sleep(SETTLE_S)
            answer = await admin.call(f"STREAM.INFO.stolen-{name}")
            assert answer["state"]["messages"] == 0, name
    found = {name for _, name in kept_streams(Path(ours.servers["sn-1"].server.store))}
    assert STREAM not in found
    for path in Path(ours.servers["sn-1"].server.store).rglob("*"):
        assert not path.is_file() or SECRET not in path.read_bytes()
    await control.close()


async def test_senegals_keys_do_not_open_moroccos_engine_at_all(ours: World) -> None:
    for key in (WORK_SN.user_name, "sn-harch", "link"):  # the link's own key is no client's key
        with pytest.raises(AuthorizationFailed):
            await AioClient(ours.options("ma-1", WORK_SN.user_name, key=key)).connect()
    await until(
        lambda: [e.what for e in ours.events if e.server == "ma-1"].count(EngineEventKind.KEY_REFUSED) >= 3,
        "each attempt is an event",
    )


async def test_a_moroccan_worker_cannot_do_what_only_the_controller_may(ours: World) -> None:
    """A stolen worker's key: its own subjects and its own bucket, and nothing else of its country."""
    async with AioClient(ours.options("ma-1", SENSE_MA.user_name)) as worker:
        for prefix in PREFIXES:
            for name, (subject, body) in API_ATTACKS.items():
                assert not await is_answered(worker, subject.format(prefix), body), f"{name} with `{prefix}`"
        for subject, body in (
            (f"$JS.API.DIRECT.GET.{STREAM}", {"seq": 1}),
            (f"$JS.API.DIRECT.GET.{STREAM}.juris.ma.soil.act.1", None),
            (f"$JS.API.CONSUMER.DURABLE.CREATE.{STREAM}.x", {}),
            (f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.act", {"batch": 1}),
            (f"$JS.API.STREAM.DELETE.{STREAM}", None),
            ("$JS.API.STREAM.CREATE.mine", {"name": "mine", "subjects": ["juris.ma.>"], "max_bytes": MIB}),
            ("$JS.API.STREAM.RESTORE.mine", {}),
            ("$JS.API.SERVER.REMOVE", {"peer": "ma-1"}),
            ("$SYS.REQ.SERVER.PING", None),
        ):
            assert not await is_answered(worker, subject, body), subject
        heard: list[str] = []
        worker.subscribe("_INBOX.>", lambda message: heard.append(message.subject))
        worker.subscribe("_INBOX.harch.>", lambda message: heard.append(message.subject))
        control, admin = await admin_of(ours, "ma-1", "MA")
        assert (await admin.call(f"STREAM.INFO.{STREAM}"))["state"]["messages"] == 5  # nothing was purged or deleted
        await asyncio.sleep(SETTLE_S)
        assert heard == []

        assert (await worker.publish_stored("$KV.ma-soil-sense.p0", b"checkpoint")).seq == 1  # what it needs, it may
        got = await worker.request("$JS.API.DIRECT.GET.KV_ma-soil-sense.$KV.ma-soil-sense.p0", b"")
        assert bytes(got.payload) == b"checkpoint"
        await control.close()


async def test_a_link_opened_wide_by_the_other_side_still_finds_only_aggregates(ours: World) -> None:
    """Senegal's operators bind the link to the account with streams and drop every rule on their side."""
    changed = ours.servers["sn-1"]
    await changed.stop()
    config = msgspec.json.decode(changed._config_text)
    config["leafnodes"]["remotes"][0]["account"] = "JURIS_SN"
    config["accounts"]["JURIS_SN"]["users"] = [{"nkey": ours.keys.public_key("sn-open")}]
    config["accounts"]["JURIS_SN"]["imports"] = config["accounts"]["JURIS_SN"]["exports"] = []
    config["accounts"]["BORDER"] = {}
    opened = ours.add(changed.server, msgspec.json.encode(config).decode())
    await opened.start()
    heard: list[Message] = []
    options = msgspec.structs.replace(ours.options("sn-1", "sn-open"), inbox_prefix="_INBOX")
    async with AioClient(options) as thief, AioClient(ours.options("ma-1", SENSE_MA.user_name)) as sense:
        thief.subscribe("juris.>", lambda message: heard.append(message.kept()))
        await linked(ours, sense, "export.agg.ma.soil", b"mean of a region", thief)
        for name, (subject, body) in API_ATTACKS.items():
            assert not await is_answered(thief, subject.format(".ma"), body), name
        sense.publish("juris.ma.soil.think.0", SECRET)
        await sense.publish_stored("juris.ma.soil.act.1", SECRET)
        await asyncio.sleep(SETTLE_S)
        assert heard == []


async def test_senegal_cannot_speak_for_morocco(ours: World) -> None:
    """Aggregates carry their origin in the subject, and each side of a border may use its own only."""
    heard: list[str] = []
    control, _ = await admin_of(ours, "ma-1", "MA")
    forger, _ = await admin_of(ours, "sn-1", "SN")
    control.subscribe("export.agg.>", lambda message: heard.append(message.subject))
    await linked(ours, forger, "export.agg.sn.fish", b"catch of a month", control)
    for subject in ("export.agg.ma.soil", "export.agg.sn.other", "export.agg.ci.x", "juris.ma.soil.sense.0"):
        forger.publish(subject, b"forged")
    await forger.flush()
    await asyncio.sleep(SETTLE_S)
    assert set(heard) == {"export.agg.sn.fish"}
    await control.close()
    await forger.close()


async def test_over_tls_a_border_link_needs_a_certificate_of_the_right_authority(tmp_path: Path) -> None:
    files, stranger = identity(tmp_path / "tls"), identity(tmp_path / "stranger")
    trust = TlsFiles(ca=files.ca, certificate=files.certificate, key=files.key)
    async with world(tmp_path / "right") as made:
        await two_countries(made, tls=files)
        sense = AioClient(made.options("ma-1", SENSE_MA.user_name, tls=trust))
        senegal = AioClient(made.options("sn-1", WORK_SN.user_name, tls=trust))
        async with sense, senegal:
            await linked(made, sense, "export.agg.ma.soil", b"mean of a region", senegal)
    async with world(tmp_path / "wrong") as made:
        await two_countries(made, tls=files, other_tls=stranger)
        log = Path(made.servers["ma-1"].server.log_file)
        await until(lambda: "TLS Handshake Failure" in log.read_text(), "the stranger ends at the handshake")
        assert "JetStream using domains" not in log.read_text()  # said of every link that comes about


PLANTED: dict[str, tuple[str, object]] = {
    "unknown": ("STREAM.CREATE.extra", {"name": "extra", "subjects": ["juris.ma.extra.act.*"], "max_bytes": MIB}),
    "mirror": ("STREAM.CREATE.copy", {"name": "copy", "mirror": {"name": STREAM}, "max_bytes": MIB}),
    "sources": ("STREAM.CREATE.drain", {"name": "drain", "sources": [{"name": STREAM}], "max_bytes": MIB}),
    "subject": ("STREAM.CREATE.foreign", {"name": "foreign", "subjects": ["juris.sn.>"], "max_bytes": MIB}),
    "republish": (
        "STREAM.CREATE.echo",
        {"name": "echo", "subjects": ["juris.ma.e.act.*"], "max_bytes": MIB, "republish": {"src": ">", "dest": "x.>"}},
    ),
    "subject_transform": (
        "STREAM.CREATE.mask",
        {
            "name": "mask",
            "subjects": ["juris.ma.m.act.*"],
            "max_bytes": MIB,
            "subject_transform": {"src": ">", "dest": "y.>"},
        },
    ),
    "config": (f"STREAM.UPDATE.{STREAM}", {**WANTED_MA.streams[0].wire(), "max_bytes": 8 * MIB}),
    "consumer": (
        f"CONSUMER.CREATE.{STREAM}.thief",
        {"stream_name": STREAM, "config": {"name": "thief", "durable_name": "thief", "ack_policy": "none"}},
    ),
    "delivery": (
        f"CONSUMER.CREATE.{STREAM}.push",
        {
            "stream_name": STREAM,
            "config": {"name": "push", "ack_policy": "none", "deliver_subject": "elsewhere", "durable_name": "push"},
        },
    ),
}


async def test_the_audit_finds_every_planted_violation_pauses_the_stream_and_tells_once(ours: World) -> None:
    told: list[Violation] = []
    control, admin = await admin_of(ours, "ma-1", "MA")
    store = Path(ours.servers["ma-1"].server.store)
    policy = DomainPolicy(country="MA", domain="ma", account="JURIS_MA", servers=frozenset({"ma-1"}), wanted=WANTED_MA)
    auditor = StreamAuditor(admin, policy, told.append, stores=(store,), period_s=3600)  # only advisories wake it
    running = asyncio.create_task(auditor.run())
    await until(lambda: auditor.audits >= 1, "a first audit")
    assert told == []
    (store / "jetstream" / "JURIS_SN" / "streams" / "left-behind").mkdir(parents=True)
    for rule, (what, body) in PLANTED.items():
        assert isinstance(body, dict)
        await admin.call(what, body)
        await until(lambda rule=rule: rule in rules(told), f"the planted {rule} is found by its advisory")
    assert rules(told) >= {*PLANTED, "disk"}
    paused = {entry["name"]: entry.get("paused", False) for entry in await admin.consumers(STREAM)}
    assert paused["act"] is True
    assert any(GateAction.PAUSE in violation.actions for violation in told if violation.subject == STREAM)

    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await auditor.audit()  # in case it was cancelled on its way
    count = len(told)
    await auditor.audit()
    assert len(told) == count  # what is known is not told again
    await control.close()


def rules(told: list[Violation]) -> set[str]:
    return {rejection.rule for violation in told for rejection in violation.rejections}
