"""What counts as a yes? The engine's answers become verdicts, and anything but exactly `true` is a no with a reason."""

# harch: pure

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import Struct

from harch.base.errors import HarchError

REASONS_MAX = 20
DETAIL_CHARS_MAX = 300


class VerdictGround(StrEnum):
    """Why the verdict is what it is. Only `allowed` and `denied` are words of the policy; the rest are faults."""

    ALLOWED = "allowed"
    DENIED = "denied"
    UNDEFINED = "undefined"
    NOT_BOOLEAN = "not_boolean"
    ENGINE_ERROR = "engine_error"
    UNREADABLE = "unreadable"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"
    DISAGREEMENT = "disagreement"


_BY_INPUT = frozenset(
    {
        VerdictGround.ALLOWED,
        VerdictGround.DENIED,
        VerdictGround.UNDEFINED,
        VerdictGround.NOT_BOOLEAN,
        VerdictGround.ENGINE_ERROR,
    }
)
_BY_CHANCE = frozenset(
    {VerdictGround.CRASHED, VerdictGround.TIMED_OUT, VerdictGround.UNREADABLE, VerdictGround.DISAGREEMENT}
)


class PolicyAnswer(Struct, frozen=True):
    """What came back for one question: the engine's own words, or the fault that kept it from speaking."""

    text: str = ""
    fault: VerdictGround | None = None
    detail: str = ""


class PolicyVerdict(Struct, frozen=True, kw_only=True):
    """One decision of one policy. `policy` is the digest of the bundle that was asked."""

    ground: VerdictGround
    detail: str = ""
    reasons: tuple[str, ...] = ()
    policy: str = ""

    @property
    def allowed(self) -> bool:
        return self.ground is VerdictGround.ALLOWED

    @property
    def is_fault(self) -> bool:
        """The policy did not speak: somebody should look at it."""
        return self.ground not in (VerdictGround.ALLOWED, VerdictGround.DENIED)

    @property
    def follows_from_input(self) -> bool:
        """The same question would get the same answer, so it may be remembered for as long as the policy stays."""
        return self.ground in _BY_INPUT

    @property
    def worth_avoiding(self) -> bool:
        """Asking again soon would likely cost another worker."""
        return self.ground in _BY_CHANCE


class _Result(Struct, forbid_unknown_fields=True):
    expressions: list[object]


_decode_result = msgspec.json.Decoder(_Result).decode


def read_verdict(answer: PolicyAnswer, *, policy: str = "", reasons: PolicyAnswer | None = None) -> PolicyVerdict:
    """The verdict behind an answer; `reasons` is what the policy said about why not, if it says anything."""
    if answer.fault is not None:
        return PolicyVerdict(ground=answer.fault, detail=answer.detail[:DETAIL_CHARS_MAX], policy=policy)
    ground, value = _value_of(answer.text)
    if ground is not None:
        return PolicyVerdict(ground=ground, detail=_excerpt(answer.text), policy=policy)
    if value is True:
        return PolicyVerdict(ground=VerdictGround.ALLOWED, policy=policy)
    if value is False:
        return PolicyVerdict(ground=VerdictGround.DENIED, reasons=read_reasons(reasons), policy=policy)
    return PolicyVerdict(ground=VerdictGround.NOT_BOOLEAN, detail=f"it returned {_excerpt(answer.text)}", policy=policy)


def read_reasons(answer: PolicyAnswer | None) -> tuple[str, ...]:
    """The strings of a `deny` set. A policy that explains badly is still obeyed, so nothing here is an error."""
    if answer is None or answer.fault is not None:
        return ()
    ground, value = _value_of(answer.text)
    if ground is not None or not isinstance(value, list):
        return ()
    return tuple(str(item)[:DETAIL_CHARS_MAX] for item in value[:REASONS_MAX])


def refusal(verdict: PolicyVerdict, what: str) -> HarchError:
    """The error for people. A no of the policy and a policy that failed are different codes: the fixes differ."""
    meta: dict[str, object] = {"rule": "policy", "ground": verdict.ground.value, "policy": verdict.policy}
    if verdict.ground is VerdictGround.DISAGREEMENT:
        return HarchError(
            "E0933", f"{what}: {verdict.detail}", hint="`harch events` has the case; report it as a bug", meta=meta
        )
    if verdict.ground is VerdictGround.DENIED:
        why = "; ".join(verdict.reasons) or "no reason given"
        return HarchError(
            "E0931", f"{what}: denied by policy: {why}", hint="`harch policy explain` shows every rule", meta=meta
        )
    detail = f" ({verdict.detail})" if verdict.detail else ""
    passing = verdict.ground in (VerdictGround.OVERLOADED, VerdictGround.UNAVAILABLE)
    return HarchError(
        "E0932",
        f"{what}: {_FAULTS[verdict.ground]}{detail}, and anything but a clear yes is denied",
        hint="try again in a moment" if passing else "find the rule with `harch policy test BUNDLE`",
        meta=meta,
        retry_after_s=2 if passing else None,
    )


_FAULTS = {
    VerdictGround.UNDEFINED: "the policy is undefined for this input",
    VerdictGround.NOT_BOOLEAN: "the policy returned neither true nor false",
    VerdictGround.ENGINE_ERROR: "a policy rule failed",
    VerdictGround.UNREADABLE: "the policy's response could not be read",
    VerdictGround.CRASHED: "the policy crashed its worker",
    VerdictGround.TIMED_OUT: "the policy took too long",
    VerdictGround.OVERLOADED: "the policy queue is full",
    VerdictGround.UNAVAILABLE: "the policy worker is not running",
}


def _value_of(text: str) -> tuple[VerdictGround | None, object]:
    if text == "undefined":
        return VerdictGround.UNDEFINED, None
    if text.startswith(("<error>", "error")):
        return VerdictGround.ENGINE_ERROR, None
    try:
        found = _decode_result(text)
    except (msgspec.DecodeError, RecursionError):
        return VerdictGround.UNREADABLE, None
    if len(found.expressions) != 1:
        return VerdictGround.UNREADABLE, None
    return None, found.expressions[0]


def _excerpt(text: str) -> str:
    return text if len(text) <= DETAIL_CHARS_MAX else f"{text[:DETAIL_CHARS_MAX]}…"
