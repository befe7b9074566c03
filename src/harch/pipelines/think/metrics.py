"""Which numbers does THINK show? Rows by what became of them, and how each version does; read when somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from harch.pipelines.think.counters import VersionCounters
from harch.pipelines.think.stage import ThinkStage

_OUTCOMES = ("scored", "incomplete", "refused", "late", "failed", "unshadowed")
_VERSION_COUNTERS: tuple[tuple[str, str, Callable[[VersionCounters], float]], ...] = (
    ("harch_think_version_rows", "Rows that a version was asked about.", lambda total: total.rows),
    ("harch_think_version_batches", "Batches that a version ran.", lambda total: total.batches),
    ("harch_think_version_rows_bad", "Rows that failed, or came out as NaN.", lambda total: total.rows_bad),
    ("harch_think_version_rows_compared", "Rows compared with the active version.", lambda total: total.rows_compared),
    ("harch_think_version_rows_disagreed", "Of these, rows that differ.", lambda total: total.rows_disagreed),
)
_QUANTILES = (0.5, 0.99)


def watch_stage(stage: ThinkStage, meter: Meter) -> None:
    """Registers the instruments of a stage. Labels are models, versions and states: few, and named in its settings."""
    meter.create_observable_counter(
        "harch_think_rows", callbacks=[_reader(stage, _rows)], description="Rows by model and by what became of them."
    )
    meter.create_observable_gauge(
        "harch_think_rows_waiting", callbacks=[_reader(stage, _waiting)], description="Rows in the queue of a model."
    )
    meter.create_observable_gauge(
        "harch_think_latency_ms",
        callbacks=[_reader(stage, _latency)],
        description="Time of a batch in the model, upper bound of the quantile's bucket.",
    )
    for name, description, read in _VERSION_COUNTERS:
        meter.create_observable_counter(name, callbacks=[_reader(stage, _of_versions(read))], description=description)


_Read = Callable[[ThinkStage], Iterator[Observation]]


def _reader(stage: ThinkStage, read: _Read) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _options: list(read(stage))


def _rows(stage: ThinkStage) -> Iterator[Observation]:
    for name in stage.models:
        rows = stage.rows(name)
        for outcome in _OUTCOMES:
            yield Observation(getattr(rows, outcome), {"model": name, "outcome": outcome})


def _waiting(stage: ThinkStage) -> Iterator[Observation]:
    for name in stage.models:
        yield Observation(stage.waiting(name), {"model": name})


def _latency(stage: ThinkStage) -> Iterator[Observation]:
    for name, model in stage.models.items():
        for state, record in model.records():
            for share in _QUANTILES:
                labels = {"model": name, "version": record.ref.version, "state": str(state), "quantile": str(share)}
                yield Observation(record.watch.total.latency.quantile_ms(share), labels)


def _of_versions(read: Callable[[VersionCounters], float]) -> _Read:
    def observe(stage: ThinkStage) -> Iterator[Observation]:
        for name, model in stage.models.items():
            for _, record in model.records():
                yield Observation(read(record.watch.total), {"model": name, "version": record.ref.version})

    return observe
