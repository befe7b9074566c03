"""How does a hub ask another one something? A question with a number, an answer with the same, and a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from harch.base.errors import REGISTRY, HarchError
from harch.hub.federation.messages import Answer, NotTold, Question

ANSWER_WITHIN_S = 2.0
OPEN_MAX = 10_000

A = TypeVar("A", bound=Answer)


class Questions:
    """What was asked and not yet answered. `send` answers whether there is a link to that hub."""

    def __init__(self, send: Callable[[str, Question], bool]) -> None:
        self._send = send
        self._numbers = 0
        self._open: dict[int, tuple[str, asyncio.Future[Answer]]] = {}

    async def ask(
        self, hub_id: str, question: Callable[[int], Question], answer: type[A], *, within_s: float | None = None
    ) -> A:
        """Raises E0802 if nothing comes `within_s` (two seconds if absent), and whatever error that hub answers."""
        if len(self._open) >= OPEN_MAX:
            raise HarchError("E0401", f"{OPEN_MAX} questions to other hubs are open", hint="try again", retry_after_s=2)
        within_s = ANSWER_WITHIN_S if within_s is None else within_s
        self._numbers += 1
        number = self._numbers
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._open[number] = (hub_id, future)
        try:
            if not self._send(hub_id, question(number)):
                raise no_answer(hub_id, "there is no link to it")
            async with asyncio.timeout(within_s):
                said = await future
        except TimeoutError:
            raise no_answer(hub_id, f"nothing came within {within_s:g} s") from None
        finally:
            del self._open[number]
        if isinstance(said, NotTold):
            raise HarchError(said.code if said.code in REGISTRY else "E0801", said.message, hint=said.hint)
        if not isinstance(said, answer):
            raise no_answer(hub_id, "its answer is to another question")
        return said

    def answered(self, hub_id: str, said: Answer) -> None:
        asked, future = self._open.get(said.number, ("", None))
        if future is not None and asked == hub_id and not future.done():
            future.set_result(said)

    def link_lost(self, hub_id: str, why: str) -> None:
        """Whoever waits for that hub need not wait any longer."""
        for asked, future in self._open.values():
            if asked == hub_id and not future.done():
                future.set_exception(no_answer(hub_id, why))


def no_answer(hub_id: str, why: str) -> HarchError:
    return HarchError("E0802", f"hub {hub_id} does not answer: {why}", hint="`harch hubs` shows since when")
