"""Does somebody else run the message engine? A cluster by URL, trusted only after it has shown that it keeps our rules.

Its operators give HarchOS an account of its own, and a key that signs users of it. What the cluster does is then tried,
not believed: it obeys the controller, refuses a worker where our own configuration would, and keeps as many copies as
are wanted on servers that stand in the country.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from harch.base.clock import Clock
from harch.base.rejection import Rejection
from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.errors import (
    AuthorizationFailed,
    JetStreamRefused,
    NatsError,
    PermissionDenied,
    RequestTimeout,
)
from harch.pipelines.client.options import TlsFiles
from harch.pipelines.engine.audit import observe
from harch.pipelines.engine.jetstream_admin import JetStreamAdmin
from harch.pipelines.engine.layout import juris_root
from harch.pipelines.engine.server import VERSION_MIN
from harch.pipelines.engine.streams import StreamSpec

PROBE = "harch-probe"
PROBE_TIMEOUT_S = 1.0
PLACED_WITHIN_S = 15.0
_PROBE_BYTES = 1 << 20
_NO_STREAM = 10059


class EngineCluster(Struct, frozen=True, kw_only=True):
    """Where an engine is, and which of its servers stand in the country; no others may keep anything of ours."""

    servers: tuple[str, ...]
    server_names: tuple[str, ...]
    domain: str
    tls: TlsFiles | None = None


async def check_cluster(
    cluster: EngineCluster, controller: AioClient, worker: AioClient, *, country: str, replicas: int, clock: Clock
) -> tuple[Rejection, ...]:
    """What an engine fails to be or to refuse; empty if it may carry our streams. Leaves nothing behind."""
    found = what_is_wrong(cluster, controller.server_info)
    if found:
        return tuple(found)
    admin = JetStreamAdmin(controller)
    try:
        await admin.call("INFO")
    except NatsError as error:
        return (Rejection(cluster.domain, "controller", f"rejects the controller: {error}", "check its account"),)
    probes = (
        f"$JS.API.STREAM.CREATE.{PROBE}",
        "$JS.API.STREAM.NAMES",
        f"$JS.{cluster.domain}.API.STREAM.NAMES",
        f"{juris_root(country)}.others",
    )
    allowed = [what for what in probes if await _answers(worker, what)]
    fix = "enable accounts and permissions"
    found += [Rejection(cluster.domain, "permissions", f"lets a worker use `{what}`", fix) for what in allowed]
    return (*found, *await _check_copies(cluster, admin, country, replicas, clock))


def what_is_wrong(cluster: EngineCluster, info: Mapping[str, Any]) -> list[Rejection]:
    """With what a server says of itself when a client connects."""
    found = []
    words = str(info.get("version", "0.0")).split("-")[0].split(".")[:2]
    version = tuple(int(word) if word.isdigit() else 0 for word in words)
    if version < VERSION_MIN:
        found.append(Rejection(cluster.domain, "version", f"is NATS {info.get('version')}", "run at least 2.15"))
    if not info.get("jetstream"):
        found.append(Rejection(cluster.domain, "jetstream", "has no JetStream", "enable it, also for the account"))
    elif info.get("domain") != cluster.domain:
        named = info.get("domain") or "none"
        fix = f"name it `{cluster.domain}`, or set `domain`"
        found.append(Rejection(cluster.domain, "domain", f"its JetStream domain is {named}", fix))
    if (name := info.get("server_name")) not in cluster.server_names:
        fix = "add it if it is in the country, else use other servers"
        found.append(Rejection(cluster.domain, "servers", f"`{name}` responded, which is not in `server_names`", fix))
    return found


async def _check_copies(
    cluster: EngineCluster, admin: JetStreamAdmin, country: str, replicas: int, clock: Clock
) -> list[Rejection]:
    """A stream as ours will be, made and looked at: on how many servers is it, and on which?"""
    probe = StreamSpec(
        name=PROBE,
        country=country,
        subjects=(f"{juris_root(country)}.{PROBE}",),
        max_bytes=_PROBE_BYTES,
        replicas=replicas,
        deny_delete=False,
    )
    await _forget(admin)
    try:
        made = observe(await admin.call(f"STREAM.CREATE.{PROBE}", probe.wire()))
        until_s = clock.monotonic_s() + PLACED_WITHIN_S
        while replicas > 1 and not made.leader and clock.monotonic_s() < until_s:
            await clock.sleep(0.1)
            made = observe(await admin.call(f"STREAM.INFO.{PROBE}"))
    except JetStreamRefused as error:
        fix = f"have {replicas} servers with JetStream and room" if replicas > 1 else "give the account room"
        return [Rejection(cluster.domain, "replicas", f"cannot keep {replicas} copies: {error.description}", fix)]
    except NatsError as error:
        return [
            Rejection(
                cluster.domain, "replicas", f"cannot create a stream: {error}", "check that its cluster has a leader"
            )
        ]
    finally:
        await _forget(admin)
    storage_servers = {name for name in (made.leader, *made.replicas) if name}
    strange = sorted(storage_servers - set(cluster.server_names))
    found = [
        Rejection(cluster.domain, "servers", f"puts streams on `{name}`, which is not in `server_names`", "remove it")
        for name in strange
    ]
    if replicas > 1 and len(storage_servers) < replicas:
        detail = f"puts {len(storage_servers)} copies instead of {replicas}"
        found.append(Rejection(cluster.domain, "replicas", detail, "check that all its servers are up"))
    return found


async def _forget(admin: JetStreamAdmin) -> None:
    """Also what an earlier check left behind when it was killed."""
    try:
        await admin.call(f"STREAM.DELETE.{PROBE}")
    except JetStreamRefused as error:
        if error.code != _NO_STREAM:
            raise
    except NatsError:
        return  # the next check finds it


async def _answers(worker: AioClient, subject: str) -> bool:
    """Any answer, also that the request is malformed, shows that it was let through."""
    try:
        await worker.request(subject, b"", timeout_s=PROBE_TIMEOUT_S)
    except (RequestTimeout, PermissionDenied, AuthorizationFailed):
        return False
    except NatsError:
        return True  # nobody listens there, but the message was accepted
    return True
