"""How is httpx set up for a hub? Shared by both clients."""

from __future__ import annotations

import secrets
import ssl
import sys
from typing import TypedDict

import httpx

from harch.base.tracing.context import TRACEPARENT, TraceContext
from harch.sdk.exchange import Failure, Request
from harch.sdk.settings import Settings

TIMEOUT_S = 30.0
STREAM_TIMEOUT_S = 60.0  # without a byte; the hub sends keep-alives more often than that
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


def traced(request: Request) -> dict[str, str]:
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


def failure_of(error: httpx.TransportError, url: str) -> Failure:
    if isinstance(error, httpx.ConnectError):
        return Failure(f"nothing listens at {url}")
    if isinstance(error, httpx.TimeoutException):
        return Failure(f"{url} took too long", quiet=isinstance(error, httpx.ReadTimeout))
    return Failure(f"the connection to {url} broke ({type(error).__name__})")
