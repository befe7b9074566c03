"""Real message engines on free loopback ports, for the tests of this folder: one jurisdiction, two, or a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.errors import NatsError
from harch.pipelines.client.options import ClientOptions, Credentials, TlsFiles
from harch.pipelines.engine.config import EngineSecrets, server_config
from harch.pipelines.engine.jetstream_admin import JetStreamAdmin
from harch.pipelines.engine.keys import KeyFolder
from harch.pipelines.engine.layout import (
    CONTROLLER,
    BorderLink,
    Domain,
    EngineLayout,
    EngineUser,
    Server,
    ServerLimits,
    ServerTls,
    StageGrant,
    controller_user,
    inbox_of,
    stage_user,
)
from harch.pipelines.engine.log_lines import EngineEvent
from harch.pipelines.engine.server import EngineServer, find_nats_server, user_names
from harch.pipelines.engine.streams import ConsumerSpec, DesiredStreams, StreamSpec, advisory_stream, bucket_stream
from harch.testing.ports import free_ports

WAIT_S = 60.0
MIB = 1 << 20
LIMITS = ServerLimits(memory_bytes_max=64 * MIB, file_bytes_max=256 * MIB)
SENSE_MA = StageGrant(
    country="MA",
    pipeline="soil",
    stage="sense",
    listens=("juris.ma.soil.sense.*",),
    speaks=("juris.ma.soil.think.*", "juris.ma.soil.act.*", "export.agg.ma.soil"),
    buckets=("ma-soil-sense",),
)
ACT_MA = StageGrant(country="MA", pipeline="soil", stage="act", reads=(("ma-soil-act", "act"),))
WORK_SN = StageGrant(
    country="SN",
    pipeline="fish",
    stage="sense",
    listens=("juris.sn.fish.sense.*", "export.agg.>"),
    speaks=("juris.sn.fish.think.*", "export.agg.sn.fish"),
)
WANTED_MA = DesiredStreams(
    streams=(
        StreamSpec(name="ma-soil-act", country="MA", subjects=("juris.ma.soil.act.*",), max_bytes=16 * MIB),
        bucket_stream("ma-soil-sense", "MA", max_bytes=4 * MIB),
        advisory_stream("MA", max_bytes=4 * MIB),
    ),
    consumers=(ConsumerSpec(stream="ma-soil-act", name="act", filter_subject="juris.ma.soil.act.*"),),
)


def identity(folder: Path) -> ServerTls:
    """An authority of its own and one certificate for 127.0.0.1, as a hub has them."""
    now = dt.datetime.now(dt.UTC)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])

    def certificate(subject: x509.Name, public: ec.EllipticCurvePublicKey, *, is_ca: bool) -> x509.Certificate:
        names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(ca_name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(ca_key, hashes.SHA256())
        )

    pem = serialization.Encoding.PEM
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hub")])
    folder.mkdir()
    (folder / "ca.pem").write_bytes(certificate(ca_name, ca_key.public_key(), is_ca=True).public_bytes(pem))
    (folder / "hub.pem").write_bytes(certificate(name, key.public_key(), is_ca=False).public_bytes(pem))
    (folder / "hub.key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return ServerTls(certificate=str(folder / "hub.pem"), key=str(folder / "hub.key"), ca=str(folder / "ca.pem"))


async def until(condition: Callable[[], bool | Awaitable[bool]], what: str, *, within_s: float = WAIT_S) -> None:
    """Waits for something to become true; generous, because machines may be busy."""
    async with asyncio.timeout(within_s):
        while True:
            found = condition()
            if await found if isinstance(found, Awaitable) else found:
                return
            await asyncio.sleep(0.02)
    raise AssertionError(what)


class World:
    """Layout, keys and running servers of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys = KeyFolder(folder / "keys")
        self.events: list[EngineEvent] = []
        self.servers: dict[str, EngineServer] = {}
        self.layout = EngineLayout(domains=())

    def server(self, name: str, *, border: bool = False, cluster: bool = False, tls: ServerTls | None = None) -> Server:
        client, monitor, leaf, route = free_ports(4)
        return Server(
            name=name,
            hub=name,
            client_port=client,
            monitor_port=monitor,
            border_port=leaf if border else 0,
            cluster_port=route if cluster else 0,
            store=str(self.folder / name / "store"),
            log_file=str(self.folder / name / "nats.log"),
            tls=tls,
        )

    def controller(self, country: str) -> EngineUser:
        return controller_user(country, self.keys.public_key(f"{country.lower()}-{CONTROLLER}"))

    def worker(self, grant: StageGrant) -> EngineUser:
        return stage_user(grant, self.keys.public_key(grant.user_name))

    def morocco(self, *servers: Server, synced: bool = False) -> Domain:
        users = (self.controller("MA"), self.worker(SENSE_MA), self.worker(ACT_MA))
        return Domain(country="MA", name="ma", servers=servers, users=users, synced=synced)

    async def start(self, layout: EngineLayout, *, configs: dict[str, str] | None = None) -> None:
        """All servers at once. `configs` replaces the generated text of some of them (unsafe layouts)."""
        self.layout = layout
        seeds = {self.keys.public_key(name): self.keys.seed(name) for name in ("link", "link-sn-ma")}
        secrets = EngineSecrets(link_seeds=seeds, cluster_word=self.keys.word("cluster"))
        for domain in layout.domains:
            for server in domain.servers:
                text = (configs or {}).get(server.name) or server_config(layout, server.name, secrets)
                self.add(server, text)
        await asyncio.gather(*(server.start() for server in self.servers.values()))

    def add(self, server: Server, text: str) -> EngineServer:
        made = EngineServer(
            server,
            text,
            self.folder / server.name,
            find_nats_server(),
            users=user_names(self.layout),
            on_event=self.events.append,
        )
        self.servers[server.name] = made
        return made

    def options(self, server: str, user: str, *, key: str = "", tls: TlsFiles | None = None) -> ClientOptions:
        return ClientOptions(
            servers=tuple(self.servers[name].url for name in server.split(",")),
            name=user,
            credentials=Credentials(seed=self.keys.seed(key or user)),
            inbox_prefix=inbox_of(user),
            tls=tls,
            buffer_bytes=1 << 20,
            payload_bytes_max=8 * MIB,
        )

    def controller_options(self, server: str, country: str) -> ClientOptions:
        return self.options(server, CONTROLLER, key=f"{country.lower()}-{CONTROLLER}")

    async def stop(self) -> None:
        await asyncio.gather(*(server.stop() for server in self.servers.values()))


