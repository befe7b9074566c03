"""Two hubs in two countries, a real link between them: exports arrive over cuts, once, and nothing else passes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hub_pipeline_world import Webhook
from nats_world import free_ports, is_answered, until, world
from running_hub import RunningHub

from harch.base.clock import SystemClock
from harch.base.config import Home
from harch.base.errors import HarchError
from harch.federation.identity.authority import make_federation
from harch.federation.identity.folder import identity_folder
from harch.federation.identity.hub_identity import HubIdentity
from harch.federation.identity.members import Address
from harch.hub.audit.table import AuditQuery, AuditRecord
from harch.hub.pipelines.cross_border.links import HubBorders
from harch.hub.pipelines.cross_border.servers import BorderTunnel
from harch.hub.service import build_hub
from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.errors import NatsError
from harch.pipelines.client.options import ClientOptions, Credentials
from harch.pipelines.engine.borders import USER, BorderOffer, HubBorder, Want, border_layout, plan_links
from harch.pipelines.engine.config import server_config
from harch.pipelines.engine.keys import KeyFolder
from harch.pipelines.engine.layout import inbox_of
from harch.pipelines.spec.file import parse_pipelines
from harch.pipelines.spec.release import as_object, export_tag
from harch.sovereignty.declassification import Declassification, sign
from harch.sovereignty.jurisdiction_file import jurisdictions_in_force
from harch.testing.samples import tiny_fleet
from unit.pipelines.engine.test_borders import TAG

pytestmark = pytest.mark.uses("bubblewrap")

CLOCK = SystemClock()
MOROCCO = (
    "{process_in: [MA], rest_in: [MA], classification: internal, encrypt_at_rest: false, encrypt_in_transit: false}"
)
MAY_LEAVE = (
    "{process_in: [MA, SN], rest_in: [MA, SN], transit_in: [MA, MR, SN], may_cross_borders: true,"
    " classification: internal, encrypt_at_rest: false, encrypt_in_transit: false}"
)
SENEGAL = MOROCCO.replace("MA", "SN")
EXPORTS = """
exports:
  - {name: wetness, to: [SN], columns: [count, mean]}
hubs: [dakhla]
"""
IMPORTS = """
imports:
  - {hub: dakhla, pipeline: fields, export: wetness, source: web}
"""
# What comes in is a window of Morocco's: `count` is summed up to how many events those were.
TAKES_COUNTS = ("disorder_s: 0.1}", "disorder_s: 0.1, rows: {values: {v0: count, v1: mean}}}")


class LiveHub:
    """A whole hub in this process, with its federation."""

    def __init__(self, home: Home, number: int) -> None:
        fleet = tiny_fleet()
        self.hub = fleet.hubs[number]
        self.hook = Webhook()
        self.service = build_hub(
            fleet=fleet,
            hub=self.hub,
            state_dir=home.hub(self.hub.id),
            clock=CLOCK,
            version="test",
            url=f"http://{self.hub.id}",
            peer_urls={other.id: "" for other in fleet.hubs if other is not self.hub},
            on_broken=lambda error: None,
            identity=HubIdentity(identity_folder(home, self.hub.id)),
        )
        self.running = RunningHub(self.service.pipelines, home.hub(self.hub.id), self.hook)
        self._task = asyncio.create_task(self.service.run())

    @property
    def borders(self) -> HubBorders:
        return self.service.pipelines._open().borders

    async def entries(self, kind: str) -> list[AuditRecord]:
        return await self.service.audit.records(AuditQuery(kind=kind))

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.service.close()
        self.hook.close()


@pytest.fixture
async def hubs(tmp_path: Path) -> AsyncIterator[tuple[LiveHub, LiveHub]]:
    home, fleet = Home(tmp_path), tiny_fleet()
    addresses = {hub.id: ("127.0.0.1", port) for hub, port in zip(fleet.hubs, free_ports(2), strict=True)}
    make_federation(home, addresses, now=CLOCK.now())
    made = LiveHub(home, 0), LiveHub(home, 1)
    yield made
    await asyncio.gather(*(hub.stop() for hub in made))


async def exporting(dakhla: LiveHub) -> str:
    """Its data stays in Morocco; an authority has signed that the aggregate may go to Senegal."""
    text = dakhla.running.text() + EXPORTS.replace("columns:", f"tag: {MAY_LEAVE}, columns:")
    jurisdictions = jurisdictions_in_force()
    (spec,) = parse_pipelines(text.encode(), "fields.yaml", jurisdictions)
    (export,) = spec.exports
    target, key = as_object(spec, export, jurisdictions), Ed25519PrivateKey.generate()
    assert target.tag is not None
    statement = Declassification(
        object_id=target.id,
        tag_revision=target.tag_revision,
        old=target.tag,
        new=export_tag(spec, export, jurisdictions),
        reason="means of windows name nobody",
        authority="cndp",
        issued_at=CLOCK.now(),
        valid_until=CLOCK.now() + timedelta(hours=1),
    )
    public_key = key.public_key().public_bytes_raw().hex()
    await dakhla.service.data.add_authority("cndp", public_key, actor="test")
    signed = msgspec.json.encode(sign(statement, key.private_bytes_raw())).decode()
    return text.replace("columns:", f"declassification: {signed}, columns:")


def importing(hub: RunningHub, tag: str = SENEGAL) -> str:
    """Adds up, per window of its own, how many events Morocco's windows were about."""
    changes = (
        (MOROCCO, tag),
        ("name: fields", "name: fish"),
        ("disorder_s: 0.1}", "disorder_s: 0.1, rows: {values: {v0: count, v1: mean}}}"),
        ("statistics: [count, mean]", "statistics: [sum, mean]"),
        ("inputs: [count, mean]", "inputs: [sum, mean]"),
    )
    return hub.text(*changes) + IMPORTS


