"""How does HarchOS say no? One value for every refusal, whoever refuses; people are never answered a bare False."""

from __future__ import annotations

from msgspec import Struct


class Rejection(Struct, frozen=True):
    """One "no": who says it, by which rule, in numbers, and the smallest change that would turn it into a "yes"."""

    subject: str
    rule: str
    detail: str
    nearest_fix: str = ""


NEAR_SHARE = 0.25


class RuleOutcome(Struct, frozen=True, kw_only=True):
    """One hard rule applied to one subject. A subject is shown with all its rules, passed or not.

    `needed` and `available` are there where a rule compares two quantities.
    """

    rule: str
    passed: bool
    detail: str
    nearest_fix: str = ""
    needed: float | None = None
    available: float | None = None

    @property
    def is_near(self) -> bool:
        """It passes, with less than a quarter of what is needed to spare."""
        if not self.passed or self.needed is None or self.available is None:
            return False
        return self.needed > 0 and self.available < self.needed * (1 + NEAR_SHARE)


def rejected(subject: str, outcomes: tuple[RuleOutcome, ...]) -> tuple[Rejection, ...]:
    """The rules that said no, as rejections of `subject`."""
    return tuple(
        Rejection(subject, outcome.rule, outcome.detail, outcome.nearest_fix)
        for outcome in outcomes
        if not outcome.passed
    )
