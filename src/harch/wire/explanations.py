"""Why here, why not there, why not yet? Every answer of placement as values that CLI, API and console print."""

# harch: pure

from __future__ import annotations

from msgspec import Struct

from harch.base.rejection import RuleOutcome
from harch.wire.workloads import TaskPlacement


class Candidate(Struct, frozen=True, kw_only=True):
    """A node that could take a task, with the parts of its score; higher is better."""

    node_id: str
    gpus_free: int
    score: float
    parts: dict[str, float] = {}


class HubExplanation(Struct, frozen=True, kw_only=True):
    """One hub's answer. `source` is `live` for the hub that was asked, `summary` for what a peer last published."""

    hub_id: str
    country: str
    eligible: bool
    source: str
    age_s: float | None = None
    rules: tuple[RuleOutcome, ...] = ()
    never: bool = False  # a rule says no that waiting will not cure
    candidates: tuple[Candidate, ...] = ()


class Explanation(Struct, frozen=True, kw_only=True):
    """A verdict in one sentence, then every hub and every rule.

    `verdict`: placed, fits_now, must_wait, never_fits or finished.
    """

    subject: str
    verdict: str
    sentence: str
    hubs: tuple[HubExplanation, ...] = ()
    turn: str = ""  # where it stands in the queue
    kept_free: str = ""  # what is reserved for it, or before it
    decision: dict[str, float] = {}  # the parts of the score that its node had, if placed
    predicted_slowdown: float | None = None  # modelled, against the best that so many GPUs of this hub could have
    runner_hub: str = ""  # that has it, or had it last, if it is not the asked one
    power: tuple[str, ...] = ()  # where and when it runs for cleaner power, and what that rests on
    placement: tuple[TaskPlacement, ...] = ()

    @property
    def nearest_fix(self) -> str:
        """The smallest change that would let the asked hub start it; empty if it says yes, or has no such thing."""
        rules = (rule for hub in self.hubs if hub.source == "live" for rule in hub.rules)
        return next((rule.nearest_fix for rule in rules if not rule.passed), "")
