"""How does a hub ask another one something? A question with a number, an answer with the same, and a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from harch.base.errors import REGISTRY, HarchError
from harch.hub.federation.messages import (
    QUESTION_BYTES_MAX,
    Answer,
    ErrorReply,
    PieceReply,
    PieceRequest,
    Question,
    TelemetryReply,
    TelemetryRequest,
)
from harch.sentinel.federated.messages import ANSWER_BYTES_MAX

ANSWER_WITHIN_S = 2.0
OPEN_MAX = 10_000

A = TypeVar("A", bound=Answer)


class Questions:
    """What was asked and not yet answered. `send` answers whether there is a link to that hub."""

    def __init__(self, send: Callable[[str, Question], bool]) -> None:
        self._send = send
        self._numbers = 0
        self._open: dict[int, tuple[str, asyncio.Future[Answer]]] = {}

    async def request(
        self, hub_id: str, question: Callable[[int], Question], answer: type[A], *, within_s: float | None = None
    ) -> A:
        """Raises E0802 if nothing comes `within_s` (two seconds if absent), and whatever error that hub answers."""
        if len(self._open) >= OPEN_MAX:
            raise HarchError("E0401", f"{OPEN_MAX} requests to other hubs are open", hint="try again", retry_after_s=2)
        within_s = ANSWER_WITHIN_S if within_s is None else within_s
        self._numbers += 1
        number = self._numbers
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._open[number] = (hub_id, future)
        try:
            if not self._send(hub_id, question(number)):
                raise no_answer(hub_id, "there is no link to it")
            async with asyncio.timeout(within_s):
                reply_bytes = await future
        except TimeoutError:
            raise no_answer(hub_id, f"no answer within {within_s:g} s") from None
        finally:
            del self._open[number]
        if isinstance(reply_bytes, ErrorReply):
            raise HarchError(
                reply_bytes.code if reply_bytes.code in REGISTRY else "E0801",
                reply_bytes.message,
                hint=reply_bytes.hint,
            )
        if not isinstance(reply_bytes, answer):
            raise no_answer(hub_id, "its answer is to another request")
        return reply_bytes

    def answered(self, hub_id: str, reply_bytes: Answer) -> None:
        pending, future = self._open.get(reply_bytes.number, ("", None))
        if future is not None and pending == hub_id and not future.done():
            future.set_result(reply_bytes)

    def link_lost(self, hub_id: str, why: str) -> None:
        """Whoever waits for that hub need not wait any longer."""
        for pending, future in self._open.values():
            if pending == hub_id and not future.done():
                future.set_exception(no_answer(hub_id, why))


def no_answer(hub_id: str, why: str) -> HarchError:
    return HarchError("E0802", f"hub {hub_id} does not answer: {why}", hint="`harch hubs` shows since when")


# How does a hub fetch another hub's answer about telemetry? The question once, then one piece after the other.


FEATURE = "telemetry"  # what a hub that answers such questions says of itself when it is linked
PIECE_WITHIN_S = 5.0


async def fetch_answer(questions: Questions, hub_id: str, question: bytes, *, within_s: float) -> bytes:
    """Raises E0698 if that hub or a piece does not come in time, and whatever error it answers instead; E0699 for a
    question that is too long to be sent."""
    if len(question) > QUESTION_BYTES_MAX:
        raise HarchError("E0699", f"a query between hubs has at most {QUESTION_BYTES_MAX} bytes", hint="request less")
    try:
        reply = await questions.request(
            hub_id,
            lambda number: TelemetryRequest(number=number, question=question, within_s=within_s),
            TelemetryReply,
            within_s=within_s,
        )
        if not 0 < len(reply.data) <= reply.bytes_total <= ANSWER_BYTES_MAX:
            raise no_answer(hub_id, f"it announces {reply.bytes_total} bytes; at most {ANSWER_BYTES_MAX} are taken")
        answer = bytearray(reply.data)
        while len(answer) < reply.bytes_total:
            offset = len(answer)
            piece = await questions.request(
                hub_id,
                lambda number, offset=offset: PieceRequest(number=number, answer_id=reply.answer_id, offset=offset),  # type: ignore[misc]
                PieceReply,
                within_s=PIECE_WITHIN_S,
            )
            if not 0 < len(piece.data) <= reply.bytes_total - offset:
                raise no_answer(hub_id, "a piece of its answer does not fit")
            answer += piece.data
    except HarchError as error:
        if error.code == "E0802":
            raise HarchError("E0698", error.message, hint=error.hint) from error
        raise
    return bytes(answer)
