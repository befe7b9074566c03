"""How does SENTINEL answer other hubs? Its own hub asks for them, and learns what to write down of the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from harch.api.telemetry import answer as http
from harch.api.telemetry.request import TelemetryRequest
from harch.api.telemetry.routing import Route, Work
from harch.base.errors import HarchError
from harch.sentinel.federated.account import AskedHere, Judged, account_of
from harch.sentinel.federated.messages import Answer

BODY_BYTES_MAX = 512 * 1024
MSGPACK = "application/msgpack"

_asked = msgspec.msgpack.Decoder(AskedHere).decode
_encode = msgspec.msgpack.Encoder().encode


class Owner(Protocol):
    """Judges and evaluates questions of other hubs over this hub's telemetry."""

    def answer(self, asked: AskedHere, *, now_ms: int, is_gone: Callable[[], bool]) -> Answer:
        """Raises HarchError for what cannot be evaluated; what may not be told is refused in the answer.

        `is_gone` says that the hub no longer waits.
        """
        ...

    def own(self, asked: AskedHere, *, now_ms: int, is_gone: Callable[[], bool]) -> Answer:
        """The answer to people of this hub itself: nothing leaves it, so nothing is judged."""
        ...


class FederatedAnswers:
    """One route, for the hub alone: who asks is believed because the hub says so."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner

    def routes(self) -> list[Route]:
        path = "/harchos/api/v1/federated/answer"
        return [Route(("POST",), path, self.answered, Work.QUERY, BODY_BYTES_MAX, is_form=False)]

    def answered(self, request: TelemetryRequest, _: Mapping[str, str]) -> http.Answer:
        try:
            asked = _asked(request.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise HarchError("E0699", f"that is no question between hubs: {problem}") from problem
        answer = self._owner.answer(asked, now_ms=request.now_ms, is_gone=request.is_gone)
        judged = Judged(parts=account_of(answer), answer=_encode(answer))
        return http.Answer(body=_encode(judged), content_type=MSGPACK)
