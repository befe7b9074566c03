"""Which servers and users are there, for which jurisdiction, and what may they say?

Values, and what is wrong with them; everything that is not listed is refused.
"""

# harch: pure

from __future__ import annotations

import re

from msgspec import Struct

from harch.base.errors import HarchError, Problems

# Who may say what to the message engine? Users with lists of what is allowed; everything else is refused.
#
# A worker may publish to and listen on its own subjects, read through consumers that HarchOS made for it, and use its
# own
# buckets. It cannot make, change, mirror or list streams, read another stream directly, or listen to another's inbox.


INBOX_ROOT = "_INBOX"
CONTROLLER = "harch"
NAME_CHARS_MAX = 96


class EngineUser(Struct, frozen=True, kw_only=True):
    """One user of one account. `public_key` is an NKey; the private half never reaches the engine's configuration."""

    name: str
    public_key: str
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    connection_types: tuple[str, ...] = ("STANDARD",)


class StageGrant(Struct, frozen=True, kw_only=True):
    """What the workers of one stage of one pipeline need, and no more."""

    country: str
    pipeline: str
    stage: str
    listens: tuple[str, ...] = ()  # subjects of the hot lane
    speaks: tuple[str, ...] = ()  # subjects it publishes to, in streams or not
    reads: tuple[tuple[str, str], ...] = ()  # (stream, consumer) that HarchOS made for it
    buckets: tuple[str, ...] = ()  # key-value buckets of its own: get, put, compare-and-set
    scans: tuple[str, ...] = ()  # buckets among them whose keys it lists when it starts

    @property
    def user_name(self) -> str:
        return f"{self.country.lower()}-{self.pipeline}-{self.stage}"


def permission(subjects: tuple[str, ...]) -> dict[str, list[str]]:
    """As NATS takes it. An empty list would mean "anything" there, so it becomes a deny of everything."""
    return {"allow": list(subjects)} if subjects else {"deny": [">"]}


def inbox_of(user_name: str) -> str:
    """The prefix of a user's replies; nobody else may listen there."""
    return f"{INBOX_ROOT}.{user_name}"


def juris_root(country: str) -> str:
    return f"juris.{country.lower()}"


def export_root(country: str) -> str:
    """Aggregates that may leave a jurisdiction, by the country that they come from."""
    return f"export.agg.{country.lower()}"


def received_root(country: str) -> str:
    """What a country says of aggregates that have arrived there: numbers, nothing of their content."""
    return f"export.got.{country.lower()}"


def stage_user(grant: StageGrant, public_key: str) -> EngineUser:
    """The allow-lists of a stage's workers."""
    publish = list(grant.speaks)
    for stream, consumer in grant.reads:
        publish += [
            f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}",
            f"$JS.API.CONSUMER.INFO.{stream}.{consumer}",
            f"$JS.ACK.{stream}.{consumer}.>",
        ]
    for bucket in grant.buckets:
        publish += [
            f"$KV.{bucket}.>",
            f"$JS.API.STREAM.INFO.KV_{bucket}",
            f"$JS.API.DIRECT.GET.KV_{bucket}",  # by revision
            f"$JS.API.DIRECT.GET.KV_{bucket}.$KV.{bucket}.>",  # by key
        ]
        if bucket in grant.scans:
            publish += [
                f"$JS.API.CONSUMER.CREATE.KV_{bucket}.>",
                f"$JS.API.CONSUMER.DELETE.KV_{bucket}.>",
                f"$JS.API.CONSUMER.MSG.NEXT.KV_{bucket}.>",
                f"$JS.FC.KV_{bucket}.>",
            ]
    return EngineUser(
        name=grant.user_name,
        public_key=public_key,
        publish=tuple(dict.fromkeys(publish)),
        subscribe=(*dict.fromkeys(grant.listens), f"{inbox_of(grant.user_name)}.>"),
    )


def controller_user(country: str, public_key: str) -> EngineUser:
    """HarchOS itself: the only one who administers streams, inside its own account."""
    return EngineUser(
        name=CONTROLLER,
        public_key=public_key,
        publish=("$JS.API.>", "$JS.ACK.>", "$KV.>", f"{juris_root(country)}.>", f"{export_root(country)}.>"),
        subscribe=(f"{inbox_of(CONTROLLER)}.>", "$JS.EVENT.>", f"{juris_root(country)}.>", "export.agg.>"),
    )


def border_user(name: str, public_key: str, *, sends: tuple[str, ...], receives: tuple[str, ...]) -> EngineUser:
    """The other side of a border link. Its key opens no client connection, only the link."""
    return EngineUser(
        name=name, public_key=public_key, publish=sends, subscribe=receives, connection_types=("LEAFNODE",)
    )


# Which servers are there, for which jurisdiction, and what may pass between them? Values, and what is wrong with them.
#
# A domain is the message engine of one jurisdiction: one account, one JetStream domain, one or more servers that all
# stand in that country. Domains are joined by border links, and those know named aggregates only.


MIB = 1 << 20
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?\Z")
_COUNTRY = re.compile(r"[A-Z]{2}\Z")
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class ServerLimits(Struct, frozen=True, kw_only=True):
    """What one server may use. The sum of all credit windows must stay below half of `pending_bytes_max`."""

    payload_bytes_max: int = 8 * MIB
    pending_bytes_max: int = 256 * MIB
    memory_bytes_max: int = 256 * MIB
    file_bytes_max: int = 4096 * MIB
    streams_max: int = 1000
    consumers_max: int = 4000
    connections_max: int = 1000