async def pushed(hub: RunningHub) -> None:
    """Events beyond all others: the windows before them close."""
    hub.at_ms += 5000
    await hub.feed(1)


async def all_arrived(dakhla: LiveHub, dakar: LiveHub) -> None:
    """Every event but those of the last two pushes, which wait for later ones, is counted in Senegal, once."""
    await pushed(dakhla.running)
    await pushed(dakhla.running)
    wanted = dakhla.running.accepted - 4
    await until(lambda: dakar.hook.events() >= wanted, "all windows of Morocco are counted in Senegal")
    assert dakar.hook.events() == wanted


def pid_of_border(hub: LiveHub) -> int:
    server = hub.borders._server
    assert server is not None
    assert server._running is not None
    assert server._running.pid is not None
    return server._running.pid


async def nothing_else_passes(dakhla: LiveHub, dakar: LiveHub) -> None:
    """With every key of a border, at both of its ends."""
    ends = [hub.borders._server for hub in (dakhla, dakar)]
    assert ends[0] is not None
    assert ends[1] is not None
    heard: list[str] = []
    ends[1].client.subscribe("export.agg.ma.>", lambda message: heard.append(message.subject))
    for subject in ("export.agg.ma.fields.raw.dakhla.dakar", "juris.sn.fish.sense.0", "export.agg.sn.fish.x.a.b"):
        ends[0].client.publish(subject, b"x")
    for subject in ("$JS.API.INFO", "$JS.sn.API.STREAM.NAMES", "$SYS.REQ.SERVER.PING"):
        assert not await is_answered(ends[0].client, subject, timeout_s=0.3)

    def refused(word: str) -> bool:
        return any(word in str(error) for end in ends if end is not None for error in end.client.refusals)

    for word in ("fields.raw", "juris.sn.fish", "sn.fish.x", "export.agg.ma.>"):  # nor listens the hub to more
        await until(lambda word=word: refused(word), f"{word} is refused")
    assert heard == []
    for key, at in (("dakhla", 1), ("dakar", 0)):  # the key of a link opens no connection for clients
        folder = {"dakhla": dakhla, "dakar": dakar}[key].running.folder / "pipelines" / "engine" / "keys"
        seed = KeyFolder(folder).seed(USER)
        options = ClientOptions(servers=ends[at].client.options.servers, credentials=Credentials(seed=seed))
        with pytest.raises(NatsError):
            await AioClient(options).connect()


