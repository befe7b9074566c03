"""How is one question asked of several hubs?

Cut here, asked everywhere at once, joined here; what is missing is said.

Without `partial_response=true` a hub that refuses or does not answer fails the question, with its name and its reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import msgspec

from harch.base.clock import Clock
from harch.base.errors import REGISTRY, HarchError
from harch.base.ids import new_id
from harch.sentinel.federated.messages import FederatedAnswer, InboundQuestion, Part, Question, Requester
from harch.sentinel.http.federated.disclosure import Owner
from harch.sentinel.http.messages import TelemetryRequest, parse_step_ms

HUBS_MAX = 64
AT_ONCE_MAX = 64  # calls to the own hub; what is beyond waits
GRACE_S = 3.0  # the hub gives up first, and says why
TOGETHER_BYTES_MAX = 48 << 20  # of the answers to one question: unpacked they take several times as much

_CUT_OFF: dict[str, Any] = {"reachable": False, "why": "the local hub, which relays to it, is down"}
_encode = msgspec.json.Encoder().encode
_answer = msgspec.msgpack.Decoder(FederatedAnswer).decode


class PeerHub(msgspec.Struct, frozen=True, kw_only=True):
    """A hub of the federation, as the own one sees it. `country` is empty while it is unknown."""

    hub_id: str
    country: str
    own: bool
    reachable: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class QueriedHubs:
    """The hubs that a question is for, and the country of the one that asks."""

    hubs: tuple[PeerHub, ...]
    own_country: str

    @property
    def is_cross_border(self) -> bool:
        """Whether one of them lies in another country; one whose country is not known does."""
        return any(self.is_across_border(hub) for hub in self.hubs)

    def is_across_border(self, hub: PeerHub) -> bool:
        return not hub.own and (not hub.country or hub.country != self.own_country)


class _PeerHubs(msgspec.Struct, frozen=True):
    items: list[PeerHub]


_hubs = msgspec.json.Decoder(_PeerHubs).decode


@dataclass(frozen=True, slots=True)
class HubReply:
    """What became of a question at one hub: an answer or an error."""

    hub: PeerHub
    answer: FederatedAnswer | None = None
    error: HarchError | None = None


class _Room:
    """What is left of the bytes that answers may have together."""

    def __init__(self, left: int) -> None:
        self._left = left

    def takes(self, size: int) -> bool:
        self._left -= size
        return self._left >= 0


class HubCarrier:
    """`token` is the key that SENTINEL shares with its hub."""

    def __init__(self, hub_url: str, token: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        limits = httpx.Limits(max_connections=AT_ONCE_MAX)
        headers = {"X-API-Key": token}
        self._client = httpx.AsyncClient(
            base_url=f"{hub_url}/v1/sentinel", trust_env=False, transport=transport, limits=limits, headers=headers
        )
        self._known: list[PeerHub] = []  # as the own hub named them last

    async def hubs(self, wanted: str) -> QueriedHubs:
        """The hubs that `wanted` names, the own one among them if it is meant. Raises E0699 for an unknown name.

        While the own hub is away, nobody else can be asked; its own telemetry is here, and is returned all the same.
        """
        try:
            answer = await self._client.get("/hubs", timeout=5)
            answer.raise_for_status()
            found = self._known = _hubs(answer.content).items[:HUBS_MAX]
        except (httpx.HTTPError, msgspec.DecodeError) as problem:
            if not self._known:
                raise HarchError("E0698", "the local hub does not list the hubs", retry_after_s=5) from problem
            found = [hub if hub.own else msgspec.structs.replace(hub, **_CUT_OFF) for hub in self._known]
        country = next((hub.country for hub in found if hub.own), "")
        names = {name.strip() for name in wanted.split(",")} - {""}
        if names == {"all"}:
            return QueriedHubs(tuple(found), country)
        known = {hub.hub_id for hub in found}
        if unknown := sorted(names - known):
            hint = f"use `all`, or names of: {', '.join(sorted(known))}"
            raise HarchError("E0699", f"no hub named `{unknown[0][:64]}`", field="hubs", hint=hint)
        return QueriedHubs(tuple(hub for hub in found if hub.hub_id in names), country)

    async def query_hubs(self, hubs: Sequence[PeerHub], question: Question, *, within_s: float) -> list[HubReply]:
        """Every hub at once; each has the same time. Never raises: an error is what that hub said."""
        room = _Room(TOGETHER_BYTES_MAX)
        return await asyncio.gather(*(self._query_hub(hub, question, within_s, room) for hub in hubs))

    async def close(self) -> None:
        await self._client.aclose()

    async def _query_hub(self, hub: PeerHub, question: Question, within_s: float, room: _Room) -> HubReply:
        if not hub.reachable:
            return HubReply(hub, error=HarchError("E0698", f"hub {hub.hub_id} does not answer: {hub.why}"))
        body = {"hub_id": hub.hub_id, "question": question, "within_s": within_s}
        try:
            response = await self._client.post("/questions", content=_encode(body), timeout=within_s + GRACE_S)
            if response.status_code != httpx.codes.OK:
                return HubReply(hub, error=_error_of(hub, response))
            if not room.takes(len(response.content)):
                why = f"all responses together exceed {TOGETHER_BYTES_MAX} bytes; hub {hub.hub_id} is omitted"
                return HubReply(hub, error=HarchError("E0661", why, hint="aggregate more, or query fewer hubs"))
            answer = await asyncio.to_thread(_answer, response.content)  # megabytes would hold up everything else
        except httpx.HTTPError as problem:
            why = f"hub {hub.hub_id} does not answer: the local hub did not relay the query ({problem})"
            return HubReply(hub, error=HarchError("E0698", why))
        except msgspec.DecodeError:
            return HubReply(
                hub, error=HarchError("E0698", f"hub {hub.hub_id} returned a response that could not be parsed")
            )
        belongs = (answer.question_id, answer.hub_id, len(answer.results)) == (
            question.id,
            hub.hub_id,
            len(question.parts),
        )
        if not belongs:
            return HubReply(hub, error=HarchError("E0698", f"hub {hub.hub_id} answered a different query"))
        return HubReply(hub, answer=answer)


def _error_of(hub: PeerHub, response: httpx.Response) -> HarchError:
    try:
        error = response.json()["error"]
        code, message, hint = str(error["code"]), str(error["message"]), str(error.get("hint", ""))
    except (ValueError, KeyError, TypeError):
        code, message, hint = "", f"status {response.status_code}", ""
    named = message if hub.hub_id in message else f"hub {hub.hub_id}: {message}"
    return HarchError(code if code in REGISTRY else "E0698", named, hint=hint)


QUESTIONS_AT_ONCE = 16
THREADS = 2  # of their own: a question that waits for hubs holds no thread that answers one of theirs
WITHIN_S, WITHIN_S_MAX = 10.0, 60.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HubReplies:
    """What the hubs said to all parts. `own` is this hub's answer, if it was asked; `problems` say what is missing."""

    answers: tuple[FederatedAnswer, ...]
    own: FederatedAnswer | None
    problems: tuple[HarchError, ...]
    warnings: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """All that has to be said about what is missing."""
        return (*(problem.message for problem in self.problems), *self.warnings)

    @property
    def everyone(self) -> tuple[FederatedAnswer, ...]:
        return (*((self.own,) if self.own is not None else ()), *self.answers)


