"""Why here, why not there, why not yet? Every answer of placement as values that CLI, API and console print."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from harch.base.rejection import RuleOutcome


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
    age_s: float | None
    rules: tuple[RuleOutcome, ...]
    never: bool = False  # a rule says no that waiting will not cure
    candidates: tuple[Candidate, ...] = ()


class Verdict(StrEnum):
    PLACED = "placed"
    FITS_NOW = "fits_now"
    MUST_WAIT = "must_wait"
    NEVER_FITS = "never_fits"
    FINISHED = "finished"


class Explanation(Struct, frozen=True, kw_only=True):
    """The whole story of one workload: a verdict in one sentence, then every hub and every rule."""

    subject: str
    verdict: Verdict
    sentence: str
    hubs: tuple[HubExplanation, ...]
    turn: str = ""  # where it stands in the queue
    kept_free: str = ""  # what is reserved for it, or before it
    decision: dict[str, float] = {}  # the parts of the score that its node had, if placed
    predicted_slowdown: float | None = None  # modelled, against the best that so many GPUs of this hub could have
    runner_hub: str = ""  # that has it, or had it last, if it is not the asked one
    power: tuple[str, ...] = ()  # where and when it runs for cleaner power, and what that rests on
    placement: tuple[dict[str, object], ...] = ()  # rank, node_id, gpu_ids of each task, if placed
