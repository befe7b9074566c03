"""How do we reach the message engine, and as whom? Addresses, credentials, limits, and the CONNECT they make."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct

from harch.base.errors import HarchError
from harch.base.hosts import read_host
from harch.pipelines.client.errors import NatsError
from harch.pipelines.client.nkeys import public_key, sign
from harch.pipelines.client.protocol import BUFFER_BYTES, PAYLOAD_BYTES_MAX, Info

PORT_DEFAULT = 4222
SOCKET_BUFFER_BYTES = 8 << 20
VERSION = "1"


class Credentials(Struct, frozen=True, kw_only=True):
    """One of: an NKey seed, a user with a password, nothing. Never shown: its text form hides all of it.

    `token` goes with the seed where an account says by a signed token what its users may do.
    """

    seed: str = ""
    token: str = ""
    user: str = ""
    password: str = ""

    def __repr__(self) -> str:
        kind = "token" if self.token else "nkey" if self.seed else "password" if self.user else "none"
        return f"Credentials({kind})"


class TlsFiles(Struct, frozen=True, kw_only=True):
    """Whom we trust, and who we are if the engine asks for a certificate. Paths of PEM files."""

    ca: str
    certificate: str = ""
    key: str = ""
    server_name: str = ""  # the name in the engine's certificate, where it differs from the address


class Address(Struct, frozen=True):
    host: str
    port: int
    tls: bool


class ClientOptions(Struct, frozen=True, kw_only=True):
    """Everything a transport needs. Servers are tried in order, again and again with growing pauses."""

    servers: tuple[str, ...]
    name: str = "harch"
    credentials: Credentials = Credentials()
    tls: TlsFiles | None = None
    inbox_prefix: str = "_INBOX"  # users of the generated configuration may listen to their own prefix only
    connect_timeout_s: float = 5.0
    write_timeout_s: float = 10.0
    reconnect_attempts_max: Annotated[int, Meta(ge=0)] = 60  # in a row; 0: a lost connection stays lost
    backoff_s_first: float = 0.05
    backoff_s_max: float = 2.0
    buffer_bytes: int = BUFFER_BYTES
    payload_bytes_max: int = PAYLOAD_BYTES_MAX
    socket_buffer_bytes: int = SOCKET_BUFFER_BYTES
    pending_bytes_max: int = 64 << 20  # copies of messages that arrive while we wait for an answer

    def __post_init__(self) -> None:
        if not self.servers:
            raise HarchError("E0201", "no message engine is named", hint="e.g. nats://127.0.0.1:4222")
        for url in self.servers:
            if parse_address(url).tls and self.tls is None:
                raise HarchError(
                    "E0201", f"`{url}` asks for TLS, and no authority is named", hint="name the CA file to trust"
                )


def parse_address(url: str) -> Address:
    """`nats://host:port` or `tls://host:port`. Credentials in an address end up in logs, so they are refused."""
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    try:
        host, port = read_host(parts.hostname or ""), parts.port or PORT_DEFAULT
    except ValueError:
        host, port = "", -1
    wrong = parts.scheme not in ("nats", "tls") or not host or port < 1 or parts.path not in ("", "/")
    if parts.username is not None or parts.password is not None:
        raise HarchError(
            "E0201", "the address of the message engine holds credentials", hint="keep them in a file of mode 0600"
        )
    if wrong:
        raise HarchError("E0201", f"`{url[:80]}` is not an address of a message engine", hint="nats://host:4222")
    return Address(host, port, parts.scheme == "tls")


def connect_line(options: ClientOptions, info: Info) -> bytes:
    """CONNECT with our signature of the engine's nonce, or with user and password; then a PING, to hear if it held."""
    fields: dict[str, object] = {
        "verbose": False,
        "pedantic": False,
        "headers": True,
        "no_responders": True,
        "lang": "harch",
        "version": VERSION,
        "protocol": 1,
        "name": options.name,
    }
    credentials = options.credentials
    if credentials.seed:
        if not info.nonce:
            raise NatsError("the engine sent no nonce to sign: it knows no NKeys")
        who = {"jwt": credentials.token} if credentials.token else {"nkey": public_key(credentials.seed)}
        fields |= {**who, "sig": sign(credentials.seed, info.nonce)}
    elif credentials.user:
        fields |= {"user": credentials.user, "pass": credentials.password}
    return b"CONNECT %b\r\nPING\r\n" % msgspec.json.encode(fields)


def backoff_s(attempt: int, options: ClientOptions, jitter: float) -> float:
    """The pause before attempt number 1, 2, … `jitter` in [0, 1) spreads clients that lost the same server."""
    longest = min(options.backoff_s_max, options.backoff_s_first * 2.0 ** min(attempt - 1, 30))
    return longest * (0.5 + jitter / 2)
