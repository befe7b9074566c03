"""What does the owner's audit learn of an answer? How much of each part was told, suppressed or refused; no value."""

from __future__ import annotations

from msgspec import Struct

from harch.sentinel.federated.messages import Answer, Asker, LogPart, Part, Question, Told, TracePart


class PartAccount(Struct, frozen=True, kw_only=True):
    """One part: series and points that were told, bytes of a body, groups left out, and the rule of a refusal."""

    groups: int = 0
    points: int = 0
    body_bytes: int = 0
    suppressed: int = 0
    refused_rule: str = ""


class Judged(Struct, frozen=True, kw_only=True):
    """What SENTINEL hands to its hub: the answer as bytes (msgpack of `Answer`), and what the hub writes down of it."""

    parts: tuple[PartAccount, ...]
    answer: bytes


class AskedHere(Struct, frozen=True, kw_only=True):
    """What a hub hands to its SENTINEL: a question, and who asks, by the link's certificate and the fleet file.

    `here` is the hub itself, as its fleet file names it.
    """

    question: Question
    asker: Asker
    here: Asker
    within_s: float


def account_of(answer: Answer) -> tuple[PartAccount, ...]:
    return tuple(_account(told) for told in answer.told)


def is_breach(part: Part, account: PartAccount) -> bool:
    """Whether lines or spans stand in this answer. The last look before a border: the policy should have refused it."""
    is_raw_kind = isinstance(part, LogPart) or (isinstance(part, TracePart) and part.kind != "statistics")
    return is_raw_kind and account.body_bytes > 0


def text_of(part: Part) -> str:
    """How the audit names a part."""
    if isinstance(part, TracePart):
        return " ".join(word for word in (part.kind, part.query, f"by {','.join(part.by)}" if part.by else "") if word)
    return part.expression


def _account(told: Told) -> PartAccount:
    return PartAccount(
        groups=len(told.series),
        points=sum(len(one.at) for one in told.series),
        body_bytes=len(told.body),
        suppressed=told.suppressed,
        refused_rule=told.refused.rule if told.refused is not None else "",
    )
