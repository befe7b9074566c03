"""Which message engine does a hub use? From `engine.toml` in its state folder: its own servers, or a cluster by URL.

What is wrong with the file is reported when the hub starts. Nothing in it is secret: keys are named by their files.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from harch.base.counting import counted
from harch.base.errors import HarchError, Problems
from harch.pipelines.client.errors import NatsError
from harch.pipelines.client.options import NkeyRole, TlsFiles, is_public_key, parse_address, public_key
from harch.pipelines.engine.external import EngineCluster
from harch.pipelines.engine.keys import AccountKey, read_secret
from harch.pipelines.engine.layout import LOOPBACK

FILE_BYTES_MAX = 256 * 1024
HINT = "docs/pipelines/engine-settings.md shows every key"
SYNCED = "act"  # the second engine is called after the first one: ma, ma-act

Urls = Annotated[tuple[str, ...], Meta(min_length=1, max_length=16)]
Names = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=128)], ...], Meta(min_length=1, max_length=64)]
Port = Annotated[int, Meta(ge=0, le=65_535)]


class SyncedSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A second cluster, whose servers have `sync_interval: always`; the account and TLS are those of the first."""

    servers: Urls
    server_names: Names
    domain: str = ""


class ExternalSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster that others run."""

    servers: Urls
    server_names: Names  # those of the cluster that stand in the hub's country; no other may keep a stream
    account: str  # public key, A…
    account_key_file: str  # a seed SA… that signs users of the account: its own, or a signing key; mode 0600
    domain: str = ""  # of JetStream; absent: the country in small letters
    ca: str = ""
    certificate: str = ""
    key: str = ""
    server_name: str = ""  # in the certificates of the servers, where it is not the address
    file_bytes_max: Annotated[int, Meta(ge=1 << 20, le=1 << 50)] = 64 << 30  # that the account may use of each server
    synced: SyncedSettings | None = None

    @property
    def tls(self) -> TlsFiles | None:
        if not self.ca:
            return None
        return TlsFiles(ca=self.ca, certificate=self.certificate, key=self.key, server_name=self.server_name)

    def cluster(self, country: str, *, synced: bool) -> EngineCluster | None:
        """The one for features and state, or the one that syncs; None if that one is not named."""
        found = self.synced if synced else self
        if found is None:
            return None
        name = f"{country.lower()}-{SYNCED}" if synced else country.lower()
        return EngineCluster(
            servers=found.servers, server_names=found.server_names, domain=found.domain or name, tls=self.tls
        )

    def account_key(self) -> AccountKey:
        """Raises E0745 without a usable key; never says what stands in the file."""
        path = Path(self.account_key_file)
        hint = "write the account's signing seed (SA…) into it, chmod 600"
        try:
            seed = read_secret(path)
            public_key(seed, NkeyRole.ACCOUNT)
        except OSError as error:
            raise HarchError("E0745", f"{path} cannot be read: {error.strerror}", hint=hint) from error
        except NatsError:
            raise HarchError("E0745", f"{path} is not an account key", hint=hint) from None
        return AccountKey(seed, self.account)


class BorderSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where links of other countries' hubs are accepted; absent: a free port at the address of the federation."""

    host: str = ""  # what other hubs connect to
    listen: str = ""  # that is listened at, where it is another one
    port: Port = 0


class EngineSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`replicas` is how many copies there are of every stream, whoever runs the servers."""

    replicas: Literal[1, 3] = 1
    servers: Literal[1, 3] = 1  # of the hub's own engine
    stores: Annotated[tuple[str, ...], Meta(max_length=3)] = ()  # a folder per server, on disks of their own
    external: ExternalSettings | None = None
    border: BorderSettings = BorderSettings()


def load_settings(path: Path) -> EngineSettings:
    """Raises E0745."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise HarchError("E0745", f"{path} cannot be read: {error.strerror}", hint=HINT) from error
    return parse_settings(data, str(path))


def parse_settings(data: bytes, source: str = "engine.toml") -> EngineSettings:
    """Raises E0745 with every mistake."""
    if len(data) > FILE_BYTES_MAX:
        raise HarchError("E0745", f"{source}: larger than {FILE_BYTES_MAX // 1024} KiB", hint=HINT)
    try:
        raw: dict[str, Any] = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise HarchError("E0745", f"{source}: not valid TOML: {str(error)[:200]}", hint=HINT) from error
    try:
        settings = msgspec.convert(raw, EngineSettings)
    except msgspec.ValidationError as error:
        raise HarchError("E0745", f"{source}: {error}", hint=HINT) from error
    problems = Problems()
    _check(settings, problems)
    if problems:
        raise HarchError("E0745", f"{source}: {problems}", hint=HINT, field=problems.found[0][0])
    return settings


def _check(settings: EngineSettings, problems: Problems) -> None:
    if settings.stores and len(settings.stores) != settings.servers:
        problems.add("stores", f"{len(settings.stores)} folders for {counted(settings.servers, 'server')}")
    if len(set(settings.stores)) < len(settings.stores):
        problems.add("stores", "two servers cannot share a folder")
    external = settings.external
    if external is None:
        if settings.replicas > settings.servers:
            servers = counted(settings.servers, "server")
            problems.add("replicas", f"{settings.replicas} copies on {servers}; write `servers = 3`")
        return
    if settings.servers != 1 or settings.stores:
        problems.add("servers", "applies to the hub's own engine, but [external] names another one")
    if not is_public_key(external.account, NkeyRole.ACCOUNT):
        problems.add("external.account", "is not the public key of an account; it begins with A and has 56 characters")
    if not external.account_key_file:
        problems.add("external.account_key_file", "is empty; name the file of the seed that signs users")
    if external.certificate and not (external.key and external.ca):
        problems.add("external.certificate", "also needs `key` and `ca`")
    tables: list[tuple[str, ExternalSettings | SyncedSettings]] = [("external", external)]
    if external.synced is not None:
        tables.append(("external.synced", external.synced))
    for where, table in tables:
        _check_servers(where, table.servers, problems, has_ca=bool(external.ca))
        if settings.replicas > len(table.server_names):
            problems.add(f"{where}.server_names", f"{settings.replicas} copies need as many servers in the country")


def _check_servers(where: str, urls: tuple[str, ...], problems: Problems, *, has_ca: bool) -> None:
    for index, url in enumerate(urls):
        try:
            address = parse_address(url)
        except HarchError as error:
            problems.add(f"{where}.servers[{index}]", error.message)
            continue
        if address.tls and not has_ca:
            problems.add("external.ca", f"`{url}` uses TLS; name the authority to trust")
        if not address.tls and address.host not in LOOPBACK:
            problems.add(f"{where}.servers[{index}]", f"`{url}` is not local and has no TLS; write tls://…")
