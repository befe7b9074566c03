"""How does a hub fetch another hub's answer about telemetry? The question once, then one piece after the other."""

from __future__ import annotations

from harch.base.errors import HarchError
from harch.hub.federation.messages import (
    QUESTION_BYTES_MAX,
    PieceAsked,
    PieceTold,
    TelemetryAsked,
    TelemetryTold,
)
from harch.hub.federation.questions import Questions, no_answer
from harch.sentinel.federated.messages import ANSWER_BYTES_MAX

FEATURE = "telemetry"  # what a hub that answers such questions says of itself when it is linked
PIECE_WITHIN_S = 5.0


async def fetch_answer(questions: Questions, hub_id: str, question: bytes, *, within_s: float) -> bytes:
    """Raises E0698 if that hub or a piece does not come in time, and whatever error it answers instead; E0699 for a
    question that is too long to be sent."""
    if len(question) > QUESTION_BYTES_MAX:
        raise HarchError(
            "E0699", f"a question between hubs has at most {QUESTION_BYTES_MAX} bytes", hint="ask for less"
        )
    try:
        told = await questions.ask(
            hub_id,
            lambda number: TelemetryAsked(number=number, question=question, within_s=within_s),
            TelemetryTold,
            within_s=within_s,
        )
        if not 0 < len(told.data) <= told.bytes_total <= ANSWER_BYTES_MAX:
            raise no_answer(hub_id, f"it announces {told.bytes_total} bytes; at most {ANSWER_BYTES_MAX} are taken")
        answer = bytearray(told.data)
        while len(answer) < told.bytes_total:
            offset = len(answer)
            piece = await questions.ask(
                hub_id,
                lambda number, offset=offset: PieceAsked(number=number, answer_id=told.answer_id, offset=offset),  # type: ignore[misc]
                PieceTold,
                within_s=PIECE_WITHIN_S,
            )
            if not 0 < len(piece.data) <= told.bytes_total - offset:
                raise no_answer(hub_id, "a piece of its answer does not fit")
            answer += piece.data
    except HarchError as error:
        if error.code == "E0802":
            raise HarchError("E0698", error.message, hint=error.hint) from error
        raise
    return bytes(answer)
