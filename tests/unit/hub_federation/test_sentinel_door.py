"""A hub asks its own SENTINEL with the key that both have, and believes nothing but a whole account."""

from __future__ import annotations

from pathlib import Path

import httpx
import msgspec
import pytest

from harch.base.errors import HarchError
from harch.hub.sentinel_access import SentinelClient
from harch.sentinel.federated.messages import InboundQuestion, Judged, PartAccount, Requester
from unit.hub_federation.telemetry_world import QUESTION

ASKED = InboundQuestion(
    question=QUESTION,
    asker=Requester(hub_id="dakhla", country="MA"),
    here=Requester(hub_id="dakar", country="SN"),
    within_s=2.0,
)
WHOLE = Judged(parts=(PartAccount(groups=1),), answer=b"told")


def door(tmp_path: Path, said: httpx.Response | Exception) -> SentinelClient:
    key_file = tmp_path / "sentinel.key"
    key_file.write_text("hsk_shared\n")

    def handle(request: httpx.Request) -> httpx.Response:
        assert (request.headers["x-api-key"], request.url.path) == ("hsk_shared", "/harchos/api/v1/federated/answer")
        assert msgspec.msgpack.decode(request.content, type=InboundQuestion) == ASKED
        if isinstance(said, Exception):
            raise said
        return said

    return SentinelClient("http://sentinel", key_file, httpx.MockTransport(handle))


async def test_the_answer_comes_with_its_account(tmp_path: Path) -> None:
    own = door(tmp_path, httpx.Response(200, content=msgspec.msgpack.encode(WHOLE)))
    assert await own.judge(ASKED) == WHOLE
    await own.close()


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (httpx.ConnectError("refused"), "E0698"),
        (httpx.ReadTimeout("late"), "E0698"),
        (httpx.Response(200, content=b"\xff"), "E0698"),
        (httpx.Response(200, content=msgspec.msgpack.encode(Judged(parts=(), answer=b"more"))), "E0698"),
        (httpx.Response(500, content=b"oops"), "E0698"),
        (httpx.Response(403, json={"code": "E0697", "error": "off", "hint": ""}), "E0697"),
    ],
)
async def test_anything_else_is_an_error(tmp_path: Path, said: httpx.Response | Exception, code: str) -> None:
    with pytest.raises(HarchError) as raised:
        await door(tmp_path, said).judge(ASKED)
    assert raised.value.code == code


def test_only_the_shared_key_is_sentinels(tmp_path: Path) -> None:
    own = door(tmp_path, httpx.Response(200))
    assert own.is_sentinel("hsk_shared")
    assert not own.is_sentinel("hsk_other")
    (tmp_path / "sentinel.key").write_text("")
    assert not own.is_sentinel("")
    (tmp_path / "sentinel.key").unlink()
    assert not own.is_sentinel("")
