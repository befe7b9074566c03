"""How does HarchOS say no? One value for every refusal, whoever refuses; people are never answered a bare False."""

from __future__ import annotations

from msgspec import Struct


class Rejection(Struct, frozen=True):
    """One "no": who says it, by which rule, in numbers, and the smallest change that would turn it into a "yes"."""

    subject: str
    rule: str
    detail: str
    nearest_fix: str = ""


class RuleOutcome(Struct, frozen=True, kw_only=True):
    """One hard rule applied to one subject. A subject is shown with all its rules, passed or not."""

    rule: str
    passed: bool
    detail: str
    nearest_fix: str = ""


def rejected(subject: str, outcomes: tuple[RuleOutcome, ...]) -> tuple[Rejection, ...]:
    """The rules that said no, as rejections of `subject`."""
    return tuple(
        Rejection(subject, outcome.rule, outcome.detail, outcome.nearest_fix)
        for outcome in outcomes
        if not outcome.passed
    )
