"""Does somebody else run the message engine? A cluster by URL, trusted only after it has shown that it keeps our rules.

HarchOS writes the configuration that such a cluster needs (`config.server_config`); its operators apply it. What they
did is then tried, not believed: a worker's key must be refused where the generated configuration refuses it.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.errors import AuthorizationFailed, NatsError, PermissionDenied, RequestTimeout
from harch.pipelines.client.options import ClientOptions, Credentials, TlsFiles
from harch.pipelines.engine.binary import VERSION_MIN
from harch.pipelines.engine.jetstream_api import JetStreamAdmin
from harch.pipelines.engine.keys import read_secret
from harch.pipelines.engine.users import inbox_of

PROBE = "harch-probe"
PROBE_TIMEOUT_S = 1.0


class EngineSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a hub gets its message engine. Without `urls` it supervises one of its own."""

    urls: tuple[str, ...] = ()
    key_folder: str = ""  # where the seeds of users lie, one file of mode 0600 each
    ca: str = ""
    certificate: str = ""
    key: str = ""

    @property
    def is_external(self) -> bool:
        return bool(self.urls)


def client_options(settings: EngineSettings, user: str, *, urls: tuple[str, ...] = ()) -> ClientOptions:
    """How this user connects: its key, its inbox, TLS where there is an authority. Raises E0704 without its key."""
    path = Path(settings.key_folder) / f"{user}.key"
    try:
        seed = read_secret(path)
    except FileNotFoundError as error:
        raise HarchError("E0704", f"there is no key of `{user}`", hint=f"put its seed into {path}") from error
    tls = TlsFiles(ca=settings.ca, certificate=settings.certificate, key=settings.key) if settings.ca else None
    return ClientOptions(
        servers=urls or settings.urls,
        name=user,
        credentials=Credentials(seed=seed),
        tls=tls,
        inbox_prefix=inbox_of(user),
    )


async def check_engine(controller: AioClient, worker: AioClient, *, domain: str) -> tuple[Rejection, ...]:
    """What an engine fails to be or to refuse; empty if it may carry our streams. Leaves nothing behind."""
    found: list[Rejection] = []
    info = controller.server_info
    version = tuple(int(part) for part in str(info.get("version", "0.0")).split("-")[0].split(".")[:2])
    if version < VERSION_MIN:
        found.append(Rejection(domain, "version", f"is NATS {info.get('version')}", "run at least 2.15"))
    if not info.get("jetstream"):
        found.append(Rejection(domain, "jetstream", "has no JetStream", "switch it on"))
    elif info.get("domain") != domain:
        found.append(
            Rejection(domain, "domain", f"is the JetStream domain `{info.get('domain')}`", f"name it `{domain}`")
        )
    try:
        await JetStreamAdmin(controller).call("INFO")
    except NatsError as error:
        found.append(Rejection(domain, "controller", f"does not obey the controller: {error}", "check its key"))
    probes = (f"$JS.API.STREAM.CREATE.{PROBE}", f"$JS.{domain}.API.STREAM.NAMES", "$JS.API.STREAM.NAMES")
    allowed = [what for what in probes if await _answers(worker, what)]
    fix = "apply the generated users and permissions"
    return (*found, *(Rejection(domain, "permissions", f"lets a worker use `{what}`", fix) for what in allowed))


async def _answers(worker: AioClient, subject: str) -> bool:
    """Any answer, also that the request is malformed, shows that it was let through."""
    try:
        await worker.request(subject, b"", timeout_s=PROBE_TIMEOUT_S)
    except (RequestTimeout, PermissionDenied, AuthorizationFailed):
        return False
    except NatsError:
        return True  # nobody listens there, but the message was accepted
    return True
