"""How is one question asked of several hubs? Cut here, asked everywhere at once, joined here; what is missing is said.

Without `partial_response=true` a hub that refuses or does not answer fails the question, with its name and its reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from harch.api.telemetry.federated_answers import Owner
from harch.api.telemetry.hubs import HubAround, HubCarrier, HubSaid, HubsAsked
from harch.api.telemetry.request import TelemetryRequest, parse_step_ms
from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.base.ids import new_id
from harch.sentinel.federated.account import AskedHere
from harch.sentinel.federated.messages import Answer, Asker, Part, Question

QUESTIONS_AT_ONCE = 16
THREADS = 2  # of their own: a question that waits for hubs holds no thread that answers one of theirs
WITHIN_S, WITHIN_S_MAX = 10.0, 60.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Heard:
    """What the hubs said to all parts. `own` is this hub's answer, if it was asked; `problems` say what is missing."""

    answers: tuple[Answer, ...]
    own: Answer | None
    problems: tuple[HarchError, ...]
    warnings: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """All that has to be said about what is missing."""
        return (*(problem.message for problem in self.problems), *self.warnings)

    @property
    def everyone(self) -> tuple[Answer, ...]:
        return (*((self.own,) if self.own is not None else ()), *self.answers)


class OverHubs:
    """Asks and waits; what the parts mean is for those who ask."""

    def __init__(self, carrier: HubCarrier, owner: Owner, clock: Clock) -> None:
        self._carrier, self._owner, self._clock = carrier, owner, clock
        self._threads = ThreadPoolExecutor(THREADS, "sentinel-over-hubs")
        self._open = 0

    async def hubs(self, request: TelemetryRequest) -> HubsAsked:
        return await self._carrier.hubs(request.hubs)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """For what takes long: parsing, and joining answers."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def ask(
        self, request: TelemetryRequest, asked: HubsAsked, parts: Sequence[Part], *, stays_home: str = ""
    ) -> Heard:
        """Raises E0697 or E0698 for the first hub that tells nothing, unless a part of the answer is enough.

        `stays_home` names what no hub tells abroad: then hubs abroad are not asked, because a question for single
        lines or spans may say as much as they do.
        """
        if self._open >= QUESTIONS_AT_ONCE:
            hint = "ask for less at once, and try again in a moment"
            raise HarchError("E0676", "too many questions over hubs are open", hint=hint, retry_after_s=1)
        self._open += 1
        try:
            return await self._ask(request, asked, tuple(parts), stays_home)
        finally:
            self._open -= 1

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._carrier.close()

    async def _ask(
        self, request: TelemetryRequest, asked: HubsAsked, parts: tuple[Part, ...], stays_home: str
    ) -> Heard:
        question = Question(
            id=new_id("q", now=self._clock.now()),
            tenant=request.tenant,
            asked_by=request.caller.key_id or "-",
            parts=parts,
        )
        within_s = _within_s(request)
        mine = next((hub for hub in asked.hubs if hub.own), None)
        spared = [hub for hub in asked.hubs if stays_home and asked.lies_abroad(hub)]
        others = [hub for hub in asked.hubs if not hub.own and hub not in spared]
        said, own = await asyncio.gather(
            self._carrier.ask(others, question, within_s=within_s), self._own(mine, question, within_s, request)
        )
        not_asked = [HubSaid(hub, error=_not_asked(hub, stays_home)) for hub in spared]
        heard = _heard([*said, *not_asked, *((own,) if own is not None else ())], mine)
        if heard.problems and not request.flag("partial_response"):
            raise _whole(heard.problems)
        return heard

    async def _own(
        self, hub: HubAround | None, question: Question, within_s: float, request: TelemetryRequest
    ) -> HubSaid | None:
        if hub is None:
            return None
        here = Asker(hub_id=hub.hub_id, country=hub.country)
        asked = AskedHere(question=question, asker=here, here=here, within_s=within_s)
        try:
            told = await self.in_thread(lambda: self._owner.own(asked, now_ms=request.now_ms, is_gone=request.is_gone))
            return HubSaid(hub, answer=told)
        except HarchError as error:
            return HubSaid(hub, error=error)


def _not_asked(hub: HubAround, what: str) -> HarchError:
    place = hub.country or "a country that is not known"
    return HarchError("E0697", f"hub {hub.hub_id} lies in {place} and was not asked: {what} do not cross a border")


def _within_s(request: TelemetryRequest) -> float:
    text = request.one("timeout")
    return min(parse_step_ms(text, "timeout") / 1000, WITHIN_S_MAX) if text else WITHIN_S


def _heard(said: Sequence[HubSaid], mine: HubAround | None) -> Heard:
    problems, warnings = [], []
    for one in said:
        if one.error is not None:
            problems.append(one.error)
        for told in one.answer.told if one.answer is not None else ():
            if told.refused is not None:
                no = told.refused
                fix = f"; {no.nearest_fix}" if no.nearest_fix else ""
                message = f"hub {one.hub.hub_id} refuses by its rule `{no.rule}`: {no.detail}{fix}"
                problems.append(HarchError("E0697", message, hint=no.nearest_fix))
            if told.suppressed:
                groups = "1 group" if told.suppressed == 1 else f"{told.suppressed} groups"
                warnings.append(f"hub {one.hub.hub_id} left out {groups} of too few sources")
            if told.body:  # series tell their warnings when they are joined
                warnings += [f"hub {one.hub.hub_id}: {text}" for text in told.warnings]
    return Heard(
        answers=tuple(one.answer for one in said if one.answer is not None and one.hub is not mine),
        own=next((one.answer for one in said if one.hub is mine), None),
        problems=tuple({problem.message: problem for problem in problems}.values()),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _whole(problems: Sequence[HarchError]) -> HarchError:
    """One error for all of them; a refusal is told before a silence, because waiting does not help against it."""
    first = min(problems, key=lambda problem: problem.code)
    rest = f" (and {len(problems) - 1} more hubs or parts)" if len(problems) > 1 else ""
    hint = "; ".join(text for text in (first.hint, "`partial_response=true` shows what the others tell") if text)
    return HarchError(first.code, first.message + rest, hint=hint, retry_after_s=first.retry_after_s)
