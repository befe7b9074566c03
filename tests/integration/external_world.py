"""A message engine that others run, for tests: servers over TLS that know an operator, an account, and no users."""

from __future__ import annotations

import asyncio
import datetime as dt
from pathlib import Path
from typing import Any

import msgspec
from nats_world import MIB, World, identity

from harch.pipelines.client.options import NkeyRole, new_seed, public_key
from harch.pipelines.engine.keys import signed
from harch.pipelines.engine.layout import Domain, EngineLayout, Server, ServerTls

_ALL = {
    "subs": -1,
    "data": -1,
    "payload": -1,
    "imports": -1,
    "exports": -1,
    "wildcards": True,
    "conn": -1,
    "leaf": -1,
}
_STORAGE = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}


class ExternalCluster:
    """`names` are its servers; those that begin with another country's letters stand there."""

    def __init__(self, made: World, folder: Path, names: tuple[str, ...], *, jetstream: bool = True) -> None:
        self.made, self.names = made, names
        self.tls: ServerTls = identity(folder / "tls")
        self.servers = tuple(made.server(name, cluster=True, tls=self.tls) for name in names)
        operator, account, system = new_seed(NkeyRole.OPERATOR), new_seed(NkeyRole.ACCOUNT), new_seed(NkeyRole.ACCOUNT)
        self.signing_seed = new_seed(NkeyRole.ACCOUNT)
        self.account = public_key(account, NkeyRole.ACCOUNT)
        self._system = public_key(system, NkeyRole.ACCOUNT)
        issuer, self._jetstream = public_key(operator, NkeyRole.OPERATOR), jetstream

        def token(subject: str, nats: dict[str, Any]) -> str:
            claims = {
                "iss": issuer,
                "sub": subject,
                "name": subject[:8],
                "iat": int(dt.datetime.now(dt.UTC).timestamp()),
            }
            return signed({**claims, "nats": {"version": 2, **nats}}, operator, NkeyRole.OPERATOR)

        permitted = {"default_permissions": {"pub": {}, "sub": {}}}
        ours = {
            "type": "account",
            "limits": {**_ALL, **(_STORAGE if jetstream else {})},
            "signing_keys": [public_key(self.signing_seed, NkeyRole.ACCOUNT)],
            **permitted,
        }
        self._operator = token(issuer, {"type": "operator", "system_account": self._system})
        self._preload = {
            self.account: token(self.account, ours),
            self._system: token(self._system, {"type": "account", "limits": _ALL, **permitted}),
        }
        self.key_file = folder / "account.nk"
        self.key_file.write_text(self.signing_seed + "\n")
        self.key_file.chmod(0o600)

    async def start(self) -> None:
        self.made.layout = EngineLayout(domains=(Domain(country="MA", name="ma", servers=self.servers),))
        for server in self.servers:
            self.made.add(server, self._config(server))
        await asyncio.gather(*(self.made.servers[name].start() for name in self.names))

    def settings(self, *, replicas: int = 3, names: tuple[str, ...] | None = None) -> str:
        """An `engine.toml` that names it."""
        urls = [f"tls://127.0.0.1:{server.client_port}" for server in self.servers]
        return (
            f"replicas = {replicas}\n[external]\nservers = {urls}\nserver_names = {list(names or self.names)}\n"
            f'account = "{self.account}"\naccount_key_file = "{self.key_file}"\n'
            f'ca = "{self.tls.ca}"\ncertificate = "{self.tls.certificate}"\nkey = "{self.tls.key}"\n'
        )

    def _config(self, server: Server) -> str:
        word, files = self.made.keys.word("cluster"), self.tls
        tls = {"cert_file": files.certificate, "key_file": files.key, "ca_file": files.ca, "verify": True}
        routes = [f"nats-route://h:{word}@127.0.0.1:{o.cluster_port}" for o in self.servers if o is not server]
        config: dict[str, Any] = {
            "server_name": server.name,
            "listen": f"127.0.0.1:{server.client_port}",
            "http": f"127.0.0.1:{server.monitor_port}",
            "log_file": server.log_file,
            "max_payload": 8 * MIB,
            "tls": tls,
            "operator": self._operator,
            "resolver": "MEMORY",
            "resolver_preload": self._preload,
            "system_account": self._system,
            "cluster": {
                "name": "theirs",
                "listen": f"127.0.0.1:{server.cluster_port}",
                "authorization": {"user": "h", "password": word},
                "tls": tls,
                "routes": routes,
            },
        }
        if self._jetstream:
            config["jetstream"] = {
                "store_dir": server.store,
                "domain": "ma",
                "max_file": 2048 * MIB,
                "max_mem": 16 * MIB,
            }
        return msgspec.json.encode(config).decode()
