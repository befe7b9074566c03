"""How does a hub reach its own SENTINEL? Over loopback, with the key that the two of them share."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

import httpx
import msgspec

from harch.base.errors import REGISTRY, HarchError
from harch.sentinel.federated.messages import InboundQuestion, Judged

ANSWER_PATH = "/harchos/api/v1/federated/answer"
GRACE_S = 2.0  # SENTINEL ends by itself when the time is over; the hub waits a little longer

_encode = msgspec.msgpack.Encoder().encode
_judged = msgspec.msgpack.Decoder(Judged).decode


class SentinelClient:
    """`key_file` may be written later than this is made: it is read at the first question."""

    def __init__(self, url: str, key_file: Path, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._url, self._key_file, self._transport = url, key_file, transport
        self._client: httpx.AsyncClient | None = None

    async def judge(self, question: InboundQuestion) -> Judged:
        """Raises E0698 if SENTINEL does not answer, and whatever error it answers."""
        if self._client is None:
            self._client = httpx.AsyncClient(trust_env=False, transport=self._transport)
        try:
            answer = await self._client.post(
                self._url + ANSWER_PATH,
                content=_encode(question),
                headers={"X-API-Key": self._key(), "Content-Type": "application/msgpack"},
                timeout=question.within_s + GRACE_S,
            )
        except (httpx.HTTPError, OSError) as problem:
            raise HarchError("E0698", "its SENTINEL does not answer", retry_after_s=5) from problem
        if answer.status_code != httpx.codes.OK:
            raise _error_of(answer)
        try:
            judged = _judged(answer.content)
        except msgspec.DecodeError as problem:
            raise HarchError("E0698", "its SENTINEL gave an answer that this hub cannot parse") from problem
        if len(judged.parts) != len(question.question.parts):
            raise HarchError("E0698", "its SENTINEL did not account for every part of the query")
        return judged

    def is_sentinel(self, token: str) -> bool:
        """Whether this is the key of this hub's SENTINEL."""
        try:
            own = self._key()
        except OSError:
            return False
        return bool(own) and hmac.compare_digest(*(hashlib.sha256(one.encode()).digest() for one in (own, token)))

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    def _key(self) -> str:
        return self._key_file.read_text("utf-8").strip()


def _error_of(answer: httpx.Response) -> HarchError:
    try:
        body = answer.json()
        code, message, hint = str(body["code"]), str(body["error"]), str(body.get("hint", ""))
    except (ValueError, KeyError, TypeError):
        code, message, hint = "", "", ""
    if code not in REGISTRY:
        code, message = "E0698", f"its SENTINEL answered with status {answer.status_code}"
    return HarchError(code, message, hint=hint)
