"""Which hosts would a sink connect to? Read by the parsers that its client uses, for the proof and for the client.

A client is never given the text of the file: it gets what was read here, so that the two cannot differ.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from harch.base.errors import HarchError
from harch.base.guarded_http import http_address
from harch.base.hosts import NamedHost, address_of, read_host
from harch.pipelines.act.settings import HttpSink, ModbusSink, MqttSink, NatsSink, SinkSettings, SqlSink

SQLITE = "sqlite:///"
THIS_MACHINE = "localhost"
_ENV = "env:"
_UNWANTED = re.compile(r"[\x00-\x20\x7f\\]")
_NATS_PORT, _POSTGRES_PORT = 4222, 5432
# What a PostgreSQL address may say. Everything else is refused: a service file, or an issuer of tokens, is another
# address that nobody has looked at.
_POSTGRES_WORDS = frozenset(
    (
        *("host", "hostaddr", "port", "dbname", "user", "password", "passfile", "connect_timeout"),
        *("application_name", "fallback_application_name", "client_encoding", "options"),
        *("target_session_attrs", "load_balance_hosts", "requirepeer", "require_auth", "channel_binding"),
        *("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout"),
        *("sslmode", "sslnegotiation", "sslcert", "sslkey", "sslpassword", "sslrootcert", "sslcrl", "sslcrldir"),
        *("sslsni", "sslcompression", "ssl_min_protocol_version", "ssl_max_protocol_version"),
        *("gssencmode", "krbsrvname"),
    )
)


class NatsTarget(Struct, frozen=True, kw_only=True):
    """Credentials of the address: a name alone is a token."""

    host: str
    port: int
    tls: bool
    user: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        return f"NatsTarget({self.host}:{self.port})"


class PostgresHost(Struct, frozen=True, kw_only=True):
    """`host` may be a folder of sockets, or empty for the default one; with `hostaddr` it is a name for TLS only."""

    host: str
    hostaddr: str
    port: int

    @property
    def is_socket(self) -> bool:
        return not self.hostaddr and (not self.host or self.host.startswith("/"))

    @property
    def connected(self) -> str:
        return self.hostaddr or self.host


class PostgresTarget(Struct, frozen=True, kw_only=True):
    hosts: tuple[PostgresHost, ...]
    rest: dict[str, str]

    def __repr__(self) -> str:
        return f"PostgresTarget({', '.join(one.connected for one in self.hosts)})"


def sink_hosts(sink: SinkSettings, variables: Mapping[str, str]) -> tuple[NamedHost, ...]:
    """Every host that the sink could connect to; none for a file. `variables`: values of `env:NAME`.

    Raises E0776 where the package that reads the address is not installed.
    """
    match sink:
        case HttpSink():
            urls = {"url": sink.url, "status_url": sink.status_url, "undo_url": sink.undo_url}
            return tuple(_read(name, url, variables, _http) for name, url in urls.items() if url)
        case MqttSink() | ModbusSink():
            return (_read("host", sink.host, {}, lambda text: (read_host(text),)),)
        case NatsSink():
            return (_read("url", sink.url, variables, lambda text: (nats_target(text).host,)),)
        case SqlSink():
            return _several("url", sink.url, variables, _sql)


def nats_target(url: str) -> NatsTarget:
    """`nats://host:port` or `tls://host:port`, with credentials in front or not. Raises ValueError."""
    if _UNWANTED.search(url):
        raise ValueError("has a blank, a control character or a backslash")
    parts = urlsplit(url)
    if parts.scheme not in ("nats", "tls") or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError("must have the form nats://host:port or tls://host:port")
    port = _NATS_PORT if parts.port is None else parts.port
    if not parts.hostname or not 0 < port < 65_536:
        raise ValueError("lacks a host or a port")
    return NatsTarget(
        host=read_host(parts.hostname),
        port=port,
        tls=parts.scheme == "tls",
        user=parts.username,
        password=parts.password,
    )


def postgres_target(url: str) -> PostgresTarget:
    """As libpq reads it: lists of hosts, `?host=`, sockets. Raises ValueError, and E0776 without psycopg."""
    psycopg = load_psycopg()
    conninfo = import_module("psycopg.conninfo")
    try:
        found: dict[str, Any] = conninfo.conninfo_to_dict(url)
    except psycopg.Error as error:
        raise ValueError("cannot be parsed by the PostgreSQL client") from error
    unknown = sorted(set(found) - _POSTGRES_WORDS)
    if unknown:
        raise ValueError(f"sets `{unknown[0]}`, which could redirect it")
    words = {name: str(value) for name, value in found.items()}
    lists = {name: words.pop(name, "").split(",") for name in ("host", "hostaddr", "port")}
    count = max(len(lists["host"]), len(lists["hostaddr"]))
    for name, values in lists.items():
        if len(values) != count and (len(values) > 1 or (values != [""] and name != "port")):
            raise ValueError(f"names {len(values)} of `{name}` for {count} hosts")
    spread = {name: values if len(values) == count else values * count for name, values in lists.items()}
    rows = zip(spread["host"], spread["hostaddr"], spread["port"], strict=True)
    return PostgresTarget(hosts=tuple(_postgres_host(*row) for row in rows), rest=words)


def _postgres_host(host: str, hostaddr: str, port: str) -> PostgresHost:
    if not (port or str(_POSTGRES_PORT)).isdigit() or not 0 < int(port or _POSTGRES_PORT) < 65_536:
        raise ValueError(f"has an invalid port: `{port[:20]}`")
    is_socket = not host or host.startswith("/")
    if hostaddr:
        hostaddr = read_host(hostaddr)
        if address_of(hostaddr) is None:
            raise ValueError("has a name in `hostaddr`, which takes an address")
    return PostgresHost(
        host=host if is_socket else read_host(host), hostaddr=hostaddr, port=int(port or _POSTGRES_PORT)
    )


def load_psycopg() -> Any:
    """Raises E0776."""
    try:
        return import_module("psycopg")
    except ImportError as error:
        hint = "pip install 'harch[postgresql]'"
        raise HarchError("E0776", "PostgreSQL needs the package `psycopg`", hint=hint) from error


def _http(url: str) -> tuple[str, ...]:
    return (http_address(url).host,)


def _sql(url: str) -> tuple[str, ...]:
    if url.startswith(SQLITE):
        return ()
    if not url.startswith("postgresql://"):
        raise ValueError("is neither sqlite:/// nor postgresql://")
    named = ((THIS_MACHINE,) if one.is_socket else (one.hostaddr, one.host) for one in postgres_target(url).hosts)
    return tuple(dict.fromkeys(host for hosts in named for host in hosts if host and not host.startswith("/")))


def _read(field: str, text: str, variables: Mapping[str, str], read: Any) -> NamedHost:
    (found,) = _several(field, text, variables, read)
    return found


def _several(field: str, text: str, variables: Mapping[str, str], read: Any) -> tuple[NamedHost, ...]:
    hidden = text.startswith(_ENV)
    if hidden:
        name = text.removeprefix(_ENV)
        if name not in variables:
            problem = f"is in the secret `{name}`, which is not stored: `harch secret set {name}`"
            return (NamedHost(field=field, problem=problem),)
        text = variables[name]
    try:
        hosts: tuple[str, ...] = read(text)
    except ValueError as error:
        return (NamedHost(field=field, problem=str(error), hidden=hidden),)
    return tuple(NamedHost(field=field, host=host, hidden=hidden) for host in hosts)
