"""A small world for rules: answers by expression, samples in a list, a clock that stands."""

from __future__ import annotations

from collections.abc import Sequence

from harch.base.errors import HarchError
from harch.sentinel.rules.definitions import RuleGroup, RuleSample, Vector
from harch.sentinel.rules.evaluation import Evaluated, ScheduledEvaluation, Tools, evaluate_group
from harch.sentinel.rules.file import parse_rules
from harch.sentinel.rules.group_state import GroupState, fresh

MINUTE_MS = 60_000


class RuleWorld:
    """`answers` says what each expression gives; an expression that is missing fails."""

    def __init__(self, text: str) -> None:
        self.groups = parse_rules(text, name="test.yaml").groups
        self.answers: dict[str, Vector] = {}
        self.asked: list[tuple[str, int]] = []
        self.samples: list[RuleSample] = []
        self.states: dict[str, GroupState] = {group.name: fresh(group) for group in self.groups}
        self.history: list[RuleSample] = []
        self.refuses_samples = False

    def evaluate(self, expression: str, at_ms: int) -> Vector:
        self.asked.append((expression, at_ms))
        if expression not in self.answers:
            raise HarchError("E0201", f"no answer for {expression}")
        return self.answers[expression]

    def append(self, samples: Sequence[RuleSample]) -> None:
        if self.refuses_samples:
            raise HarchError("E1002", "no space left")
        self.samples += samples

    def for_states(self, alertname: str, since_ms: int) -> list[RuleSample]:
        return [s for s in self.history if dict(s.labels)["alertname"] == alertname and s.at_ms >= since_ms]

    def group(self, name: str = "g") -> RuleGroup:
        return next(group for group in self.groups if group.name == name)

    def turn(self, at_ms: int, *, missed: int = 0, name: str = "g") -> Evaluated:
        tools = Tools(evaluate=self.evaluate, append=self.append, elapsed_s=lambda: 0.0, for_states=self.for_states)
        return evaluate_group(self.group(name), self.states[name], ScheduledEvaluation(at_ms, missed), tools)
