"""Should a canary become active, or go? What all THINK workers say of it, against the rules of its model. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct

from harch.pipelines.spec.settings import PipelineSpec
from harch.pipelines.think.settings import ModelRole, ModelSettings, PromoteRules
from harch.pipelines.workers.telemetry import WorkerStatus

_CANARY, _ACTIVE, _RETIRED = "canary", "active", "retired"


class Promotion(Struct, frozen=True, kw_only=True):
    """`role` is what the version gets: `active`, or `retired`."""

    model: str
    version: str
    role: str
    reason: str


class PromotionDecision(Struct, frozen=True):
    """`since_s`: since when each canary is one at all workers, on the clock of whoever decides."""

    since_s: dict[str, float]
    promotions: tuple[Promotion, ...]


def decide_promotion(
    spec: PipelineSpec, statuses: Collection[WorkerStatus], since_s: Mapping[str, float], now_s: float
) -> PromotionDecision:
    """Models without `promote` are left to people. A worker that has not said anything yet holds a decision up."""
    reported = [one for one in statuses if one.stage in ("think", "fused")]
    after: dict[str, float] = {}
    found: list[Promotion] = []
    for model in spec.think.models if spec.think is not None else ():
        if model.promote is None or not reported:
            continue
        canary = next((one.version for one in model.versions if one.role is ModelRole.CANARY), None)
        if canary is None:
            found += _taken_back(model, reported)
            continue
        name = f"{model.name}@{canary}"
        states = [one.details.get(f"model.{name}") for one in reported]
        if _RETIRED in states:
            found.append(_out(model, canary, "demoted by a `rollback` rule"))
        elif all(state == _CANARY for state in states):
            after[name] = since_s.get(name, now_s)
            found += _judged(model, model.promote, canary, reported, now_s - after[name])
    return PromotionDecision(after, tuple(found))


def _judged(
    model: ModelSettings, rules: PromoteRules, version: str, reported: list[WorkerStatus], age_s: float
) -> list[Promotion]:
    def total(what: str) -> int:
        return sum(one.counters.get(f"canary.{model.name}@{version}.{what}", 0) for one in reported)

    rows, bad, compared, disagreed = total("rows"), total("bad"), total("compared"), total("disagreed")
    if age_s < rules.after_s or rows < rules.rows_min:
        return []
    errors = 100 * bad / rows
    if errors > rules.errors_percent_max:
        return [_out(model, version, f"{errors:.2f} % of {rows} rows failed, more than {rules.errors_percent_max:g} %")]
    limit = rules.disagreement_percent_max
    if limit is not None and not compared:
        return []  # nothing was there to compare with yet
    differs = 100 * disagreed / compared if compared else 0.0
    if limit is not None and differs > limit:
        return [_out(model, version, f"{differs:.2f} % of {compared} rows disagree, more than {limit:g} %")]
    words = f"{rows} rows in {age_s:.0f} s, {errors:.2f} % failed"
    words += f", {differs:.2f} % disagree" if limit is not None else ""
    return [Promotion(model=model.name, version=version, role=_ACTIVE, reason=words)]


def _taken_back(model: ModelSettings, reported: list[WorkerStatus]) -> list[Promotion]:
    """The active version was rolled back by every worker: what answers there is what should be active."""
    active = next((one.version for one in model.versions if one.role is ModelRole.ACTIVE), None)
    if active is None or any(one.details.get(f"model.{model.name}@{active}") != _RETIRED for one in reported):
        return []
    for version in model.versions:
        states = [one.details.get(f"model.{model.name}@{version.version}") for one in reported]
        if version.version != active and all(state == _ACTIVE for state in states):
            why = f"{active} was rolled back by all workers"
            return [
                Promotion(model=model.name, version=version.version, role=_ACTIVE, reason=why),
                _out(model, active, "demoted by a `rollback` rule"),
            ]
    return []


def _out(model: ModelSettings, version: str, reason: str) -> Promotion:
    return Promotion(model=model.name, version=version, role=_RETIRED, reason=reason)
