"""Whose telemetry may a caller see and send? Alone everyone's who reaches the port; at a hub, those of the key."""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import httpx

from harch.base.errors import HarchError
from harch.base.ids import DEFAULT_TENANT
from harch.sentinel.http.permissions import OPERATORS, AccessScope, CallerRole
from harch.sentinel.model.labels import METRIC_NAME, Labels
from harch.sentinel.model.spans import Span
from harch.sentinel.store.write_request import WriteAuthorizer

TENANT_HEADER = "x-scope-orgid"
_LATER = frozenset({408, 425, 429})
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
REMEMBERED_MAX = 1024
FRESH_S = 3.0  # then the hub is asked again; with the time for an answer, a revoked key is refused within 5 s
ANSWER_S = 1.5
LATELY_S = 900.0  # while the hub does not answer, a key stays good that it knew so shortly before it fell silent,
OUTAGE_S_MAX = 12 * 3600.0  # for so long
PAUSE_S = 1.0  # a hub that does not answer is not asked again at once about keys that it knew


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `key_id` is what an audit calls them; both it and `name` are empty where nobody knows callers."""

    role: CallerRole
    tenant: str  # empty for those who may name any
    key_id: str = ""
    name: str = ""
    agents: frozenset[str] = frozenset()  # that connected to the hub with this key; of an agent's key alone

    @property
    def is_operator(self) -> bool:
        return self.role in OPERATORS

    @property
    def author(self) -> str:
        """Who did it, for those who read it later: the key's name and id."""
        return f"{self.name} ({self.key_id})" if self.name else self.key_id


ALONE = Caller(CallerRole.OPERATOR, "")  # whoever reaches a SENTINEL that runs alone
ANONYMOUS = Caller(CallerRole.VIEWER, "-")


class Authenticator(Protocol):
    async def caller(self, headers: Mapping[str, str]) -> Caller:
        """Raises E0101 or E0102."""
        ...


class OpenAuthenticator:
    """For a SENTINEL that runs alone on a loopback address: whoever reaches it may ask, as with Prometheus."""

    async def caller(self, headers: Mapping[str, str]) -> Caller:
        return ALONE


class TokenAuthenticator:
    """One token for everything, from a file: for a SENTINEL alone that listens beyond the machine."""

    def __init__(self, token: str) -> None:
        self._digest = hashlib.sha256(token.encode()).digest()

    async def caller(self, headers: Mapping[str, str]) -> Caller:
        token = token_in(headers)
        if not token:
            raise HarchError("E0101", "this call needs a token", hint="send it as `Authorization: Bearer …`")
        if hashlib.sha256(token.encode()).digest() != self._digest:
            raise HarchError("E0102", "unknown token")
        return ALONE


