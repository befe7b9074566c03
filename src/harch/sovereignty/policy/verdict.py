"""What counts as a yes? The engine's answers become verdicts, and anything but exactly `true` is a no with a reason."""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import Struct

from harch.base.errors import HarchError

REASONS_MAX = 20
DETAIL_CHARS_MAX = 300


class Ground(StrEnum):
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


_BY_INPUT = frozenset({Ground.ALLOWED, Ground.DENIED, Ground.UNDEFINED, Ground.NOT_BOOLEAN, Ground.ENGINE_ERROR})
_BY_CHANCE = frozenset({Ground.CRASHED, Ground.TIMED_OUT, Ground.UNREADABLE, Ground.DISAGREEMENT})


class Answer(Struct, frozen=True):
    """What came back for one question: the engine's own words, or the fault that kept it from speaking."""

    text: str = ""
    fault: Ground | None = None
    detail: str = ""


class Verdict(Struct, frozen=True, kw_only=True):
    """One decision of one policy. `policy` is the digest of the bundle that was asked."""

    ground: Ground
    detail: str = ""
    reasons: tuple[str, ...] = ()
    policy: str = ""

    @property
    def allowed(self) -> bool:
        return self.ground is Ground.ALLOWED

    @property
    def is_fault(self) -> bool:
        """The policy did not speak: somebody should look at it."""
        return self.ground not in (Ground.ALLOWED, Ground.DENIED)

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


def read_verdict(answer: Answer, *, policy: str = "", reasons: Answer | None = None) -> Verdict:
    """The verdict behind an answer; `reasons` is what the policy said about why not, if it says anything."""
    if answer.fault is not None:
        return Verdict(ground=answer.fault, detail=answer.detail[:DETAIL_CHARS_MAX], policy=policy)
    ground, value = _value_of(answer.text)
    if ground is not None:
        return Verdict(ground=ground, detail=_shown(answer.text), policy=policy)
    if value is True:
        return Verdict(ground=Ground.ALLOWED, policy=policy)
    if value is False:
        return Verdict(ground=Ground.DENIED, reasons=read_reasons(reasons), policy=policy)
    return Verdict(ground=Ground.NOT_BOOLEAN, detail=f"it answered {_shown(answer.text)}", policy=policy)


def read_reasons(answer: Answer | None) -> tuple[str, ...]:
    """The strings of a `deny` set. A policy that explains badly is still obeyed, so nothing here is an error."""
    if answer is None or answer.fault is not None:
        return ()
    ground, value = _value_of(answer.text)
    if ground is not None or not isinstance(value, list):
        return ()
    return tuple(str(item)[:DETAIL_CHARS_MAX] for item in value[:REASONS_MAX])


def refusal(verdict: Verdict, what: str) -> HarchError:
    """The error for people. A no of the policy and a policy that failed are different codes: the fixes differ."""
    meta: dict[str, object] = {"rule": "policy", "ground": verdict.ground.value, "policy": verdict.policy}
    if verdict.ground is Ground.DISAGREEMENT:
        return HarchError(
            "E0933", f"{what}: {verdict.detail}", hint="`harch events` has the case; report it", meta=meta
        )
    if verdict.ground is Ground.DENIED:
        why = "; ".join(verdict.reasons) or "it gives no reason"
        return HarchError(
            "E0931", f"{what}: the policy says no: {why}", hint="`harch policy explain` shows every rule", meta=meta
        )
    said = f" ({verdict.detail})" if verdict.detail else ""
    passing = verdict.ground in (Ground.OVERLOADED, Ground.UNAVAILABLE)
    return HarchError(
        "E0932",
        f"{what}: {_FAULTS[verdict.ground]}{said}, and what is not a clear yes is a no",
        hint="try again in a moment" if passing else "`harch policy test BUNDLE` helps to find the rule",
        meta=meta,
        retry_after_s=2 if passing else None,
    )


_FAULTS = {
    Ground.UNDEFINED: "the policy is undefined for this input",
    Ground.NOT_BOOLEAN: "the policy answered neither true nor false",
    Ground.ENGINE_ERROR: "a rule of the policy ended in an error",
    Ground.UNREADABLE: "the policy's answer could not be read",
    Ground.CRASHED: "the policy crashed its worker",
    Ground.TIMED_OUT: "the policy took too long",
    Ground.OVERLOADED: "too many questions wait for the policy",
    Ground.UNAVAILABLE: "the policy worker is not running",
}


def _value_of(text: str) -> tuple[Ground | None, object]:
    if text == "undefined":
        return Ground.UNDEFINED, None
    if text.startswith(("<error>", "error")):
        return Ground.ENGINE_ERROR, None
    try:
        found = _decode_result(text)
    except (msgspec.DecodeError, RecursionError):
        return Ground.UNREADABLE, None
    if len(found.expressions) != 1:
        return Ground.UNREADABLE, None
    return None, found.expressions[0]


def _shown(text: str) -> str:
    return text if len(text) <= DETAIL_CHARS_MAX else f"{text[:DETAIL_CHARS_MAX]}…"
