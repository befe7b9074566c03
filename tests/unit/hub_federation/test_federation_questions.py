"""A question gets the answer of the hub that was asked, an error, or none in time."""

from __future__ import annotations

import asyncio

import pytest

from harch.base.errors import HarchError
from harch.hub.federation import questions as module
from harch.hub.federation.messages import ErrorReply, Question, WorkReply, WorkRequest
from harch.hub.federation.questions import Questions


class Wire:
    def __init__(self, *, linked: bool = True) -> None:
        self.linked = linked
        self.sent: list[tuple[str, Question]] = []
        self.questions = Questions(self.send)

    def send(self, hub_id: str, question: Question) -> bool:
        self.sent.append((hub_id, question))
        return self.linked

    async def ask(self) -> asyncio.Task[WorkReply]:
        question = self.questions.request("dakar", lambda number: WorkRequest(number=number, tenant=None), WorkReply)
        task = asyncio.create_task(question)
        await asyncio.sleep(0)
        return task


async def test_only_the_asked_hub_can_answer_and_only_once() -> None:
    wire = Wire()
    asking = await wire.ask()
    number = wire.sent[0][1].number
    wire.questions.answered("abidjan", WorkReply(number=number, rows=(), total=1))
    wire.questions.answered("dakar", WorkReply(number=number + 1, rows=(), total=2))
    wire.questions.answered("dakar", WorkReply(number=number, rows=(), total=3))
    wire.questions.answered("dakar", WorkReply(number=number, rows=(), total=4))
    assert (await asking).total == 3
    wire.questions.answered("dakar", WorkReply(number=number, rows=(), total=5))


async def test_the_error_of_the_other_hub_is_ours() -> None:
    wire = Wire()
    asking = await wire.ask()
    wire.questions.answered("dakar", ErrorReply(number=1, code="E0301", message="not here", hint="there"))
    with pytest.raises(HarchError) as raised:
        await asking
    assert (raised.value.code, raised.value.message, raised.value.hint) == ("E0301", "not here", "there")


async def test_a_code_of_a_newer_hub_does_no_harm() -> None:
    wire = Wire()
    asking = await wire.ask()
    wire.questions.answered("dakar", ErrorReply(number=1, code="E9999", message="new"))
    with pytest.raises(HarchError, match="new"):
        await asking


async def test_without_a_link_or_after_its_loss_nobody_waits() -> None:
    with pytest.raises(HarchError) as unlinked:
        await (await Wire(linked=False).ask())
    wire = Wire()
    asking = await wire.ask()
    wire.questions.link_lost("abidjan", "cut")
    wire.questions.link_lost("dakar", "cut")
    with pytest.raises(HarchError, match="cut") as lost:
        await asking
    assert (unlinked.value.code, lost.value.code) == ("E0802", "E0802")


async def test_an_answer_that_does_not_come_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_WITHIN_S", 0.001)
    with pytest.raises(HarchError) as raised:
        await (await Wire().ask())
    assert raised.value.code == "E0802"
