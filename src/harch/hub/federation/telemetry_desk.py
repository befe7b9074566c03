"""What does a hub tell its peers of its telemetry? What SENTINEL lets out, and only after it is written down.

The asker is who the link's certificate names, in the country that this hub's own fleet file gives it. A hub whose
country is unknown, or that says another one of itself, is told nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import NoReturn

import msgspec

from harch.base.clock import Clock
from harch.base.errors import REGISTRY, HarchError
from harch.fleet.model import Fleet
from harch.hub.audit import telemetry_drafts as drafts
from harch.hub.federation.messages import QUESTION_BYTES_MAX, PieceAsked, PieceTold, TelemetryAsked, TelemetryTold
from harch.hub.federation.telemetry_pieces import KeptAnswers
from harch.hub.views import PeerView
from harch.sentinel.federated.account import AskedHere, Judged, is_breach
from harch.sentinel.federated.messages import ANSWER_BYTES_MAX, PARTS_MAX, Asker, Question
from harch.sovereignty.audit.entry import Draft

WITHIN_S_MAX = 60.0
AT_ONCE_MAX, AT_ONCE_PER_HUB_MAX = 32, 8
RATE_PER_S, BURST = 5.0, 100.0  # questions of one hub: each is an entry of the audit chain
COUNTED_EVERY_S = 60.0  # entries about what was beyond that

Judge = Callable[[AskedHere], Awaitable[Judged]]
Record = Callable[[Draft], Awaitable[None]]

_log = logging.getLogger("harch.hub")

_question = msgspec.msgpack.Decoder(Question).decode


class TelemetryDesk:
    """`country_of` knows the countries of other hubs (empty: unknown), `judge` asks SENTINEL, `record` audits."""

    def __init__(
        self,
        *,
        hub_id: str,
        country: str,
        country_of: Callable[[str], str],
        judge: Judge,
        record: Record,
        clock: Clock,
    ) -> None:
        self._here = Asker(hub_id=hub_id, country=country)
        self._country, self._country_of, self._clock = country, country_of, clock
        self._judge, self._record = judge, record
        self._answering: Counter[str] = Counter()
        self._turns: dict[str, tuple[float, float]] = {}  # hub -> how many questions it may ask now, and since when
        self._turned_away: Counter[str] = Counter()
        self._counted_s: dict[str, float] = {}
        self._kept = KeptAnswers(clock)

    async def answer(self, hub_id: str, asked: TelemetryAsked) -> TelemetryTold:
        """Raises HarchError instead of an answer; across a border without details, which may tell of what is here."""
        asker = Asker(hub_id=hub_id, country=self._country_of(hub_id))
        if not self._takes_turn(hub_id):
            await self._turn_away(asker)
        question = _read(asked.question)
        if not asker.country:
            await self._refuse(question, asker, "country")
            raise HarchError(
                "E0697", f"the country of {hub_id} is not known here", hint="name the hub in the owner's fleet file"
            )
        self._answering[hub_id] += 1
        try:
            judged = await self._judged(question, asker, min(asked.within_s, WITHIN_S_MAX))
        finally:
            self._answering[hub_id] -= 1
        await self._write(drafts.told(question, asker, self._country, judged.parts, bytes_count=len(judged.answer)))
        return self._kept.begin(hub_id, asked.number, judged.answer)

    def piece(self, hub_id: str, asked: PieceAsked) -> PieceTold:
        return self._kept.go_on(hub_id, asked)

    async def _judged(self, question: Question, asker: Asker, within_s: float) -> Judged:
        crosses = asker.country != self._country
        try:
            judged = await self._judge(AskedHere(question=question, asker=asker, here=self._here, within_s=within_s))
        except HarchError as error:
            await self._refuse(question, asker, error.code)
            if crosses:
                raise HarchError(error.code, REGISTRY[error.code].title, retry_after_s=error.retry_after_s) from error
            raise
        if crosses and any(map(is_breach, question.parts, judged.parts)):
            await self._refuse(question, asker, "border")
            raise HarchError("E0697", "lines and spans do not cross a border")
        if len(judged.answer) > ANSWER_BYTES_MAX:
            await self._refuse(question, asker, "size")
            raise HarchError(
                "E0697",
                f"the answer has {len(judged.answer)} bytes; at most {ANSWER_BYTES_MAX} go to another hub",
                hint="aggregate more, or ask over a shorter time",
            )
        return judged

    async def _refuse(self, question: Question, asker: Asker, rule: str) -> None:
        await self._write(drafts.refused(question, asker, self._country, rule=rule))

    async def _write(self, draft: Draft) -> None:
        """No audit, no answer."""
        try:
            await self._record(draft)
        except HarchError as error:
            _log.error("a question about telemetry is not answered, as it cannot be written down: %s", error.message)
            raise HarchError("E0698", "the answer cannot be written down there, so it is not told") from error

    def _takes_turn(self, hub_id: str) -> bool:
        """Bounds what one hub can make this one do, and write."""
        now_s = self._clock.monotonic_s()
        left, since_s = self._turns.get(hub_id, (BURST, now_s))
        left = min(BURST, left + (now_s - since_s) * RATE_PER_S)
        busy = self._answering[hub_id] >= AT_ONCE_PER_HUB_MAX or self._answering.total() >= AT_ONCE_MAX
        takes = left >= 1 and not busy
        self._turns[hub_id] = (left - 1 if takes else left, now_s)
        return takes

    async def _turn_away(self, asker: Asker) -> NoReturn:
        """What is turned away was not looked at; the chain counts it once a minute."""
        self._turned_away[asker.hub_id] += 1
        now_s = self._clock.monotonic_s()
        if now_s - self._counted_s.get(asker.hub_id, -COUNTED_EVERY_S) >= COUNTED_EVERY_S:
            self._counted_s[asker.hub_id] = now_s
            count = self._turned_away.pop(asker.hub_id)
            await self._write(drafts.turned_away(asker, self._country, questions=count))
        raise HarchError("E0401", "too many questions about telemetry", hint="ask less often", retry_after_s=1)


def agreed_country(fleet: Fleet, views: Iterable[PeerView], hub_id: str) -> str:
    """Where a hub stands, if this hub's fleet file and the hub itself say the same; else nothing."""
    site = fleet.hub(hub_id)
    said = next((view.summary.country for view in views if view.hub_id == hub_id and view.summary is not None), "")
    return said if site is not None and site.country == said else ""


async def no_sentinel(asked: AskedHere) -> Judged:
    raise HarchError("E0698", "no telemetry is kept at that hub")


def _read(raw: bytes) -> Question:
    if len(raw) > QUESTION_BYTES_MAX:
        raise HarchError("E0699", f"a question has at most {QUESTION_BYTES_MAX} bytes")
    try:
        question = _question(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise HarchError("E0699", "this hub does not understand the question", hint="is it newer?") from problem
    if not 0 < len(question.parts) <= PARTS_MAX:
        raise HarchError("E0699", f"a question has 1 to {PARTS_MAX} parts")
    return question