class HubAuthenticator:
    """Asks the hub whose key it is, again after some seconds, and anew when it has revoked one.

    While the hub does not answer, keys that it knew shortly before stay good, so that people can look at what happened:
    nobody can revoke one meanwhile. All others are refused, and so is a key that the hub once said is none.
    """

    def __init__(
        self,
        hub_url: str,
        own_token: str,
        monotonic_s: Callable[[], float],
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._url = f"{hub_url}/v1/sentinel/callers"
        self._own = hashlib.sha256(own_token.encode()).digest()
        self._monotonic_s = monotonic_s
        self._client = httpx.AsyncClient(
            timeout=ANSWER_S, trust_env=False, transport=transport, headers={"X-API-Key": own_token}
        )
        self._remembered: OrderedDict[bytes, tuple[float, Caller]] = OrderedDict()  # with the time of the answer
        self._lookups: dict[bytes, asyncio.Task[Caller]] = {}
        self._silent_until_s = -math.inf
        self._answered_s = monotonic_s()  # when the hub answered last, to anything
        self._revoked = 0

    async def caller(self, headers: Mapping[str, str]) -> Caller:
        token = token_in(headers)
        if not token:
            raise HarchError("E0101", "this call needs an API key", hint="send it as `Authorization: Bearer hsk_…`")
        digest = hashlib.sha256(token.encode()).digest()
        if digest == self._own:
            return Caller(CallerRole.HUB, "", key_id="sentinel")
        at_s, known = self._remembered.get(digest, (-math.inf, None))
        age_s = self._monotonic_s() - at_s
        if known is not None and age_s < FRESH_S:
            return known
        was_known_lately = (
            self._answered_s - at_s <= LATELY_S and self._monotonic_s() - self._answered_s <= OUTAGE_S_MAX
        )
        may_believe = known is not None and was_known_lately
        if known is not None and may_believe and self._monotonic_s() < self._silent_until_s:
            return known
        try:
            return await self._look_up_once(digest, token)
        except _NoAnswer as silence:
            if known is not None and may_believe:
                return known
            raise HarchError("E0802", silence.why, retry_after_s=5) from silence

    async def hub_answered(self, revoked: int) -> None:
        """The hub lives, and has revoked so many keys so far. If that are others than before, it says which stay good;
        without an answer none does."""
        self._answered_s = self._monotonic_s()
        if revoked == self._revoked:
            return
        requested = {caller.key_id for _, caller in self._remembered.values()}
        valid: frozenset[str] = frozenset()
        try:
            answer = await self._client.post(f"{self._url}/valid", json={"key_ids": sorted(requested)})
            if answer.status_code == httpx.codes.OK:
                valid = frozenset(answer.json()["key_ids"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            pass  # nobody is believed on the strength of no answer
        for digest in [one for one, (_, caller) in self._remembered.items() if caller.key_id in requested - valid]:
            del self._remembered[digest]
        self._revoked = revoked

    async def close(self) -> None:
        await self._client.aclose()

    async def _look_up_once(self, digest: bytes, token: str) -> Caller:
        """Of requests that come together with one key, the first asks for all of them."""
        lookup = self._lookups.get(digest)
        if lookup is None:
            lookup = self._lookups[digest] = asyncio.ensure_future(self._look_up(digest, token))
            lookup.add_done_callback(lambda done: (self._lookups.pop(digest), done.cancelled() or done.exception()))
        return await asyncio.shield(lookup)

    async def _look_up(self, digest: bytes, token: str) -> Caller:
        """Raises E0102 for a key that is none, _NoAnswer for a hub that is away, E0802 for one that refuses to say."""
        began_s = self._monotonic_s()
        try:
            answer = await self._client.post(self._url, json={"key": token})
        except httpx.HTTPError as problem:
            self._silent_until_s = self._monotonic_s() + PAUSE_S
            raise _NoAnswer("the hub that holds the keys does not answer") from problem
        if answer.status_code < 500:
            self._answered_s = self._monotonic_s()
        if answer.status_code in {400, 404}:
            self._remembered.pop(digest, None)
            raise HarchError("E0102", "unknown API key", hint="each hub has its own keys")
        if answer.status_code in _LATER or answer.status_code >= 500:
            self._silent_until_s = self._monotonic_s() + PAUSE_S
            raise _NoAnswer("the hub that holds the keys is not ready")
        if answer.status_code != httpx.codes.OK:
            raise HarchError("E0802", "the hub does not share its keys with SENTINEL", retry_after_s=5)
        caller = _caller_of(answer)
        self._remembered[digest] = (began_s, caller)
        self._remembered.move_to_end(digest)
        if len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)
        return caller


class _NoAnswer(Exception):
    """Nobody can say whose key it is, for now."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def _caller_of(answer: httpx.Response) -> Caller:
    """Raises E0802 for an answer that this release does not understand: nobody is let in on the strength of it."""
    try:
        reply = answer.json()
        role = CallerRole(reply["role"])
    except (ValueError, KeyError, TypeError) as problem:
        raise HarchError("E0802", "the hub's response could not be parsed", retry_after_s=5) from problem
    if role is CallerRole.HUB:
        raise HarchError("E0102", "no key has the role `hub`")
    tenant = "" if role in OPERATORS else str(reply.get("tenant", "")) or ANONYMOUS.tenant
    agents = reply.get("agents", ())
    return Caller(
        role,
        tenant,
        str(reply.get("key_id", "")),
        str(reply.get("name", "")),
        frozenset(str(one) for one in agents) if role is CallerRole.AGENT else frozenset(),
    )


def token_in(headers: Mapping[str, str]) -> str:
    bearer = headers.get("authorization", "")
    return headers.get("x-api-key", "") or (bearer[7:].strip() if bearer[:7].lower() == "bearer " else "")


def tenant_of(caller: Caller, headers: Mapping[str, str], scope: AccessScope = AccessScope.TENANT) -> str:
    """The tenant that the header names, if the caller may; its own without one."""
    if scope is AccessScope.NOTHING:
        return ANONYMOUS.tenant
    requested = headers.get(TENANT_HEADER, "")
    if requested and _TENANT.fullmatch(requested) is None:
        hint = "letters, digits, `.`, `_` and `-`, at most 64"
        raise HarchError("E0201", f"`{requested[:80]}` is not a tenant name", field="X-Scope-OrgID", hint=hint)
    if caller.is_operator:
        return requested or DEFAULT_TENANT
    if requested and requested != caller.tenant:
        if scope is AccessScope.WRITTEN and caller.role is CallerRole.AGENT:
            return requested  # it keeps the output of tasks for their tenants, and may read nothing in return
        raise HarchError("E0103", f"this key may not see the telemetry of tenant `{requested}`")
    return caller.tenant


# What may a caller write? Operators anything, agents what is about themselves, users nothing in HarchOS's own name.
#
# Rules run over the tenant `default`: whoever could write `up{job="harchos"}` there would forge an alert as well.


OWN = "harchos"  # how jobs and services of HarchOS begin
AGENT_SERIES = frozenset({"harchos-node", "harchos-gpu", "harchos-workload"})
AGENT_STREAMS = frozenset({"harchos-agent", "harchos-task"})
_PREFIXES = ("harch_", "harchos_")
_NAMES = frozenset(
    {
        "ALERTS",
        "ALERTS_FOR_STATE",
        "carbon_emissions_grams",
        "carbon_intensity_forecast_gco2_kwh",
        "carbon_intensity_gco2_kwh",
        "carbon_savings_grams",
        "energy_consumption_watts",
        "energy_renewable_percent",
        "sovereignty_compliance",
    }
)


def series_judge(caller: Caller, tenant: str) -> WriteAuthorizer | None:
    """For samples. None: whatever the caller writes is its own."""
    if caller.role is CallerRole.AGENT:
        return WriteAuthorizer(lambda own: _of_agent(caller, own, "instance", AGENT_SERIES))
    return (
        None
        if _is_free(caller, tenant)
        else WriteAuthorizer(_reserved, markers=(b"harch", *(one.encode() for one in _NAMES)))
    )


def check_stream(caller: Caller, tenant: str, stream: Labels) -> None:
    """For lines. Raises E0103."""
    own = dict(stream)
    if caller.role is CallerRole.AGENT:
        _of_agent(caller, own, "agent", AGENT_STREAMS)
    elif not _is_free(caller, tenant) and (why := _reserved(own)):
        raise HarchError("E0103", why, hint="use another `job`, or a key of your own tenant")


def check_span(caller: Caller, tenant: str, span: Span) -> None:
    """For spans. Raises E0103."""
    if caller.role is CallerRole.AGENT:
        _of_agent(caller, {"agent": str(dict(span.resource).get("agent", "")), "job": span.service}, "agent", _SERVICES)
    elif not _is_free(caller, tenant) and span.service.startswith(OWN):
        hint = "use another `service.name`, or a key of your own tenant"
        raise HarchError("E0103", f"spans of `{span.service[:80]}` are reserved for HarchOS", hint=hint)


_SERVICES = frozenset({"harchos-agent"})


def _is_free(caller: Caller, tenant: str) -> bool:
    return caller.is_operator or tenant != DEFAULT_TENANT


def _of_agent(caller: Caller, own: Mapping[str, str], label: str, jobs: frozenset[str]) -> str:
    """Raises E0103 for all of the request: an agent whose hub does not know it yet sends it again."""
    if own.get("job", "") in jobs and own.get(label, "") in caller.agents:
        return ""
    about = f"job `{own.get('job', '')[:80]}` and {label} `{own.get(label, '')[:80]}`"
    hint = "an agent's key may only send telemetry of agents that connected to the hub with it"
    raise HarchError("E0103", f"this key may not send telemetry of {about}", hint=hint)


def _reserved(own: Mapping[str, str]) -> str:
    name, job = own.get(METRIC_NAME, ""), own.get("job", "")
    if job.startswith(OWN):
        return f"`job` `{job[:80]}` is reserved for HarchOS"
    if name.startswith(_PREFIXES) or name in _NAMES:
        return f"`{name[:80]}` is reserved for HarchOS in the operators' tenant"
    return ""