class OverHubs:
    """Asks and waits; what the parts mean is for those who ask."""

    def __init__(self, carrier: HubCarrier, owner: Owner, clock: Clock) -> None:
        self._carrier, self._owner, self._clock = carrier, owner, clock
        self._threads = ThreadPoolExecutor(THREADS, "sentinel-over-hubs")
        self._open = 0

    async def hubs(self, request: TelemetryRequest) -> QueriedHubs:
        return await self._carrier.hubs(request.hubs)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """For what takes long: parsing, and joining answers."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def query_hubs(
        self, request: TelemetryRequest, inquiry: QueriedHubs, parts: Sequence[Part], *, stays_home: str = ""
    ) -> HubReplies:
        """Raises E0697 or E0698 for the first hub that tells nothing, unless a part of the answer is enough.

        `stays_home` names what no hub tells abroad: then hubs abroad are not asked, because a question for single
        lines or spans may say as much as they do.
        """
        if self._open >= QUESTIONS_AT_ONCE:
            hint = "reduce the query, and try again in a moment"
            raise HarchError("E0676", "too many federated queries in progress", hint=hint, retry_after_s=1)
        self._open += 1
        try:
            return await self._query_hubs(request, inquiry, tuple(parts), stays_home)
        finally:
            self._open -= 1

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._carrier.close()

    async def _query_hubs(
        self, request: TelemetryRequest, inquiry: QueriedHubs, parts: tuple[Part, ...], stays_home: str
    ) -> HubReplies:
        question = Question(
            id=new_id("q", now=self._clock.now()),
            tenant=request.tenant,
            requested_by=request.caller.key_id or "-",
            parts=parts,
        )
        within_s = _within_s(request)
        mine = next((hub for hub in inquiry.hubs if hub.own), None)
        spared = [hub for hub in inquiry.hubs if stays_home and inquiry.is_across_border(hub)]
        others = [hub for hub in inquiry.hubs if not hub.own and hub not in spared]
        hub_replies, own = await asyncio.gather(
            self._carrier.query_hubs(others, question, within_s=within_s), self._own(mine, question, within_s, request)
        )
        skipped = [HubReply(hub, error=_not_queried(hub, stays_home)) for hub in spared]
        replies = _combine([*hub_replies, *skipped, *((own,) if own is not None else ())], mine)
        if replies.problems and not request.flag("partial_response"):
            raise _whole(replies.problems)
        return replies

    async def _own(
        self, hub: PeerHub | None, question: Question, within_s: float, request: TelemetryRequest
    ) -> HubReply | None:
        if hub is None:
            return None
        here = Requester(hub_id=hub.hub_id, country=hub.country)
        inquiry = InboundQuestion(question=question, asker=here, here=here, within_s=within_s)
        try:
            answer = await self.in_thread(
                lambda: self._owner.own(inquiry, now_ms=request.now_ms, is_gone=request.is_gone)
            )
            return HubReply(hub, answer=answer)
        except HarchError as error:
            return HubReply(hub, error=error)


def _not_queried(hub: PeerHub, what: str) -> HarchError:
    place = hub.country or "an unknown country"
    return HarchError("E0697", f"hub {hub.hub_id} is in {place} and was not queried: {what} do not cross a border")


def _within_s(request: TelemetryRequest) -> float:
    text = request.one("timeout")
    return min(parse_step_ms(text, "timeout") / 1000, WITHIN_S_MAX) if text else WITHIN_S


def _combine(hub_replies: Sequence[HubReply], mine: PeerHub | None) -> HubReplies:
    problems, warnings = [], []
    for one in hub_replies:
        if one.error is not None:
            problems.append(one.error)
        for result in one.answer.results if one.answer is not None else ():
            if result.refused is not None:
                no = result.refused
                fix = f"; {no.nearest_fix}" if no.nearest_fix else ""
                message = f"hub {one.hub.hub_id} refused, rule `{no.rule}`: {no.detail}{fix}"
                problems.append(HarchError("E0697", message, hint=no.nearest_fix))
            if result.suppressed:
                groups = "1 group" if result.suppressed == 1 else f"{result.suppressed} groups"
                warnings.append(f"hub {one.hub.hub_id} withheld {groups} with too few sources")
            if result.body:  # series tell their warnings when they are joined
                warnings += [f"hub {one.hub.hub_id}: {text}" for text in result.warnings]
    return HubReplies(
        answers=tuple(one.answer for one in hub_replies if one.answer is not None and one.hub is not mine),
        own=next((one.answer for one in hub_replies if one.hub is mine), None),
        problems=tuple({problem.message: problem for problem in problems}.values()),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _whole(problems: Sequence[HarchError]) -> HarchError:
    """One error for all of them; a refusal is reported before a silence, because waiting does not help against it."""
    first = min(problems, key=lambda problem: problem.code)
    rest = f" (and {len(problems) - 1} more hubs or parts)" if len(problems) > 1 else ""
    hint = "; ".join(text for text in (first.hint, "`partial_response=true` returns what the others answered") if text)
    return HarchError(first.code, first.message + rest, hint=hint, retry_after_s=first.retry_after_s)