@contextlib.asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    made = World(folder)
    try:
        yield made
    finally:
        await made.stop()


def border(made: World, morocco: Server) -> BorderLink:
    return BorderLink(
        dialler="sn",
        acceptor="ma",
        acceptor_url=f"127.0.0.1:{morocco.border_port}",
        public_key=made.keys.public_key("link"),
        dialler_sends=("export.agg.sn.fish",),
        acceptor_sends=("export.agg.ma.soil",),
    )


async def two_countries(made: World, *, tls: ServerTls | None = None, other_tls: ServerTls | None = None) -> None:
    """Morocco accepts a border link, Senegal dials it."""
    morocco, senegal = made.server("ma-1", border=True, tls=tls), made.server("sn-1", tls=other_tls or tls)
    sn_users = (made.controller("SN"), made.worker(WORK_SN))
    layout = EngineLayout(
        domains=(
            made.morocco(morocco),
            Domain(country="SN", name="sn", servers=(senegal,), users=sn_users),
        ),
        links=(border(made, morocco),),
        limits=LIMITS,
    )
    await made.start(layout)


async def is_answered(client: AioClient, subject: str, body: object = None, *, timeout_s: float = 0.6) -> bool:
    """True if JetStream did what was asked."""
    payload = msgspec.json.encode(body) if body is not None else b""
    try:
        answer = await client.request(subject, payload, timeout_s=timeout_s)
    except NatsError:
        return False
    return b'"error"' not in bytes(answer.payload) and answer.status == 0


async def admin_of(made: World, server: str, country: str) -> tuple[AioClient, JetStreamAdmin]:
    client = AioClient(made.controller_options(server, country))
    await client.connect()
    return client, JetStreamAdmin(client)
