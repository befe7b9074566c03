"""How is a web API asked without hanging, flooding or leaking a key? Bounded in time, tries, size and rate.

Redirects are not followed: they would carry the key to another host. Errors name the host and the status, never the
headers, the query or the body.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

from harch.base.clock import Clock
from harch.carbon.signals.restraint import RequestLimit
from harch.carbon.signals.source import AccessRefused, SourceFailed

RETRIED = (429, 500, 502, 503, 504)
REFUSED = (401, 403)


class _WithoutQuery(logging.Filter):
    """Keeps queries out of httpx's own log lines: one of the services takes its key in the query."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(
                part.copy_with(query=None) if isinstance(part, httpx.URL) else part for part in record.args
            )
        return True


logging.getLogger("httpx").addFilter(_WithoutQuery())


@dataclass(frozen=True, slots=True, kw_only=True)
class WebLimits:
    """Bounds of one question to a web API."""

    timeout_s: float = 10.0  # of one try, from the first byte sent to the last one read
    tries_max: int = 3
    backoff_s: float = 0.5  # doubled with every try, then shortened by up to a half at random
    wait_s_max: float = 20.0  # a longer Retry-After ends the question; the breaker keeps to it
    body_bytes_max: int = 2 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class WebReader:
    """Asks one web API on behalf of one source. `jitter` gives numbers from 0 to 1; tests give a constant."""

    source: str
    client: httpx.AsyncClient
    jitter: Callable[[], float]
    limits: WebLimits
    requests: RequestLimit

    async def get_json(
        self,
        url: str,
        clock: Clock,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        auth: tuple[str, str] | None = None,
    ) -> object:
        """The answer as JSON. Raises SourceFailed after the last try, AccessRefused at once."""
        attempt = 1
        while True:
            outcome = await self._try(url, clock, params, headers, auth)
            if not isinstance(outcome, SourceFailed):
                return self._parse(outcome)
            wait_s = self._wait_s(attempt, outcome)
            if wait_s is None:
                raise outcome
            await clock.sleep(wait_s)
            attempt += 1

    async def _try(
        self,
        url: str,
        clock: Clock,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
        auth: tuple[str, str] | None,
    ) -> bytes | SourceFailed:
        """The body, or a failure that another try may mend. Failures that none would mend are raised."""
        now_s = clock.monotonic_s()
        if (wait_s := self.requests.wait_s(now_s)) > 0:
            raise SourceFailed(
                self.source, f"its limit of requests is reached for {wait_s:.0f} s", retry_after_s=int(wait_s) + 1
            )
        self.requests.count(now_s)
        host = httpx.URL(url).host
        try:
            async with asyncio.timeout(self.limits.timeout_s):
                request = self.client.build_request("GET", url, params=params, headers=headers)
                basic = httpx.BasicAuth(*auth) if auth else None
                response = await self.client.send(request, auth=basic, stream=True, follow_redirects=False)
                try:
                    if response.status_code != httpx.codes.OK:
                        return self._refusal(response, host, clock.now())
                    return await self._body(response, host)
                finally:
                    await response.aclose()
        except (TimeoutError, httpx.TimeoutException):
            return SourceFailed(self.source, f"{host} did not answer within {self.limits.timeout_s:g} s")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return SourceFailed(self.source, f"{host} cannot be read ({type(error).__name__})")

    def _refusal(self, response: httpx.Response, host: str, now: datetime) -> SourceFailed:
        status = response.status_code
        if status in REFUSED:
            raise AccessRefused(self.source, f"{host} refuses the key (HTTP {status})", hint="check key and contract")
        if status not in RETRIED:
            raise SourceFailed(self.source, f"{host} answers HTTP {status}")
        return SourceFailed(
            self.source,
            f"{host} answers HTTP {status}",
            retry_after_s=_retry_after_s(response.headers.get("retry-after", ""), now),
        )

    async def _body(self, response: httpx.Response, host: str) -> bytes:
        body = bytearray()
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > self.limits.body_bytes_max:
                raise SourceFailed(self.source, f"{host} answers more than {self.limits.body_bytes_max} bytes")
        return bytes(body)

    def _parse(self, body: bytes) -> object:
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise SourceFailed(self.source, "the answer is not JSON") from error

    def _wait_s(self, attempt: int, failure: SourceFailed) -> float | None:
        """Seconds before the next try, or None when there is none."""
        if attempt >= self.limits.tries_max:
            return None
        if failure.retry_after_s is not None:
            return failure.retry_after_s if failure.retry_after_s <= self.limits.wait_s_max else None
        return float(self.limits.backoff_s * 2 ** (attempt - 1) * (1 - self.jitter() / 2))


def _retry_after_s(text: str, now: datetime) -> int | None:
    """The header in either form: seconds, or a date. What cannot be read is not obeyed."""
    if text.isdecimal() and len(text) <= 9:
        return int(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return max(0, int((aware - now).total_seconds()) + 1)