async def test_an_export_arrives_once_over_cuts_and_kills_and_is_audited(hubs: tuple[LiveHub, LiveHub]) -> None:
    dakhla, dakar = hubs
    await asyncio.gather(
        dakhla.running.apply(await exporting(dakhla)), dakar.running.apply(importing(dakar.running), "fish")
    )
    for hub in hubs:
        await until(lambda hub=hub: len(hub.borders.lanes()) == 1, "both have opened the lane")
    await dakhla.running.feed(6)
    await all_arrived(dakhla, dakar)

    frozen = pid_of_border(dakar)
    os.kill(frozen, signal.SIGSTOP)  # the other side is there and says nothing
    await dakhla.running.feed(6)
    os.kill(frozen, signal.SIGKILL)
    await until(lambda: pid_of_border(dakar) != frozen, "its supervisor starts it again")
    os.kill(pid_of_border(dakhla), signal.SIGKILL)
    await dakhla.running.feed(4)
    await all_arrived(dakhla, dakar)

    tunnel = dakar.borders._tunnel
    assert tunnel is not None
    await tunnel.close()  # the door is shut; it is opened again at another port
    dakar.borders._tunnel = None
    await dakhla.running.feed(4)
    await all_arrived(dakhla, dakar)

    await nothing_else_passes(dakhla, dakar)

    await dakhla.borders._audit()
    await dakar.borders._audit()
    (shown,) = (await dakhla.service.pipelines.show("fields", tenant=None)).borders
    assert (shown.direction, shown.hub, shown.state, shown.left_out) == ("out", "dakar", "open", {})
    assert shown.windows > 4
    (taken,) = (await dakar.service.pipelines.show("fish", tenant=None)).borders
    assert (taken.direction, taken.hub, taken.state) == ("in", "dakhla", "open")
    (out,) = await dakhla.entries("pipeline.exported")
    assert out.entry.countries == ("MA", "SN")
    assert await dakhla.entries("pipeline.border_opened")


async def test_a_hub_abroad_that_drops_every_rule_hears_and_says_no_more_than_its_lane(tmp_path: Path) -> None:
    """Dakhla's operators open their border server to everybody; Dakar's is as we configure it."""
    async with world(tmp_path) as made:
        seeds = {"dakhla": made.keys.seed("dakhla"), "dakar": made.keys.seed("dakar")}
        offer = BorderOffer(pipeline="fields", export="water", tag=TAG, hubs=("dakar",))
        want = Want("dakhla", "fields", "water")

        def said(hub: str, country: str, *, offers: tuple[BorderOffer, ...], wants: tuple[Want, ...]) -> HubBorder:
            key = made.keys.public_key(hub)
            return HubBorder(country=country, host="127.0.0.1", port=1, key=key, offers=offers, wants=wants)

        ours, theirs = said("dakar", "SN", offers=(), wants=(want,)), said("dakhla", "MA", offers=(offer,), wants=())
        plans = plan_links("dakar", ours, {"dakhla": theirs}, lambda lane, tag: True)
        (lane,) = plans[0].into
        door = made.server("border-dakar", border=True)
        made.layout = border_layout("dakar", ours, door, plans, {})
        made.add(door, server_config(made.layout, door.name))
        open_wide = {
            "listen": f"127.0.0.1:{(rogue := made.server('rogue')).client_port}",
            "http": f"127.0.0.1:{rogue.monitor_port}",
            "log_file": rogue.log_file,
            "server_name": "rogue",
            "leafnodes": {
                "reconnect": 1,
                "remotes": [{"url": f"nats-leaf://127.0.0.1:{door.border_port}", "nkey": seeds["dakhla"]}],
            },
        }
        made.add(rogue, json.dumps(open_wide))
        await asyncio.gather(*(server.start() for server in made.servers.values()))
        at_home: list[str] = []
        abroad: list[str] = []
        options = ClientOptions(
            servers=(made.servers["border-dakar"].url,),
            credentials=Credentials(seed=seeds["dakar"]),
            inbox_prefix=inbox_of(USER),
        )
        async with (
            AioClient(options) as hub,
            AioClient(ClientOptions(servers=(made.servers["rogue"].url,))) as thief,
        ):
            hub.subscribe(lane.subject, lambda message: at_home.append(message.subject))
            thief.subscribe(">", lambda message: abroad.append(message.subject))
            await hub.flush()

            async def crosses() -> bool:
                thief.publish(lane.subject, b"window")
                await thief.flush()
                return bool(at_home)

            await until(crosses, "the lane itself is open")
            abroad.clear()
            forged = (f"{lane.subject}.x", "export.agg.ma.fields.water.dakhla.abidjan", lane.receipts, "juris.sn.a.b.0")
            for subject in forged:
                thief.publish(subject, b"forged")
            await thief.flush()
            hub.publish(lane.receipts, b"")
            await hub.flush()
            await until(lambda: abroad.count(lane.receipts) >= 2, "receipts cross: ours, and the thief's own echo")
            for subject in ("$JS.API.INFO", "$JS.sn.API.STREAM.NAMES", "$SYS.REQ.SERVER.PING"):
                assert not await is_answered(thief, subject, timeout_s=0.3), subject
            assert set(at_home) == {lane.subject}
            heard_abroad = {one for one in abroad if not one.startswith(("_INBOX.", "$JS", "$SYS"))}
            assert heard_abroad <= {lane.subject, *forged}  # what it said itself, and receipts


