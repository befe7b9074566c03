"""Is a web API asked within its bounds, and does a key stay secret whatever goes wrong?"""

from __future__ import annotations

import asyncio
import logging
import pickle
from datetime import timedelta
from email.utils import format_datetime
from pathlib import Path

import httpx
import pytest

from harch.base.errors import HarchError
from harch.carbon.signals.circuit_breaker import RequestLimit
from harch.carbon.signals.source import AccessRefused, SourceFailed
from harch.carbon.signals.web import ApiKey, WebLimits, WebReader, read_key
from harch.testing.clock import START, SimClock
from unit.carbon.signals.carbon_apis import Double, Fault, body, status, timeout

URL = "http://api.test/v3/thing"


class _Fine(Double):
    def answer(self, _request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"fine": True})


class _Asked:
    """One question to a double, with all the time that it takes simulated."""

    def __init__(self, *faults: Fault, limits: WebLimits | None = None, requests_max: int = 100) -> None:
        self.clock = SimClock()
        self.double = _Fine(self.clock)
        self.double.faults = list(faults)
        self.web = WebReader(
            source="api",
            client=self.double.client(),
            jitter=lambda: 0.0,
            limits=limits or WebLimits(),
            requests=RequestLimit(requests_max, 3600.0),
        )

    async def get(self) -> object:
        task = asyncio.create_task(self.web.get_json(URL, self.clock, headers={"auth-token": "s3cret"}))
        await self.clock.advance(120)
        return await task


async def test_a_hiccup_is_bridged_by_trying_again_with_longer_and_longer_waits() -> None:
    asked = _Asked(status(500), timeout)
    started_s = asked.clock.monotonic_s()
    task = asyncio.create_task(asked.web.get_json(URL, asked.clock))
    await asked.clock.advance(1.49)
    assert not task.done()
    await asked.clock.advance(0.01)
    assert await task == {"fine": True}
    assert asked.clock.monotonic_s() - started_s == pytest.approx(0.5 + 1.0)


async def test_tries_are_bounded_and_the_last_failure_is_told() -> None:
    asked = _Asked(*[status(503)] * 10)
    with pytest.raises(SourceFailed, match=r"api\.test returned HTTP 503"):
        await asked.get()
    assert len(asked.double.requests) == 3


@pytest.mark.parametrize("form", ["7", format_datetime(START + timedelta(seconds=6), usegmt=True)])
async def test_retry_after_is_kept_in_both_forms(form: str) -> None:
    asked = _Asked(status(429, Retry_After=form))
    task = asyncio.create_task(asked.web.get_json(URL, asked.clock))
    await asked.clock.advance(6.9)
    assert not task.done()
    await asked.clock.advance(0.2)
    assert await task == {"fine": True}


async def test_a_long_retry_after_ends_the_question_and_is_passed_on() -> None:
    asked = _Asked(status(429, Retry_After="300"))
    with pytest.raises(SourceFailed) as failure:
        await asked.get()
    assert failure.value.retry_after_s == 300
    assert len(asked.double.requests) == 1


@pytest.mark.parametrize("form", ["soon", "-5", "9" * 40, ""])
async def test_a_retry_after_that_cannot_be_read_is_an_ordinary_failure(form: str) -> None:
    assert await _Asked(status(429, Retry_After=form)).get() == {"fine": True}


@pytest.mark.parametrize("code", [400, 404, 301, 302, 418])
async def test_what_another_try_would_not_mend_is_not_tried_again(code: int) -> None:
    asked = _Asked(status(code, Location="http://elsewhere.test/"))
    with pytest.raises(SourceFailed, match=f"HTTP {code}"):
        await asked.get()
    assert [request.url.host for request in asked.double.requests] == ["api.test"]


@pytest.mark.parametrize("code", [401, 403])
async def test_a_refused_key_is_an_error_of_its_own(code: int) -> None:
    with pytest.raises(AccessRefused, match="rejected the key"):
        await _Asked(status(code)).get()


@pytest.mark.parametrize(
    "content", [b"", b"<html>Bad gateway</html>", b'{"zone": "MA", "carb', b"\xff\xfe", b"[" * 100_000]
)
async def test_an_answer_that_is_not_json_is_a_failure(content: bytes) -> None:
    with pytest.raises(SourceFailed, match="not JSON"):
        await _Asked(body(content)).get()


async def test_an_endless_answer_is_cut_off() -> None:
    asked = _Asked(body(b" " * 5000), limits=WebLimits(body_bytes_max=4096))
    with pytest.raises(SourceFailed, match="more than 4096 bytes"):
        await asked.get()


async def test_the_limit_of_requests_holds_for_tries_too() -> None:
    asked = _Asked(status(500), status(500), requests_max=2)
    with pytest.raises(SourceFailed, match="rate limit reached") as failure:
        await asked.get()
    assert len(asked.double.requests) == 2
    assert failure.value.retry_after_s is not None


@pytest.mark.parametrize("fault", [status(500), status(401), status(404), timeout, body(b"{")])
async def test_the_key_is_in_no_error_and_in_no_log(fault: Fault, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(SourceFailed) as failure:
        await _Asked(fault, fault, fault).get()
    shown = f"{failure.value} {failure.value!r} {failure.value.__cause__!r} {failure.value.meta}"
    assert "s3cret" not in shown + caplog.text


async def test_a_key_in_the_query_is_not_in_the_log_of_the_http_library(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    asked = _Asked()
    await asked.web.get_json(URL, asked.clock, params={"apikey": "s3cret"})
    assert asked.double.requests[0].url.params["apikey"] == "s3cret"
    assert "GET http://api.test/v3/thing " in caplog.text
    assert "s3cret" not in caplog.text


def test_a_key_shows_stars_only(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("s3cret\n")
    for key in (
        read_key("maps", variable="MAPS", environment={"MAPS": " s3cret "}),
        read_key("maps", path=str(file), environment={}),
    ):
        assert key.reveal() == "s3cret"
        assert "s3cret" not in f"{key} {key!r} {[key]}"
        with pytest.raises(TypeError):
            pickle.dumps(key)


@pytest.mark.parametrize("content", [b"", b"  \n", b"\xff\xfes3cret", b"two\x00parts", b"s3cret" * 1000])
def test_a_file_without_a_key_is_refused_without_being_quoted(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(HarchError) as failure:
        read_key("maps", path=str(file), environment={})
    assert failure.value.code == "E0220"
    assert "s3cret" not in str(failure.value)
    assert ApiKey("s3cret").reveal() not in repr(failure.value.__cause__)