class ServerTls(Struct, frozen=True, kw_only=True):
    """PEM files of the hub's identity. Both sides show certificates, so a stranger ends at the handshake."""

    certificate: str
    key: str
    ca: str


class Server(Struct, frozen=True, kw_only=True):
    """One `nats-server` process. A port of 0 means that it does not listen there."""

    name: str
    hub: str
    host: str = "127.0.0.1"
    client_port: int
    monitor_port: int
    cluster_port: int = 0
    border_port: int = 0
    store: str
    log_file: str
    tls: ServerTls | None = None

    @property
    def leaves_the_machine(self) -> bool:
        return self.host not in LOOPBACK


class Domain(Struct, frozen=True, kw_only=True):
    """The engine of one jurisdiction. `synced`: every write is on disk before it is acknowledged (durable ACT)."""

    country: str
    name: str
    servers: tuple[Server, ...]
    users: tuple[EngineUser, ...] = ()
    synced: bool = False
    keeps_streams: bool = True  # a border does not

    @property
    def account(self) -> str:
        return f"JURIS_{self.country}"


class BorderLink(Struct, frozen=True, kw_only=True):
    """One domain dials another. Subjects are what each side may send: aggregates under its own country only."""

    dialler: str  # names of domains
    acceptor: str
    acceptor_url: str  # host:port of the acceptor's border listener
    public_key: str
    dialler_sends: tuple[str, ...] = ()
    acceptor_sends: tuple[str, ...] = ()


class EngineLayout(Struct, frozen=True, kw_only=True):
    domains: tuple[Domain, ...]
    links: tuple[BorderLink, ...] = ()
    limits: ServerLimits = ServerLimits()

    def domain(self, name: str) -> Domain:
        return next(domain for domain in self.domains if domain.name == name)


def check_layout(layout: EngineLayout) -> None:
    """Raises E0704 with everything that is unsafe or impossible."""
    problems = Problems()
    names = [domain.name for domain in layout.domains]
    servers = [server.name for domain in layout.domains for server in domain.servers]
    for kind, words in (("domain", names), ("server", servers)):
        for word in sorted({word for word in words if words.count(word) > 1}):
            problems.add(word, f"two {kind}s have this name; names are unique")
    for domain in layout.domains:
        _check_domain(domain, problems)
    for link in layout.links:
        _check_link(link, layout, names, problems)
    if layout.limits.payload_bytes_max * 2 > layout.limits.pending_bytes_max:
        problems.add("limits.pending_bytes_max", "must fit at least two of the largest messages")
    if problems:
        raise HarchError(
            "E0704",
            str(problems),
            hint="see docs/pipelines/engine.md for the requirements",
            field=problems.found[0][0],
        )


def _check_domain(domain: Domain, problems: Problems) -> None:
    if not _COUNTRY.match(domain.country) or not _NAME.match(domain.name):
        problems.add(domain.name[:64], "needs a country of two capital letters and a name of a-z, 0-9 and -")
    if not domain.servers:
        problems.add(domain.name, "has no server")
    for server in domain.servers:
        if not _NAME.match(server.name):
            problems.add(server.name[:64], "is not a name; use a-z, 0-9 and -")
        if server.leaves_the_machine and server.tls is None:
            problems.add(f"{server.name}.tls", f"listens on {server.host}, which is not local, and has no TLS")
        if len(domain.servers) > 1 and not server.cluster_port:
            problems.add(f"{server.name}.cluster_port", "is 0, but its domain has several servers")
    if len(domain.servers) == 2:
        problems.add(domain.name, "has two servers: losing either stops it; use one, or at least three")
    keys = [user.public_key for user in domain.users]
    if len(set(keys)) < len(keys):
        problems.add(domain.name, "two users have the same key")
    for user in domain.users:
        for subject in (*user.publish, *user.subscribe):
            if subject in (">", "*", "$JS.>", "_INBOX.>", "*.>") or subject.startswith(("*.", "$SYS")):
                problems.add(
                    f"{domain.name}.{user.name}", f"may use `{subject}`, which matches everything; name subjects"
                )


def _check_link(link: BorderLink, layout: EngineLayout, names: list[str], problems: Problems) -> None:
    where = f"{link.dialler} -> {link.acceptor}"
    missing = [name for name in (link.dialler, link.acceptor) if name not in names]
    if missing:
        problems.add(where, f"names the domain `{missing[0]}`, which does not exist")
        return
    dialler, acceptor = layout.domain(link.dialler), layout.domain(link.acceptor)
    if dialler.country == acceptor.country:
        problems.add(where, "links a country to itself; servers of one country are one domain")
    for country, subjects in ((dialler.country, link.dialler_sends), (acceptor.country, link.acceptor_sends)):
        for subject in subjects:
            if not subject.startswith((f"{export_root(country)}.", f"{received_root(country)}.")):
                problems.add(where, f"`{subject}` may not leave {country}: only {export_root(country)}.> may")
            if "*" in subject or ">" in subject:
                problems.add(where, f"`{subject}` is a wildcard; name each subject that may leave {country}")
    if not any(server.border_port for server in acceptor.servers):
        problems.add(where, f"{acceptor.name} has no border port")
    if not any(server.tls for server in dialler.servers) and link.acceptor_url.split(":")[0] not in LOOPBACK:
        problems.add(where, "is not local and has no TLS")
