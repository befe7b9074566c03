"""How is a target scraped, and what becomes of its answer?

One bounded request; samples with its labels, facts about the scrape, and what ended.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import httpx

from harch.base.errors import HarchError
from harch.sentinel.collect.exposition import OPENMETRICS, ExpositionPage, PageCache, read_page
from harch.sentinel.collect.scrape.config import Authorization, BasicAuth, ScrapeConfig, SentinelConfig, TlsConfig
from harch.sentinel.collect.scrape.relabel import relabelled
from harch.sentinel.collect.scrape.targets import ScrapeTarget
from harch.sentinel.model.histograms import STALE
from harch.sentinel.model.labels import METRIC_NAME, Labels, labels
from harch.sentinel.model.selection import SeriesBatch


@dataclass(frozen=True, slots=True)
class ScrapeAnswer:
    """What one request to a target brought: a page, or the reason why there is none."""

    at_ms: int
    took_s: float
    page: ExpositionPage | None = None
    failure: str = ""


@dataclass(slots=True)
class Scraped:
    """Samples for the store, and the series that the target had, to be told apart from those it has next time."""

    batches: list[SeriesBatch] = field(default_factory=list)
    seen: frozenset[Labels] = frozenset()
    failure: str = ""


def scraped(
    job: ScrapeConfig,
    target: ScrapeTarget,
    answer: ScrapeAnswer,
    before: frozenset[Labels],
    known: PageCache[Labels] | None = None,
) -> Scraped:
    """Series that the target does not show any more end with a stale marker; so do all, if it did not answer.

    `known` remembers the labels that the series of the last page got.
    """
    found = Scraped(failure=answer.failure)
    after = 0
    sample_count = 0
    if answer.page is not None:
        sample_count = len(answer.page.samples)
        try:
            found.batches = _labelled(job, target, answer.page.samples, known if known is not None else PageCache())
            after = len(found.batches)
        except HarchError as problem:
            found.failure = problem.message
    # Samples at times of their own end by age, as in Prometheus: a marker at our time would hide them.
    found.seen = frozenset(batch.labels for batch in found.batches if batch.timestamps[0] == answer.at_ms)
    found.batches.extend(_ended(before - found.seen, answer.at_ms))
    facts = {
        "up": 0.0 if found.failure else 1.0,
        "scrape_duration_seconds": answer.took_s,
        "scrape_samples_scraped": float(sample_count),
        "scrape_samples_post_metric_relabeling": float(after),
        "scrape_series_added": float(len(found.seen - before)),
    }
    found.batches.extend(
        SeriesBatch(labels([*target.labels, (METRIC_NAME, name)]), (answer.at_ms,), (value,))
        for name, value in facts.items()
    )
    return found


def ended(target: ScrapeTarget, seen: frozenset[Labels], at_ms: int) -> list[SeriesBatch]:
    """Stale markers for everything of a target that is no longer asked."""
    own = ("up", "scrape_duration_seconds", "scrape_samples_scraped", "scrape_samples_post_metric_relabeling",
           "scrape_series_added")  # fmt: skip
    return _ended([*seen, *(labels([*target.labels, (METRIC_NAME, name)]) for name in own)], at_ms)


def _ended(series: Iterable[Labels], at_ms: int) -> list[SeriesBatch]:
    return [SeriesBatch(one, (at_ms,), (STALE,)) for one in sorted(series)]


def _labelled(
    job: ScrapeConfig, target: ScrapeTarget, samples: Iterable[SeriesBatch], known: PageCache[Labels]
) -> list[SeriesBatch]:
    """Raises E0675 if the page breaks a limit: then nothing of it is taken, so that no half of a page looks whole."""
    taken: list[SeriesBatch] = []
    known.begin()
    for batch in samples:
        named = known.get(batch.labels)
        if named is None:
            named = _labels_of(job, target, batch.labels)
            known.put(batch.labels, named)
        if not named:
            continue
        taken.append(SeriesBatch(named, batch.timestamps, batch.values, batch.starts, batch.exemplars))
        if job.sample_limit and len(taken) > job.sample_limit:
            raise HarchError("E0675", f"the page has more than {job.sample_limit} samples, the job's limit")
    return taken


def _labels_of(job: ScrapeConfig, target: ScrapeTarget, own: Labels) -> Labels:
    """None at all if the job drops the series. Raises E0675 if there are too many."""
    pairs = _joined(dict(own), target.labels, honor=job.honor_labels)
    if job.metric_relabel_configs:
        changed = relabelled(pairs, job.metric_relabel_configs)
        if changed is None:
            return ()
        pairs = changed
    if job.label_limit and len(pairs) > job.label_limit:
        raise HarchError("E0675", f"a sample has {len(pairs)} labels; the job allows {job.label_limit}")
    return labels(pairs)


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


# How is a target asked? One bounded request; the body is read no further than its limit.


BODY_BYTES_MAX = 64 * 1024 * 1024
_ACCEPT = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
)
_SIZE = re.compile(r"(\d+)\s*([KMGT]?)I?B?", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


class ScrapeClient:
    """Asks the targets of one job."""

    def __init__(self, config: SentinelConfig, job: ScrapeConfig, base: Path, wall_ms: Callable[[], int]) -> None:
        self._job = job
        self._base = base
        self._wall_ms = wall_ms
        self._timeout_s = config.timeout_ms(job) / 1000
        self._limit = size_bytes(job.body_size_limit) or BODY_BYTES_MAX
        self._client = httpx.AsyncClient(
            verify=trust_of(job, base),
            timeout=self._timeout_s,
            headers={"Accept": _ACCEPT, "X-Prometheus-Scrape-Timeout-Seconds": f"{self._timeout_s:g}"},
            trust_env=False,  # telemetry stays inside the perimeter: no proxy of the environment
            limits=httpx.Limits(max_connections=512, max_keepalive_connections=512),
        )

    async def fetch(self, target: ScrapeTarget, known: PageCache[str] | None = None) -> ScrapeAnswer:
        """Never raises for what a target does: the failure is part of the answer."""
        began = self._wall_ms()
        try:
            body, content_type = await self._body(target)
            page = read_page(
                body.decode("utf-8"),
                began,
                openmetrics=content_type.startswith(OPENMETRICS),
                honor_timestamps=self._job.honor_timestamps,
                known=known,
            )
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeDecodeError, HarchError) as problem:
            reason = problem.message if isinstance(problem, HarchError) else f"{type(problem).__name__}: {problem}"
            return ScrapeAnswer(began, (self._wall_ms() - began) / 1000, failure=reason[:500])
        return ScrapeAnswer(began, (self._wall_ms() - began) / 1000, page)

    async def close(self) -> None:
        await self._client.aclose()

    async def _body(self, target: ScrapeTarget) -> tuple[bytes, str]:
        async with self._client.stream("GET", target.url, headers=credentials_of(self._job, self._base)) as response:
            if response.status_code != httpx.codes.OK:
                raise HarchError("E0675", f"the target returned status {response.status_code}")
            body = bytearray()
            async for part in response.aiter_bytes():
                body += part
                if len(body) > self._limit:
                    raise HarchError("E0675", f"the page is larger than {self._limit} bytes")
            return bytes(body), response.headers.get("content-type", "")


def size_bytes(text: str) -> int:
    """`10MB` as bytes (powers of 1024, as Prometheus counts them); 0 for no limit."""
    if not text:
        return 0
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise HarchError("E0673", f"`{text}` is not a size", hint="write e.g. `10MB`")
    return int(found.group(1)) << (10 * _POWERS[found.group(2).upper()])


class Secured(Protocol):
    """A section with credentials and trust of its own: a scrape job, or a set of Alertmanagers."""

    @property
    def authorization(self) -> Authorization | None: ...

    @property
    def basic_auth(self) -> BasicAuth | None: ...

    @property
    def tls_config(self) -> TlsConfig | None: ...


def credentials_of(section: Secured, base: Path) -> dict[str, str]:
    """Read for each request, so that a renewed token is used at once."""
    if section.authorization is not None:
        token = (base / section.authorization.credentials_file).read_text("utf-8").strip()
        return {"Authorization": f"{section.authorization.type} {token}"}
    if section.basic_auth is not None:
        password = (base / section.basic_auth.password_file).read_text("utf-8").strip()
        return {"Authorization": httpx.BasicAuth(section.basic_auth.username, password)._auth_header}
    return {}


def trust_of(section: Secured, base: Path) -> ssl.SSLContext | bool:
    tls = section.tls_config
    if tls is None:
        return True
    context = ssl.create_default_context(cafile=str(base / tls.ca_file) if tls.ca_file else None)
    if tls.cert_file:
        context.load_cert_chain(base / tls.cert_file, base / tls.key_file if tls.key_file else None)
    if tls.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
