"""What does a hub tell its peers of its telemetry? What SENTINEL lets out, and only after it is written down.

The asker is who the link's certificate names, in the country that this hub's own fleet file gives it. A hub whose
country is unknown, or that says another one of itself, learns nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NoReturn

import msgspec

from harch.base.clock import Clock
from harch.base.errors import REGISTRY, HarchError
from harch.base.ids import new_id
from harch.fleet.model import Fleet
from harch.hub.audit.drafts import tenant_of
from harch.hub.federation.messages import (
    PIECE_BYTES_MAX,
    QUESTION_BYTES_MAX,
    PieceReply,
    PieceRequest,
    TelemetryReply,
    TelemetryRequest,
)
from harch.hub.views import PeerView
from harch.sentinel.federated.messages import (
    ANSWER_BYTES_MAX,
    PARTS_MAX,
    InboundQuestion,
    Judged,
    PartAccount,
    Question,
    Requester,
    is_breach,
    text_of,
)
from harch.sovereignty.audit import chain as audit
from harch.sovereignty.audit.chain import Detail, Draft

WITHIN_S_MAX = 60.0
AT_ONCE_MAX, AT_ONCE_PER_HUB_MAX = 32, 8
RATE_PER_S, BURST = 5.0, 100.0  # questions of one hub: each is an entry of the audit chain
COUNTED_EVERY_S = 60.0  # entries about what was beyond that

Judge = Callable[[InboundQuestion], Awaitable[Judged]]
Record = Callable[[Draft], Awaitable[None]]

_log = logging.getLogger("harch.hub")

_question = msgspec.msgpack.Decoder(Question).decode


class TelemetryAnswers:
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
        self._here = Requester(hub_id=hub_id, country=country)
        self._country, self._country_of, self._clock = country, country_of, clock
        self._judge, self._record = judge, record
        self._answering: Counter[str] = Counter()
        self._turns: dict[str, tuple[float, float]] = {}  # hub -> how many questions it may ask now, and since when
        self._turned_away: Counter[str] = Counter()
        self._counted_s: dict[str, float] = {}
        self._kept = KeptAnswers(clock)

    async def answer(self, hub_id: str, request: TelemetryRequest) -> TelemetryReply:
        """Raises HarchError instead of an answer; across a border without details, which may tell of what is here."""
        asker = Requester(hub_id=hub_id, country=self._country_of(hub_id))
        if not self._takes_turn(hub_id):
            await self._turn_away(asker)
        question = _read(request.question)
        if not asker.country:
            await self._refuse(question, asker, "country")
            raise HarchError(
                "E0697", f"the country of {hub_id} is not known here", hint="name the hub in the owner's fleet file"
            )
        self._answering[hub_id] += 1
        try:
            judged = await self._judged(question, asker, min(request.within_s, WITHIN_S_MAX))
        finally:
            self._answering[hub_id] -= 1
        await self._write(answered_draft(question, asker, self._country, judged.parts, bytes_count=len(judged.answer)))
        return self._kept.begin(hub_id, request.number, judged.answer)

    def piece(self, hub_id: str, request: PieceRequest) -> PieceReply:
        return self._kept.go_on(hub_id, request)

    async def _judged(self, question: Question, asker: Requester, within_s: float) -> Judged:
        crosses = asker.country != self._country
        try:
            judged = await self._judge(
                InboundQuestion(question=question, asker=asker, here=self._here, within_s=within_s)
            )
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
                hint="aggregate more, or shorten the time range",
            )
        return judged

    async def _refuse(self, question: Question, asker: Requester, rule: str) -> None:
        await self._write(refused_draft(question, asker, self._country, rule=rule))

    async def _write(self, draft: Draft) -> None:
        """No audit, no answer."""
        try:
            await self._record(draft)
        except HarchError as error:
            _log.error("a telemetry query is not answered, because it cannot be recorded: %s", error.message)
            raise HarchError("E0698", "the answer cannot be recorded there, so it is not disclosed") from error

    def _takes_turn(self, hub_id: str) -> bool:
        """Bounds what one hub can make this one do, and write."""
        now_s = self._clock.monotonic_s()
        left, since_s = self._turns.get(hub_id, (BURST, now_s))
        left = min(BURST, left + (now_s - since_s) * RATE_PER_S)
        busy = self._answering[hub_id] >= AT_ONCE_PER_HUB_MAX or self._answering.total() >= AT_ONCE_MAX
        takes = left >= 1 and not busy
        self._turns[hub_id] = (left - 1 if takes else left, now_s)
        return takes

    async def _turn_away(self, asker: Requester) -> NoReturn:
        """What is turned away was not looked at; the chain counts it once a minute."""
        self._turned_away[asker.hub_id] += 1
        now_s = self._clock.monotonic_s()
        if now_s - self._counted_s.get(asker.hub_id, -COUNTED_EVERY_S) >= COUNTED_EVERY_S:
            self._counted_s[asker.hub_id] = now_s
            count = self._turned_away.pop(asker.hub_id)
            await self._write(turned_away_draft(asker, self._country, questions=count))
        raise HarchError("E0401", "too many telemetry queries", hint="query less often", retry_after_s=1)


def agreed_country(fleet: Fleet, views: Callable[[], Iterable[PeerView]], hub_id: str) -> str:
    """Where a hub stands, if this hub's fleet file and the hub itself say the same; else nothing."""
    site = fleet.hub(hub_id)
    stated = next((view.summary.country for view in views() if view.hub_id == hub_id and view.summary is not None), "")
    return stated if site is not None and site.country == stated else ""


