"""What becomes of the answer of a target? Samples with its labels, facts about the scrape, and what ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from harch.base.errors import HarchError
from harch.sentinel.collect.scrape.config import ScrapeConfig
from harch.sentinel.collect.scrape.relabel import relabelled
from harch.sentinel.collect.scrape.targets import Target
from harch.sentinel.collect.text.page import Page
from harch.sentinel.model.histograms import STALE
from harch.sentinel.model.labels import METRIC_NAME, Labels, labels
from harch.sentinel.model.selection import SeriesBatch


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request to a target brought: a page, or the reason why there is none."""

    at_ms: int
    took_s: float
    page: Page | None = None
    failure: str = ""


@dataclass(slots=True)
class Scraped:
    """Samples for the store, and the series that the target had, to be told apart from those it has next time."""

    batches: list[SeriesBatch] = field(default_factory=list)
    seen: frozenset[Labels] = frozenset()
    failure: str = ""


def scraped(job: ScrapeConfig, target: Target, answer: Answer, before: frozenset[Labels]) -> Scraped:
    """Series that the target does not show any more end with a stale marker; so do all, if it did not answer."""
    found = Scraped(failure=answer.failure)
    after = 0
    shown = 0
    if answer.page is not None:
        shown = len(answer.page.samples)
        try:
            found.batches = _labelled(job, target, answer.page.samples)
            after = len(found.batches)
        except HarchError as problem:
            found.failure = problem.message
    # Samples at times of their own end by age, as in Prometheus: a marker at our time would hide them.
    found.seen = frozenset(batch.labels for batch in found.batches if batch.timestamps[0] == answer.at_ms)
    found.batches.extend(_ended(before - found.seen, answer.at_ms))
    told = {
        "up": 0.0 if found.failure else 1.0,
        "scrape_duration_seconds": answer.took_s,
        "scrape_samples_scraped": float(shown),
        "scrape_samples_post_metric_relabeling": float(after),
        "scrape_series_added": float(len(found.seen - before)),
    }
    found.batches.extend(
        SeriesBatch(labels([*target.labels, (METRIC_NAME, name)]), (answer.at_ms,), (value,))
        for name, value in told.items()
    )
    return found


def ended(target: Target, seen: frozenset[Labels], at_ms: int) -> list[SeriesBatch]:
    """Stale markers for everything of a target that is no longer asked."""
    own = ("up", "scrape_duration_seconds", "scrape_samples_scraped", "scrape_samples_post_metric_relabeling",
           "scrape_series_added")  # fmt: skip
    return _ended([*seen, *(labels([*target.labels, (METRIC_NAME, name)]) for name in own)], at_ms)


def _ended(series: Iterable[Labels], at_ms: int) -> list[SeriesBatch]:
    return [SeriesBatch(one, (at_ms,), (STALE,)) for one in sorted(series)]


def _labelled(job: ScrapeConfig, target: Target, samples: Iterable[SeriesBatch]) -> list[SeriesBatch]:
    """Raises E0675 if the page breaks a limit: then nothing of it is taken, so that no half of a page looks whole."""
    taken: list[SeriesBatch] = []
    for batch in samples:
        pairs = _joined(dict(batch.labels), target.labels, honor=job.honor_labels)
        if job.metric_relabel_configs:
            changed = relabelled(pairs, job.metric_relabel_configs)
            if changed is None:
                continue
            pairs = changed
        if job.label_limit and len(pairs) > job.label_limit:
            raise HarchError("E0675", f"a sample has {len(pairs)} labels; the job allows {job.label_limit}")
        taken.append(SeriesBatch(labels(pairs), batch.timestamps, batch.values, batch.starts, batch.exemplars))
        if job.sample_limit and len(taken) > job.sample_limit:
            raise HarchError("E0675", f"the page has more than {job.sample_limit} samples, the job's limit")
    return taken


def _joined(own: dict[str, str], of_target: Labels, *, honor: bool) -> dict[str, str]:
    """The target's labels win, and what the sample said is kept as `exported_…`; with honor_labels the sample wins."""
    for name, value in of_target:
        if name not in own:
            own[name] = value
        elif not honor:
            exported = f"exported_{name}"
            while exported in own:
                exported = f"exported_{exported}"
            own[exported] = own[name]
            own[name] = value
    return own
