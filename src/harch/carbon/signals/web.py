"""How is a web API queried without hanging, flooding or leaking a key?

Bounded requests, keys that stay out of logs, answers of the documented shape.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TypeVar

import httpx
import msgspec

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.carbon.signals.circuit_breaker import RequestLimit
from harch.carbon.signals.source import AccessRefused, SourceFailed

# How is a web API asked without hanging, flooding or leaking a key? Bounded in time, tries, size and rate.
#
# Redirects are not followed: they would carry the key to another host. Errors name the host and the status, never the
# headers, the query or the body.


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
            raise SourceFailed(self.source, f"rate limit reached for {wait_s:.0f} s", retry_after_s=int(wait_s) + 1)
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
            raise AccessRefused(
                self.source, f"{host} rejected the key (HTTP {status})", hint="check the key and its subscription"
            )
        if status not in RETRIED:
            raise SourceFailed(self.source, f"{host} returned HTTP {status}")
        return SourceFailed(
            self.source,
            f"{host} returned HTTP {status}",
            retry_after_s=_retry_after_s(response.headers.get("retry-after", ""), now),
        )

    async def _body(self, response: httpx.Response, host: str) -> bytes:
        body = bytearray()
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > self.limits.body_bytes_max:
                raise SourceFailed(self.source, f"{host} returned more than {self.limits.body_bytes_max} bytes")
        return bytes(body)

    def _parse(self, body: bytes) -> object:
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise SourceFailed(self.source, "the response is not JSON") from error

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


# Where is the key of a web API, and how does it stay out of logs? A key prints as stars whatever prints it.


KEY_CHARS_MAX = 4096


class ApiKey:
    """A secret text. Only `reveal` gives it away, so that every use can be found by its name."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "Key(***)"

    __str__ = __repr__

    def __reduce__(self) -> str:
        raise TypeError("a key cannot be pickled")


def read_key(what: str, *, variable: str = "", path: str = "", environment: Mapping[str, str]) -> ApiKey:
    """The key from an environment variable or a file. Raises HarchError E0220, which names the place only."""
    if variable:
        text, place = environment.get(variable, ""), f"environment variable {variable}"
    else:
        place = f"file {path}"
        try:
            with Path(path).open("r", encoding="utf-8") as file:
                text = file.read(KEY_CHARS_MAX + 1)
        except (OSError, ValueError) as error:
            raise HarchError(
                "E0220", f"{what}: the {place} cannot be read ({type(error).__name__})", hint="write the key into it"
            ) from None  # the cause of a decoding error would quote the bytes
    text = text.strip()
    if not text or len(text) > KEY_CHARS_MAX or not text.isprintable():
        raise HarchError("E0220", f"{what}: the {place} holds no key", hint="put the key there on a single line")
    return ApiKey(text)


# Does an answer have the shape that its API documents? Converted to a typed value, or refused with the place.


YEARS = (1970, 2200)  # beyond them, arithmetic with times may overflow
T = TypeVar("T")


def shaped(source: str, answer: object, shape: type[T]) -> T:
    """The answer as a `shape`. Raises SourceFailed; the message names the field, not its value."""
    try:
        return msgspec.convert(answer, shape)
    except msgspec.ValidationError as error:
        raise SourceFailed(source, f"unexpected response shape: {str(error)[:160]}") from error


def moment_of(source: str, moment: datetime) -> datetime:
    """In UTC. Raises SourceFailed for a time without a zone: guessing one would move it by hours."""
    if moment.tzinfo is None:
        raise SourceFailed(source, "the response has a time without a time zone")
    if not YEARS[0] <= moment.year <= YEARS[1]:
        raise SourceFailed(source, f"the response has a time in the year {moment.year}")
    return moment.astimezone(UTC)