async def no_sentinel(request: InboundQuestion) -> Judged:
    raise HarchError("E0698", "no telemetry is kept at that hub")


def _read(raw: bytes) -> Question:
    if len(raw) > QUESTION_BYTES_MAX:
        raise HarchError("E0699", f"a query has at most {QUESTION_BYTES_MAX} bytes")
    try:
        question = _question(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise HarchError("E0699", "this hub does not understand the query", hint="is it newer?") from problem
    if not 0 < len(question.parts) <= PARTS_MAX:
        raise HarchError("E0699", f"a query has 1 to {PARTS_MAX} parts")
    return question


# What of long answers is still to be fetched? A few of them, for a short time, each for the hub that asked.


KEPT_BYTES_MAX = 64 << 20
KEPT_S = 30.0


class KeptAnswers:
    """Answers in pieces. Beyond the limit the oldest go, and whoever still wants one asks again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[str, tuple[str, float, bytes]] = {}

    def begin(self, hub_id: str, number: int, answer: bytes) -> TelemetryReply:
        """The first piece; the rest is kept, if there is any."""
        answer_id = ""
        if len(answer) > PIECE_BYTES_MAX:
            self._make_room(len(answer))
            answer_id = new_id("ans", now=self._clock.now())
            self._kept[answer_id] = (hub_id, self._clock.monotonic_s(), answer)
        return TelemetryReply(
            number=number, answer_id=answer_id, bytes_total=len(answer), data=answer[:PIECE_BYTES_MAX]
        )

    def go_on(self, hub_id: str, request: PieceRequest) -> PieceReply:
        """Raises E0698 for what is not kept for this hub. The last piece ends it."""
        to, _, answer = self._kept.get(request.answer_id, ("", 0.0, b""))
        if to != hub_id or not 0 <= request.offset < len(answer):
            raise HarchError("E0698", "that answer is no longer kept here", hint="try again")
        end = request.offset + PIECE_BYTES_MAX
        if end >= len(answer):
            del self._kept[request.answer_id]
        return PieceReply(number=request.number, data=answer[request.offset : end])

    def _make_room(self, size: int) -> None:
        since_s = self._clock.monotonic_s() - KEPT_S
        self._kept = {key: kept for key, kept in self._kept.items() if kept[1] >= since_s}
        while self._kept and sum(len(kept[2]) for kept in self._kept.values()) + size > KEPT_BYTES_MAX:
            del self._kept[next(iter(self._kept))]


# What of questions about telemetry belongs into the audit chain? Each one that another hub asks: answered, or refused.


EXPRESSIONS_MAX, EXPRESSION_LENGTH_MAX = 16, 300  # of one entry
ACTOR_LENGTH_MAX = 100


def answered_draft(
    question: Question, asker: Requester, country: str, parts: Sequence[PartAccount], *, bytes_count: int
) -> Draft:
    """An answer that is about to leave, or whose parts are all refused. Figures only: no value, line or span."""
    refused_draft = [part.refused_rule for part in parts if part.refused_rule]
    details = _question_facts(question, asker) | {
        "bytes": bytes_count,
        "groups": sum(part.groups for part in parts),
        "points": sum(part.points for part in parts),
        "refused_rules": tuple(sorted(set(refused_draft))),
        "suppressed": sum(part.suppressed for part in parts),
    }
    if parts and len(refused_draft) == len(parts):
        return _draft_of(audit.TELEMETRY_REFUSED, "refused", question, asker, country, details)
    return _draft_of(audit.TELEMETRY_DISCLOSED, "allowed", question, asker, country, details)


def refused_draft(question: Question, asker: Requester, country: str, *, rule: str) -> Draft:
    """The whole question was turned down before anything was looked at, or because of what was found."""
    details = _question_facts(question, asker) | {"refused_rules": (rule,)}
    return _draft_of(audit.TELEMETRY_REFUSED, "refused", question, asker, country, details)


def turned_away_draft(asker: Requester, country: str, *, questions: int) -> Draft:
    """A hub asked more often than it may: so many questions were not looked at since the last such entry."""
    return Draft(
        audit.TELEMETRY_REFUSED,
        asker.hub_id,
        "refused",
        actor=asker.hub_id,
        countries=(country, asker.country) if asker.country else (country,),
        details={"hub": asker.hub_id, "questions": questions, "refused_rules": ("rate",)},
    )


def _question_facts(question: Question, asker: Requester) -> dict[str, Detail]:
    named = [text_of(part)[:EXPRESSION_LENGTH_MAX] for part in question.parts[:EXPRESSIONS_MAX]]
    return {"expressions": tuple(named), "hub": asker.hub_id, "parts": len(question.parts)}


def _draft_of(
    kind: str, verdict: str, question: Question, asker: Requester, country: str, details: dict[str, Detail]
) -> Draft:
    return Draft(
        kind,
        question.id[:ACTOR_LENGTH_MAX],
        verdict,
        actor=f"{asker.hub_id}:{question.requested_by[:ACTOR_LENGTH_MAX]}",
        authority=tenant_of(question.tenant),
        countries=(country, asker.country) if asker.country else (country,),
        details=details,
    )
