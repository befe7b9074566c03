"""How is a target asked? One bounded request; the body is read no further than its limit."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import httpx

from harch.base.errors import HarchError
from harch.sentinel.collect.scrape.answer import Answer
from harch.sentinel.collect.scrape.config import Authorization, BasicAuth, ScrapeConfig, SentinelConfig, TlsConfig
from harch.sentinel.collect.scrape.targets import Target
from harch.sentinel.collect.text.page import OPENMETRICS, read_page

BODY_BYTES_MAX = 64 * 1024 * 1024
_ACCEPT = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
)
_SIZE = re.compile(r"(\d+)\s*([KMGT]?)I?B?", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


class Asker:
    """Asks the targets of one job."""

    def __init__(self, config: SentinelConfig, job: ScrapeConfig, base: Path, wall_ms: Callable[[], int]) -> None:
        self._job = job
        self._base = base
        self._wall_ms = wall_ms
        self._timeout_s = config.timeout_ms(job) / 1000
        self._limit = size_bytes(job.body_size_limit) or BODY_BYTES_MAX
        self._client = httpx.AsyncClient(
            verify=trust_of(job, base),
            timeout=self._timeout_s,
            headers={"Accept": _ACCEPT, "X-Prometheus-Scrape-Timeout-Seconds": f"{self._timeout_s:g}"},
            trust_env=False,  # telemetry stays inside the perimeter: no proxy of the environment
            limits=httpx.Limits(max_connections=512, max_keepalive_connections=512),
        )

    async def ask(self, target: Target) -> Answer:
        """Never raises for what a target does: the failure is part of the answer."""
        began = self._wall_ms()
        try:
            body, content_type = await self._body(target)
            page = read_page(
                body.decode("utf-8"),
                began,
                openmetrics=content_type.startswith(OPENMETRICS),
                honor_timestamps=self._job.honor_timestamps,
            )
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeDecodeError, HarchError) as problem:
            reason = problem.message if isinstance(problem, HarchError) else f"{type(problem).__name__}: {problem}"
            return Answer(began, (self._wall_ms() - began) / 1000, failure=reason[:500])
        return Answer(began, (self._wall_ms() - began) / 1000, page)

    async def close(self) -> None:
        await self._client.aclose()

    async def _body(self, target: Target) -> tuple[bytes, str]:
        async with self._client.stream("GET", target.url, headers=credentials_of(self._job, self._base)) as response:
            if response.status_code != httpx.codes.OK:
                raise HarchError("E0675", f"the target answered with status {response.status_code}")
            body = bytearray()
            async for part in response.aiter_bytes():
                body += part
                if len(body) > self._limit:
                    raise HarchError("E0675", f"the page is larger than {self._limit} bytes")
            return bytes(body), response.headers.get("content-type", "")


def size_bytes(text: str) -> int:
    """`10MB` as bytes (powers of 1024, as Prometheus counts them); 0 for no limit."""
    if not text:
        return 0
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise HarchError("E0673", f"`{text}` is no size", hint="write e.g. `10MB`")
    return int(found.group(1)) << (10 * _POWERS[found.group(2).upper()])


class Secured(Protocol):
    """A section with credentials and trust of its own: a scrape job, or a set of Alertmanagers."""

    @property
    def authorization(self) -> Authorization | None: ...

    @property
    def basic_auth(self) -> BasicAuth | None: ...

    @property
    def tls_config(self) -> TlsConfig | None: ...


def credentials_of(section: Secured, base: Path) -> dict[str, str]:
    """Read for each request, so that a renewed token is used at once."""
    if section.authorization is not None:
        token = (base / section.authorization.credentials_file).read_text("utf-8").strip()
        return {"Authorization": f"{section.authorization.type} {token}"}
    if section.basic_auth is not None:
        password = (base / section.basic_auth.password_file).read_text("utf-8").strip()
        return {"Authorization": httpx.BasicAuth(section.basic_auth.username, password)._auth_header}
    return {}


def trust_of(section: Secured, base: Path) -> ssl.SSLContext | bool:
    tls = section.tls_config
    if tls is None:
        return True
    context = ssl.create_default_context(cafile=str(base / tls.ca_file) if tls.ca_file else None)
    if tls.cert_file:
        context.load_cert_chain(base / tls.cert_file, base / tls.key_file if tls.key_file else None)
    if tls.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
