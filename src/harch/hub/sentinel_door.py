"""How does a hub reach its own SENTINEL? Over loopback, with the key that the two of them share."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

import httpx
import msgspec

from harch.base.errors import REGISTRY, HarchError
from harch.sentinel.federated.account import AskedHere, Judged

ANSWER_PATH = "/harchos/api/v1/federated/answer"
GRACE_S = 2.0  # SENTINEL ends by itself when the time is over; the hub waits a little longer

_encode = msgspec.msgpack.Encoder().encode
_judged = msgspec.msgpack.Decoder(Judged).decode


class SentinelDoor:
    """`key_file` may be written later than this is made: it is read at the first question."""

    def __init__(self, url: str, key_file: Path, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._url, self._key_file, self._transport = url, key_file, transport
        self._client: httpx.AsyncClient | None = None

    async def judge(self, asked: AskedHere) -> Judged:
        """Raises E0698 if SENTINEL does not answer, and whatever error it answers."""
        if self._client is None:
            self._client = httpx.AsyncClient(trust_env=False, transport=self._transport)
        try:
            answer = await self._client.post(
                self._url + ANSWER_PATH,
                content=_encode(asked),
                headers={"X-API-Key": self._key(), "Content-Type": "application/msgpack"},
                timeout=asked.within_s + GRACE_S,
            )
        except (httpx.HTTPError, OSError) as problem:
            raise HarchError("E0698", "its SENTINEL does not answer", retry_after_s=5) from problem
        if answer.status_code != httpx.codes.OK:
            raise _error_of(answer)
        try:
            judged = _judged(answer.content)
        except msgspec.DecodeError as problem:
            raise HarchError("E0698", "its SENTINEL answers in other words than this hub knows") from problem
        if len(judged.parts) != len(asked.question.parts):
            raise HarchError("E0698", "its SENTINEL did not account for every part of the question")
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
        told = answer.json()
        code, message, hint = str(told["code"]), str(told["error"]), str(told.get("hint", ""))
    except (ValueError, KeyError, TypeError):
        code, message, hint = "", "", ""
    if code not in REGISTRY:
        code, message = "E0698", f"its SENTINEL answered with status {answer.status_code}"
    return HarchError(code, message, hint=hint)