async def test_what_may_not_leave_or_cannot_is_refused_before_anything_runs(hubs: tuple[LiveHub, LiveHub]) -> None:
    dakhla, _ = hubs
    text = dakhla.running.text() + EXPORTS  # its data may not cross borders
    with pytest.raises(HarchError) as refused:
        await dakhla.service.pipelines.apply(text.encode(), "f.yaml", tenant="default", actor="test")
    assert refused.value.code == "E0907"
    assert "SN" in str(refused.value)
    inside = dakhla.running.text() + IMPORTS
    with pytest.raises(HarchError, match="not a hub in another country"):
        await dakhla.service.pipelines.apply(inside.encode(), "f.yaml", tenant="default", actor="test")
    assert dakhla.borders.signals() == {}
    assert not (dakhla.running.folder / "pipelines" / "engine" / "border").exists()


async def test_only_members_of_the_federation_come_through_the_door_and_each_as_itself(tmp_path: Path) -> None:
    places = {name: ("127.0.0.1", port) for name, port in zip(("dakhla", "dakar"), free_ports(2), strict=True)}
    ours = make_federation(Home(tmp_path / "ours"), places, now=CLOCK.now())
    strange = make_federation(Home(tmp_path / "theirs"), places, now=CLOCK.now())

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(5))
        await writer.drain()

    behind = await asyncio.start_server(echo, "127.0.0.1", 0)
    door = BorderTunnel(ours["dakar"], CLOCK, welcome=lambda hub: ours["dakar"].refusal(hub, b""))
    port = await door.listen("127.0.0.1", 0, behind.sockets[0].getsockname()[1])

    async def answer(tunnel: BorderTunnel, hub: str) -> bytes:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", await tunnel.way_to(hub, Address("127.0.0.1", port))
        )
        writer.write(b"hello")
        async with asyncio.timeout(20):
            found = await reader.read(5)
        writer.close()
        return found

    def way(identity: HubIdentity) -> BorderTunnel:
        return BorderTunnel(identity, CLOCK, welcome=lambda hub: "")

    tunnels = [way(ours["dakhla"]), way(strange["dakhla"]), way(ours["dakhla"])]
    assert await answer(tunnels[0], "dakar") == b"hello"
    assert await answer(tunnels[1], "dakar") == b""  # a certificate of others
    assert await answer(tunnels[2], "tangier") == b""  # who answers there is somebody else
    assert "is dakar, not tangier" in tunnels[2].refusals["tangier"]
    for tunnel in (door, *tunnels):
        await tunnel.close()
    behind.close()
