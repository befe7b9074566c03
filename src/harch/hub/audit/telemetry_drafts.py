"""What of questions about telemetry belongs into the audit chain? Each one that another hub asks: told, or refused."""

from __future__ import annotations

from collections.abc import Sequence

from harch.hub.audit.drafts import tenant_of
from harch.sentinel.federated.account import PartAccount, text_of
from harch.sentinel.federated.messages import Asker, Question
from harch.sovereignty.audit import entry as audit
from harch.sovereignty.audit.entry import Detail, Draft

EXPRESSIONS_MAX, EXPRESSION_LENGTH_MAX = 16, 300  # of one entry
ASKED_BY_LENGTH_MAX = 100


def told(question: Question, asker: Asker, country: str, parts: Sequence[PartAccount], *, bytes_count: int) -> Draft:
    """An answer that is about to leave, or whose parts are all refused. Figures only: no value, line or span."""
    refused = [part.refused_rule for part in parts if part.refused_rule]
    details = _facts(question, asker) | {
        "bytes": bytes_count,
        "groups": sum(part.groups for part in parts),
        "points": sum(part.points for part in parts),
        "refused_rules": tuple(sorted(set(refused))),
        "suppressed": sum(part.suppressed for part in parts),
    }
    if parts and len(refused) == len(parts):
        return _of(audit.TELEMETRY_REFUSED, "refused", question, asker, country, details)
    return _of(audit.TELEMETRY_TOLD, "allowed", question, asker, country, details)


def refused(question: Question, asker: Asker, country: str, *, rule: str) -> Draft:
    """The whole question was turned down before anything was looked at, or because of what was found."""
    details = _facts(question, asker) | {"refused_rules": (rule,)}
    return _of(audit.TELEMETRY_REFUSED, "refused", question, asker, country, details)


def turned_away(asker: Asker, country: str, *, questions: int) -> Draft:
    """A hub asked more often than it may: so many questions were not looked at since the last such entry."""
    return Draft(
        audit.TELEMETRY_REFUSED,
        asker.hub_id,
        "refused",
        actor=asker.hub_id,
        countries=(country, asker.country) if asker.country else (country,),
        details={"hub": asker.hub_id, "questions": questions, "refused_rules": ("rate",)},
    )


def _facts(question: Question, asker: Asker) -> dict[str, Detail]:
    named = [text_of(part)[:EXPRESSION_LENGTH_MAX] for part in question.parts[:EXPRESSIONS_MAX]]
    return {"expressions": tuple(named), "hub": asker.hub_id, "parts": len(question.parts)}


def _of(kind: str, verdict: str, question: Question, asker: Asker, country: str, details: dict[str, Detail]) -> Draft:
    return Draft(
        kind,
        question.id[:ASKED_BY_LENGTH_MAX],
        verdict,
        actor=f"{asker.hub_id}:{question.asked_by[:ASKED_BY_LENGTH_MAX]}",
        authority=tenant_of(question.tenant),
        countries=(country, asker.country) if asker.country else (country,),
        details=details,
    )
