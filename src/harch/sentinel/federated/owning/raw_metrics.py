"""What does a part say inside of a jurisdiction? Its value, as it is."""

from __future__ import annotations

from harch.base.errors import HarchError
from harch.sentinel.federated.messages import MetricPart, Told
from harch.sentinel.federated.owning.policy import TelemetryPolicy
from harch.sentinel.federated.owning.telling import refused, series_told
from harch.sentinel.model.selection import Queryable
from harch.sentinel.promql.evaluate.engine import Engine
from harch.sentinel.promql.evaluate.options import QueryOptions
from harch.sentinel.promql.evaluate.results import MatrixResult


def raw_metrics(
    part: MetricPart, store: Queryable, policy: TelemetryPolicy, engine: Engine, options: QueryOptions
) -> Told:
    """The series of a part, single ones too. An error of the query is a refusal with its words."""
    settled = QueryOptions(part.lookback_ms, options.timeout_s, options.is_cancelled)
    try:
        result = engine.range(part.expression, part.start_ms, part.end_ms, part.step_ms or 1, store, settled)
    except HarchError as error:
        return refused(part.expression, error.code, error.message, error.hint or "")
    value = result.value
    if not isinstance(value, MatrixResult):
        return refused(part.expression, "type", "a part is a vector or a number", "ask for an instant vector")
    if int(value.present.sum()) > policy.points_max:
        points = f"{int(value.present.sum())} points, {policy.points_max} allowed"
        return refused(part.expression, "size", points, "aggregate, widen the step or shorten the range")
    return Told(series=series_told(value), warnings=(*result.warnings, *result.infos))
