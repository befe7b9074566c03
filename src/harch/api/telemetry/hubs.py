"""How does SENTINEL ask the other hubs? Through its own hub, which knows them and has links to them; all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from harch.base.errors import REGISTRY, HarchError
from harch.sentinel.federated.messages import Answer, Question

HUBS_MAX = 64
AT_ONCE_MAX = 64  # calls to the own hub; what is beyond waits
GRACE_S = 3.0  # the hub gives up first, and says why
TOGETHER_BYTES_MAX = 48 << 20  # of the answers to one question: unpacked they take several times as much

_CUT_OFF: dict[str, Any] = {"reachable": False, "why": "the own hub, which would ask it, is away"}
_encode = msgspec.json.Encoder().encode
_answer = msgspec.msgpack.Decoder(Answer).decode


class HubAround(msgspec.Struct, frozen=True, kw_only=True):
    """A hub of the federation, as the own one sees it. `country` is empty while it is unknown."""

    hub_id: str
    country: str
    own: bool
    reachable: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class HubsAsked:
    """The hubs that a question is for, and the country of the one that asks."""

    hubs: tuple[HubAround, ...]
    own_country: str

    @property
    def is_abroad(self) -> bool:
        """Whether one of them lies in another country; one whose country is not known does."""
        return any(self.lies_abroad(hub) for hub in self.hubs)

    def lies_abroad(self, hub: HubAround) -> bool:
        return not hub.own and (not hub.country or hub.country != self.own_country)


class _HubsAround(msgspec.Struct, frozen=True):
    items: list[HubAround]


_hubs = msgspec.json.Decoder(_HubsAround).decode


@dataclass(frozen=True, slots=True)
class HubSaid:
    """What became of a question at one hub: an answer or an error."""

    hub: HubAround
    answer: Answer | None = None
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
        self._known: list[HubAround] = []  # as the own hub named them last

    async def hubs(self, wanted: str) -> HubsAsked:
        """The hubs that `wanted` names, the own one among them if it is meant. Raises E0699 for an unknown name.

        While the own hub is away, nobody else can be asked; its own telemetry is here, and is told all the same.
        """
        try:
            answer = await self._client.get("/hubs", timeout=5)
            answer.raise_for_status()
            found = self._known = _hubs(answer.content).items[:HUBS_MAX]
        except (httpx.HTTPError, msgspec.DecodeError) as problem:
            if not self._known:
                raise HarchError("E0698", "the own hub does not say which hubs there are", retry_after_s=5) from problem
            found = [hub if hub.own else msgspec.structs.replace(hub, **_CUT_OFF) for hub in self._known]
        country = next((hub.country for hub in found if hub.own), "")
        names = {name.strip() for name in wanted.split(",")} - {""}
        if names == {"all"}:
            return HubsAsked(tuple(found), country)
        known = {hub.hub_id for hub in found}
        if strangers := sorted(names - known):
            hint = f"use `all`, or names of: {', '.join(sorted(known))}"
            raise HarchError("E0699", f"no hub is called `{strangers[0][:64]}`", field="hubs", hint=hint)
        return HubsAsked(tuple(hub for hub in found if hub.hub_id in names), country)

    async def ask(self, hubs: Sequence[HubAround], question: Question, *, within_s: float) -> list[HubSaid]:
        """Every hub at once; each has the same time. Never raises: an error is what that hub said."""
        room = _Room(TOGETHER_BYTES_MAX)
        return await asyncio.gather(*(self._said(hub, question, within_s, room) for hub in hubs))

    async def close(self) -> None:
        await self._client.aclose()

    async def _said(self, hub: HubAround, question: Question, within_s: float, room: _Room) -> HubSaid:
        if not hub.reachable:
            return HubSaid(hub, error=HarchError("E0698", f"hub {hub.hub_id} does not answer: {hub.why}"))
        body = {"hub_id": hub.hub_id, "question": question, "within_s": within_s}
        try:
            told = await self._client.post("/questions", content=_encode(body), timeout=within_s + GRACE_S)
            if told.status_code != httpx.codes.OK:
                return HubSaid(hub, error=_error_of(hub, told))
            if not room.takes(len(told.content)):
                why = f"all answers have more than {TOGETHER_BYTES_MAX} bytes; that of hub {hub.hub_id} is left out"
                return HubSaid(hub, error=HarchError("E0661", why, hint="aggregate more, or ask fewer hubs"))
            answer = await asyncio.to_thread(_answer, told.content)  # megabytes would hold up everything else
        except httpx.HTTPError as problem:
            why = f"hub {hub.hub_id} does not answer: the own hub does not carry the question ({problem})"
            return HubSaid(hub, error=HarchError("E0698", why))
        except msgspec.DecodeError:
            return HubSaid(hub, error=HarchError("E0698", f"hub {hub.hub_id} answers in words that are not known here"))
        belongs = (answer.question_id, answer.hub_id, len(answer.told)) == (
            question.id,
            hub.hub_id,
            len(question.parts),
        )
        if not belongs:
            return HubSaid(hub, error=HarchError("E0698", f"hub {hub.hub_id} answers another question"))
        return HubSaid(hub, answer=answer)


def _error_of(hub: HubAround, told: httpx.Response) -> HarchError:
    try:
        error = told.json()["error"]
        code, message, hint = str(error["code"]), str(error["message"]), str(error.get("hint", ""))
    except (ValueError, KeyError, TypeError):
        code, message, hint = "", f"status {told.status_code}", ""
    named = message if hub.hub_id in message else f"hub {hub.hub_id}: {message}"
    return HarchError(code if code in REGISTRY else "E0698", named, hint=hint)
