"""How do we reach the message engine, and as whom?

Addresses, limits, NKeys (Ed25519 keys in the text form of NATS), and the CONNECT they make.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from enum import IntEnum
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from msgspec import Meta, Struct

from harch.base.errors import HarchError
from harch.base.hosts import read_host
from harch.pipelines.client.errors import NatsError
from harch.pipelines.client.protocol import BUFFER_BYTES, PAYLOAD_BYTES_MAX, Info

# Who are we, without a password that could leak? NKeys: Ed25519 keys in the text form that NATS uses.
#
# The engine's configuration holds public keys only, so reading it gives nobody access. A seed is the private half: it
# is
# kept in files of mode 0600 and signs the engine's nonce at connect.


_SEED = 18 << 3


class NkeyRole(IntEnum):
    """Whose key it is; the first letter of its public half says it: U, A or O."""

    USER = 20 << 3
    ACCOUNT = 0
    OPERATOR = 14 << 3


def new_seed(role: NkeyRole, entropy: bytes | None = None) -> str:
    """A fresh seed (`SU…`, `SA…`, `SO…`) from the kernel's randomness; tests pass 32 bytes of their own."""
    raw = secrets.token_bytes(32) if entropy is None else entropy
    return _encode(bytes((_SEED | role >> 5, (role & 31) << 3)) + raw)


def new_user_seed(entropy: bytes | None = None) -> str:
    return new_seed(NkeyRole.USER, entropy)


def public_key(seed: str, role: NkeyRole = NkeyRole.USER) -> str:
    """The `U…`, `A…` or `O…` that others know it by."""
    key = _private(seed, role).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return _encode(bytes((role,)) + key)


def sign(seed: str, nonce: str, role: NkeyRole = NkeyRole.USER) -> str:
    """The nonce's signature, as CONNECT wants it; also that of a token."""
    return base64.urlsafe_b64encode(_private(seed, role).sign(nonce.encode())).rstrip(b"=").decode()


def is_public_key(text: str, role: NkeyRole) -> bool:
    """In form and checksum the public key of this role."""
    try:
        raw = base64.b32decode(text.encode() + b"=" * (-len(text) % 8))
    except (binascii.Error, ValueError):
        return False
    return len(raw) == 35 and raw[0] == role and binascii.crc_hqx(raw[:-2], 0).to_bytes(2, "little") == raw[-2:]


def _private(seed: str, role: NkeyRole) -> Ed25519PrivateKey:
    try:
        padded = seed.strip().encode() + b"=" * (-len(seed.strip()) % 8)
        raw = base64.b32decode(padded)
    except (binascii.Error, ValueError) as error:
        raise NatsError("the seed is not an NKey") from error
    body, checksum = raw[:-2], raw[-2:]
    if len(body) != 34 or binascii.crc_hqx(body, 0).to_bytes(2, "little") != checksum or body[0] & 0xF8 != _SEED:
        raise NatsError("the seed is not a valid NKey")
    if ((body[0] & 7) << 5 | body[1] >> 3) != role:
        raise NatsError(f"the seed is not that of a {role.name.lower()}")
    return Ed25519PrivateKey.from_private_bytes(body[2:])


def _encode(body: bytes) -> str:
    checksum = binascii.crc_hqx(body, 0).to_bytes(2, "little")
    return base64.b32encode(body + checksum).rstrip(b"=").decode()


# How do we reach the message engine, and as whom? Addresses, credentials, limits, and the CONNECT they make.


PORT_DEFAULT = 4222
SOCKET_BUFFER_BYTES = 8 << 20
VERSION = "1"


class Credentials(Struct, frozen=True, kw_only=True):
    """One of: an NKey seed, a user with a password, a shared token, nothing. Its text form hides all of it.

    `token` goes with the seed where an account says by a signed token what its users may do; alone, it is one that all
    clients of a server share.
    """

    seed: str = ""
    token: str = ""
    user: str = ""
    password: str = ""

    def __repr__(self) -> str:
        kind = "token" if self.token else "nkey" if self.seed else "password" if self.user else "none"
        return f"Credentials({kind})"


_CREDENTIALS = re.compile(r"-{3,}BEGIN ([A-Z ]+)-{3,}\s+(\S+)\s+-{3,}END \1-{3,}")


def read_credentials(text: str) -> Credentials:
    """A file as NATS' own tools write it for a user: a signed token and a seed between dashes. Raises `NatsError`."""
    found = dict(_CREDENTIALS.findall(text))
    token, seed = found.get("NATS USER JWT", ""), found.get("USER NKEY SEED", "")
    if not token or not seed:
        raise NatsError("the file of credentials holds no user with its seed")
    return Credentials(seed=seed, token=token)


class TlsFiles(Struct, frozen=True, kw_only=True):
    """Whom we trust, and who we are if the engine asks for a certificate. Paths of PEM files; without `ca` the
    authorities of the system are trusted."""

    ca: str = ""
    certificate: str = ""
    key: str = ""
    server_name: str = ""  # the name in the engine's certificate, where it differs from the address


class ServerAddress(Struct, frozen=True):
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
    reconnect_attempts_max: Annotated[int, Meta(ge=0)] = 60  # in a row; 0: a lost connection stays lost
    backoff_s_first: float = 0.05
    backoff_s_max: float = 2.0
    buffer_bytes: int = BUFFER_BYTES
    payload_bytes_max: int = PAYLOAD_BYTES_MAX
    socket_buffer_bytes: int = SOCKET_BUFFER_BYTES

    def __post_init__(self) -> None:
        if not self.servers:
            raise HarchError("E0201", "no message engine given", hint="e.g. nats://127.0.0.1:4222")
        for url in self.servers:
            if parse_address(url).tls and self.tls is None:
                raise HarchError("E0201", f"`{url}` uses TLS, but no CA is set", hint="name the CA file to trust")


def parse_address(url: str) -> ServerAddress:
    """`nats://host:port` or `tls://host:port`. Credentials in an address end up in logs, so they are refused."""
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    try:
        host, port = read_host(parts.hostname or ""), parts.port or PORT_DEFAULT
    except ValueError:
        host, port = "", -1
    wrong = parts.scheme not in ("nats", "tls") or not host or port < 1 or parts.path not in ("", "/")
    if parts.username is not None or parts.password is not None:
        raise HarchError(
            "E0201", "the address of the message engine contains credentials", hint="keep them in a file of mode 0600"
        )
    if wrong:
        raise HarchError("E0201", f"`{url[:80]}` is not an address of a message engine", hint="nats://host:4222")
    return ServerAddress(host, port, parts.scheme == "tls")


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
            raise NatsError("the engine sent no nonce: it does not support NKeys")
        who = {"jwt": credentials.token} if credentials.token else {"nkey": public_key(credentials.seed)}
        fields |= {**who, "sig": sign(credentials.seed, info.nonce)}
    elif credentials.user:
        fields |= {"user": credentials.user, "pass": credentials.password}
    elif credentials.token:
        fields |= {"auth_token": credentials.token}
    return b"CONNECT %b\r\nPING\r\n" % msgspec.json.encode(fields)


def backoff_s(attempt: int, options: ClientOptions, jitter: float) -> float:
    """The pause before attempt number 1, 2, … `jitter` in [0, 1) spreads clients that lost the same server."""
    longest = min(options.backoff_s_max, options.backoff_s_first * 2.0 ** min(attempt - 1, 30))
    return longest * (0.5 + jitter / 2)
