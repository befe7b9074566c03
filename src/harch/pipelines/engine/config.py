"""How is the message engine configured? The file of one server, as text, from the layout. No I/O.

It is written as JSON, which NATS reads: no name or subject can break out of its place. Border links end in an account
of their own that has no streams and into which only named aggregates are exported, so a link that is opened wider by
mistake, or by the other side, still finds nothing else there.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from harch.base.errors import InvariantBroken
from harch.pipelines.engine.layout import (
    BorderLink,
    Domain,
    EngineLayout,
    EngineUser,
    Server,
    ServerTls,
    border_user,
    check_layout,
    permission,
)

BORDER, SYSTEM = "BORDER", "SYS"
PING_INTERVAL = "20s"
WRITE_DEADLINE = "10s"
LOG_BYTES_MAX, LOG_FILES_MAX = 8 << 20, 4
LEAF_RECONNECT_S = 1


class EngineSecrets(Struct, frozen=True, kw_only=True):
    """What one server has to know in the clear: seeds of links that it dials, and the word that joins its cluster."""

    link_seeds: Mapping[str, str] = {}  # by public key
    cluster_word: str = ""

    def __repr__(self) -> str:
        return f"EngineSecrets({len(self.link_seeds)} links)"


def server_config(layout: EngineLayout, server_name: str, secrets: EngineSecrets | None = None) -> str:
    """The text of the file, to be kept at mode 0600. Raises E0704 if the layout is not safe."""
    check_layout(layout)
    known = secrets or EngineSecrets()
    for domain in layout.domains:
        for server in domain.servers:
            if server.name == server_name:
                config = _config(layout, domain, server, known)
                return msgspec.json.format(msgspec.json.encode(config), indent=2).decode() + "\n"
    raise InvariantBroken("a server of the layout", server_name)


def _config(layout: EngineLayout, domain: Domain, server: Server, secrets: EngineSecrets) -> dict[str, Any]:
    limits = layout.limits
    jetstream: dict[str, Any] = {
        "store_dir": server.store,
        "domain": domain.name,
        "max_mem": limits.memory_bytes_max,
        "max_file": limits.file_bytes_max,
    }
    if domain.synced:
        jetstream["sync_interval"] = "always"
    config: dict[str, Any] = {
        "server_name": server.name,
        "listen": f"{server.host}:{server.client_port}",
        "http": f"127.0.0.1:{server.monitor_port}",  # never anywhere else: it names subjects and connections
        "max_payload": limits.payload_bytes_max,
        "max_pending": limits.pending_bytes_max,
        "max_connections": limits.connections_max,
        "ping_interval": PING_INTERVAL,
        "write_deadline": WRITE_DEADLINE,
        "logtime": True,
        "log_file": server.log_file,
        "logfile_size_limit": LOG_BYTES_MAX,
        "logfile_max_num": LOG_FILES_MAX,
        "accounts": _accounts(layout, domain),
        "system_account": SYSTEM,
        "server_tags": [f"country:{domain.country.lower()}", f"hub:{server.hub}"],  # shown to people, relied on by none
    }
    if domain.keeps_streams:
        config["jetstream"] = jetstream
    if server.tls is not None:
        config["tls"] = _tls(server.tls)
    if len(domain.servers) > 1:
        config["cluster"] = _cluster(domain, server, secrets)
    if leaves := _leaves(layout, domain, server, secrets):
        config["leafnodes"] = leaves
    return config


def _accounts(layout: EngineLayout, domain: Domain) -> dict[str, Any]:
    limits = layout.limits
    sends, receives = _crossing(layout, domain)
    peer_users = [_user(_peer_user(link)) for link in layout.links if link.acceptor == domain.name]
    room = {
        "max_mem": limits.memory_bytes_max,
        "max_file": limits.file_bytes_max,
        "max_streams": limits.streams_max,
        "max_consumers": limits.consumers_max,
    }
    return {
        domain.account: {
            **({"jetstream": room} if domain.keeps_streams else {}),
            "users": [_user(user) for user in domain.users],
            "exports": [{"stream": subject, "accounts": [BORDER]} for subject in sends],
            "imports": [{"stream": {"account": BORDER, "subject": subject}} for subject in receives],
        },
        BORDER: {  # no `jetstream`: nothing can be kept, mirrored or sourced on this side of a link
            "users": peer_users,
            "exports": [{"stream": subject, "accounts": [domain.account]} for subject in receives],
            "imports": [{"stream": {"account": domain.account, "subject": subject}} for subject in sends],
        },
        SYSTEM: {"users": []},
    }


def _crossing(layout: EngineLayout, domain: Domain) -> tuple[list[str], list[str]]:
    """What this domain sends over all its links, and what it receives."""
    sends: list[str] = []
    receives: list[str] = []
    for link in layout.links:
        if link.dialler == domain.name:
            sends += link.dialler_sends
            receives += link.acceptor_sends
        elif link.acceptor == domain.name:
            sends += link.acceptor_sends
            receives += link.dialler_sends
    return list(dict.fromkeys(sends)), list(dict.fromkeys(receives))


def _peer_user(link: BorderLink) -> EngineUser:
    return border_user(
        f"border-{link.dialler}", link.public_key, sends=link.dialler_sends, receives=link.acceptor_sends
    )


def _user(user: EngineUser) -> dict[str, Any]:
    return {
        "nkey": user.public_key,
        "permissions": {"publish": permission(user.publish), "subscribe": permission(user.subscribe)},
        "allowed_connection_types": list(user.connection_types),
    }


def _cluster(domain: Domain, server: Server, secrets: EngineSecrets) -> dict[str, Any]:
    word = f"harch:{secrets.cluster_word}@" if secrets.cluster_word else ""
    cluster: dict[str, Any] = {
        "name": domain.name,
        "listen": f"{server.host}:{server.cluster_port}",
        "no_advertise": True,
        "routes": [
            f"nats-route://{word}{other.host}:{other.cluster_port}" for other in domain.servers if other is not server
        ],
    }
    if secrets.cluster_word:
        cluster["authorization"] = {"user": "harch", "password": secrets.cluster_word, "timeout": 5}
    if server.tls is not None:
        cluster["tls"] = _tls(server.tls)
    return cluster


def _leaves(layout: EngineLayout, domain: Domain, server: Server, secrets: EngineSecrets) -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    if server.border_port:
        leaves |= {"listen": f"{server.host}:{server.border_port}", "no_advertise": True}
        if server.tls is not None:
            leaves["tls"] = _tls(server.tls)
    dials = [link for link in layout.links if link.dialler == domain.name]
    if dials and server is domain.servers[0]:  # one link per border, from one server: the account spans the cluster
        leaves |= {"remotes": [_remote(link, server, secrets) for link in dials], "reconnect": LEAF_RECONNECT_S}
    return leaves


def _remote(link: BorderLink, server: Server, secrets: EngineSecrets) -> dict[str, Any]:
    if link.public_key not in secrets.link_seeds:
        raise InvariantBroken("the seed of a link that is dialled", link.dialler, link.acceptor)
    remote: dict[str, Any] = {
        "url": f"{'tls' if server.tls else 'nats-leaf'}://{link.acceptor_url}",
        "nkey": secrets.link_seeds[link.public_key],
        "account": BORDER,
    }
    if server.tls is not None:
        remote["tls"] = _tls(server.tls)
    return remote


def _tls(files: ServerTls) -> dict[str, Any]:
    return {
        "cert_file": files.certificate,
        "key_file": files.key,
        "ca_file": files.ca,
        "verify": True,
        "min_version": "1.2",
    }
