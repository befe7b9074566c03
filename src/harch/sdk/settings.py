"""Which hub does the client talk to, with which key, and how is httpx set up for it?"""

from __future__ import annotations

import os
import secrets
import ssl
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

import httpx

from harch.base.config import home_from_env, ports_from_env
from harch.base.errors import HarchError
from harch.base.guarded_http import http_address
from harch.base.hosts import address_of
from harch.base.tracing.spans import TRACEPARENT, TraceContext
from harch.sdk.contexts import context_in_use, hubs_beside
from harch.sdk.exchange import ApiRequest, SendFailure

_KEY_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Settings:
    """Address and key. `key_source` says where the key came from, never what it is; or where none was found.

    `others` are hubs of the same federation, to ask where this one cannot be reached.
    """

    url: str
    api_key: str | None
    key_source: str
    others: tuple[str, ...] = ()

    def elsewhere(self) -> Settings | None:
        """The same at the next hub; None if there is no other one left.

        Never from HTTPS to plain HTTP: whoever blocks the one would be sent the key in clear.
        """
        others = [url for url in self.others if self.url.startswith("http:") or not url.startswith("http:")]
        return replace(self, url=others[0], others=tuple(others[1:])) if others else None

    @property
    def is_loopback(self) -> bool:
        host = http_address(self.url).host
        address = address_of(host)
        return host == "localhost" if address is None else address.is_loopback


def settings_from_env(url: str | None = None, api_key: str | None = None) -> Settings:
    """Arguments first, then HARCH_URL and HARCH_API_KEY, HARCH_CONTEXT, the state folder, the current context."""
    given, key_file = url or os.environ.get("HARCH_URL"), home_from_env().admin_key
    context = None if given or _is_here(key_file) else context_in_use()
    if context is not None:
        hubs, key_file = context.hubs, Path(context.key_file).expanduser()
    elif given:
        hubs = (given,)
    else:
        here = f"http://127.0.0.1:{ports_from_env().api(0)}"
        hubs = (here, *hubs_beside(here, key_file))
    address, *others = map(normal_url, hubs)
    if api_key:
        return Settings(address, api_key, "argument", tuple(others))
    if key := os.environ.get("HARCH_API_KEY"):
        return Settings(address, key.strip(), "HARCH_API_KEY", tuple(others))
    return Settings(address, _read_key(key_file), str(key_file), tuple(others))


def _is_here(key_file: Path) -> bool:
    """Whether the federation is that of a state folder: named, or in the current folder. HARCH_CONTEXT outweighs it."""
    if os.environ.get("HARCH_CONTEXT"):
        return False
    return "HARCH_HOME" in os.environ or "HARCH_PORT_BASE" in os.environ or key_file.exists()


def normal_url(url: str) -> str:
    """Scheme and host without the trailing slash and `/v1`, which the client adds itself."""
    try:
        http_address(url)
    except ValueError as error:
        hint = "e.g. HARCH_URL=http://127.0.0.1:7701"
        raise HarchError("E0201", f"`{url}` is not the address of a hub: it {error}", hint=hint) from None
    return url.rstrip("/").removesuffix("/v1")


def _read_key(path: Path) -> str | None:
    """The key, or None where there is no file: public calls work without one."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(_KEY_BYTES_MAX).strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise HarchError(
            "E0101", f"the key file {path} cannot be read: {error}", hint="run as its owner, or set HARCH_API_KEY"
        ) from error


# How is httpx set up for a hub? Shared by both clients.


TIMEOUT_S = 30.0
USER_AGENT = "harch-sdk-python/1"


class _Options(TypedDict):
    base_url: str
    headers: dict[str, str]
    trust_env: bool
    verify: ssl.SSLContext | bool


def client_options(settings: Settings) -> _Options:
    headers = {"user-agent": USER_AGENT, "accept": "application/json"}
    if settings.api_key:
        headers["x-api-key"] = settings.api_key
    # A proxy of the environment is for the outside; what listens on this machine is asked directly.
    trust_env = not settings.is_loopback
    # Plain HTTP needs no certificates, and reading those of the system takes longer than most calls. A context without
    # any trusts nobody, so that nothing is weakened should it ever be used.
    verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if settings.url.startswith("http:") else True
    return {"base_url": f"{settings.url}/v1", "headers": headers, "trust_env": trust_env, "verify": verify}


def traced(request: ApiRequest) -> dict[str, str]:
    """The headers of a request. One that changes something carries a `traceparent`: of the program's own span where it
    has one by OpenTelemetry, else a new one, so that what follows at the hub can be found."""
    headers = dict(request.headers)
    if request.method != "GET":
        headers.setdefault(TRACEPARENT, (_own_span() or _new_trace()).header)
    return headers


def _own_span() -> TraceContext | None:
    api = sys.modules.get("opentelemetry.trace")  # not imported for this: a program that has spans has imported it
    if api is None:
        return None
    known = api.get_current_span().get_span_context()
    if not known.trace_id or not known.span_id:
        return None
    return TraceContext(
        known.trace_id.to_bytes(16, "big"), known.span_id.to_bytes(8, "big"), bool(known.trace_flags & 1)
    )


def _new_trace() -> TraceContext:
    """Not sampled: there is no span of ours that others could find."""
    return TraceContext(secrets.token_bytes(16), secrets.token_bytes(8), sampled=False)


def explain_missing_key(error: HarchError, settings: Settings) -> None:
    """A refusal for want of a key says where one was looked for."""
    if error.code == "E0101" and not settings.api_key:
        looked = f"HARCH_API_KEY is not set, and there is no key in {settings.key_source}"
        error.hint = f"{looked}; `harch login URL` stores one, `harch context ls` lists the federations that you know"


def failure_of(error: httpx.TransportError, url: str) -> SendFailure:
    if isinstance(error, httpx.ConnectError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
        why = str(error).rpartition("certificate verify failed: ")[2].partition(" (")[0]
        return SendFailure(f"the certificate of {url} is not trusted: {why}")
    if isinstance(error, httpx.ConnectError):
        return SendFailure(f"nothing listens at {url}", sent=False)
    if isinstance(error, httpx.ConnectTimeout):
        return SendFailure(f"nothing answers at {url}", sent=False)
    if isinstance(error, httpx.TimeoutException):
        return SendFailure(f"{url} took too long", quiet=isinstance(error, httpx.ReadTimeout))
    return SendFailure(f"the connection to {url} broke ({type(error).__name__})")
