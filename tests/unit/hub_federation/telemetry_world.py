"""Two hubs and the wire between them, in memory: one asks about telemetry, the other one's desk answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from harch.base.errors import HarchError
from harch.hub.federation.messages import (
    Answer,
    Encoder,
    ErrorReply,
    PieceRequest,
    Question,
    TelemetryRequest,
    decode,
)
from harch.hub.federation.questions import Questions, fetch_answer
from harch.hub.federation.telemetry import TelemetryAnswers
from harch.sentinel.federated.messages import InboundQuestion, Judged, MetricPart, PartAccount
from harch.sentinel.federated.messages import Question as TelemetryQuestion
from harch.sovereignty.audit.chain import Draft
from harch.testing.clock import SimClock

PART = MetricPart(expression="sum(up)", start_ms=0, end_ms=0, step_ms=1000)
QUESTION = TelemetryQuestion(id="q_1", tenant="acme", requested_by="key_7", parts=(PART,))


class Wire:
    """`dakhla` asks `dakar`. What passes is encoded and decoded as on a link, and kept in `crossed`."""

    def __init__(self, countries: dict[str, str] | None = None) -> None:
        self.clock = SimClock()
        self.answer = b"an answer"
        self.parts: tuple[PartAccount, ...] = (PartAccount(groups=1, points=1),)
        self.failure: HarchError | None = None
        self.disk_failure: HarchError | None = None
        self.judged: list[InboundQuestion] = []
        self.entries: list[Draft] = []
        self.crossed: list[bytes] = []
        self.on_answer: Callable[[Answer], Answer | None] = lambda answer: answer
        self.linked = True
        known = {"dakhla": "MA"} if countries is None else countries
        self.desk = TelemetryAnswers(
            hub_id="dakar",
            country="SN",
            country_of=lambda hub_id: known.get(hub_id, ""),
            judge=self._judge,
            record=self._record,
            clock=self.clock,
        )
        self.questions = Questions(self._send)
        self._running: set[asyncio.Task[None]] = set()

    async def ask(self, question: TelemetryQuestion = QUESTION, *, within_s: float = 5.0, hub: str = "dakar") -> bytes:
        return await fetch_answer(self.questions, hub, msgspec.msgpack.encode(question), within_s=within_s)

    async def _judge(self, asked: InboundQuestion) -> Judged:
        self.judged.append(asked)
        if self.failure is not None:
            raise self.failure
        return Judged(parts=self.parts, answer=self.answer)

    async def _record(self, draft: Draft) -> None:
        if self.disk_failure is not None:
            raise self.disk_failure
        self.entries.append(draft)

    def _send(self, hub_id: str, message: Question) -> bool:
        if self.linked:
            body = Encoder().encode(message)
            self.crossed.append(body)
            task = asyncio.get_running_loop().create_task(self._answer(body))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return self.linked

    async def _answer(self, body: bytes) -> None:
        asked = decode(body)
        said: Answer
        try:
            if isinstance(asked, TelemetryRequest):
                said = await self.desk.answer("dakhla", asked)
            else:
                assert isinstance(asked, PieceRequest)
                said = self.desk.piece("dakhla", asked)
        except HarchError as error:
            assert isinstance(asked, TelemetryRequest | PieceRequest)
            said = ErrorReply(number=asked.number, code=error.code, message=error.message, hint=error.hint)
        passed = self.on_answer(said)
        if passed is not None:
            body = Encoder().encode(passed)
            self.crossed.append(body)
            heard = decode(body)
            assert isinstance(heard, Answer)
            self.questions.answered("dakar", heard)
