"""What do hubs say to each other about telemetry? A part of a question one way, and what may be disclosed back.

The asking hub cuts a question into parts, the owning hub judges and answers each of them. Nothing else passes.
"""

# harch: pure

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from harch.base.integers import Int64
from harch.base.rejection import Rejection
from harch.sentinel.model.histograms import NativeHistogram

ANSWER_BYTES_MAX = 8 << 20
PARTS_MAX = 64  # of one question
LOOKBACK_MS = 5 * 60_000


class MetricPart(Struct, frozen=True, kw_only=True, tag="metric"):
    """A PromQL expression, evaluated at `start`, `start + step`, … up to `end` (milliseconds).

    All hubs look back as far for the latest sample, or their answers would not be one. A step of 0: `start` alone.
    """

    expression: str
    start_ms: Int64
    end_ms: Int64
    step_ms: Int64
    lookback_ms: Int64 = LOOKBACK_MS


class LogPart(Struct, frozen=True, kw_only=True, tag="log"):
    """A LogQL expression on the same kind of grid; `limit` counts for lines, which only pass inside a jurisdiction."""

    expression: str
    start_ns: Int64
    end_ns: Int64
    step_ns: Int64
    limit: Int64 = 0
    newest_first: bool = True


class TracePart(Struct, frozen=True, kw_only=True, tag="trace"):
    """A search for traces, one trace by its id, or statistics by fields; as `harch.sentinel.traces` writes queries."""

    kind: Literal["search", "trace", "statistics"]
    query: str
    start_ns: Int64
    end_ns: Int64
    by: tuple[str, ...] = ()
    limit: Int64 = 20


Part = MetricPart | LogPart | TracePart


class Question(Struct, frozen=True, kw_only=True):
    """`tenant` is whose telemetry is meant; `asked_by` names the person or key for the owner's audit."""

    id: str
    tenant: str
    requested_by: str = field(name="asked_by")
    parts: tuple[Part, ...]


class Requester(Struct, frozen=True, kw_only=True):
    """Who asks, as the owning hub knows it from the link's certificate, never from the question itself."""

    hub_id: str
    country: str


class SeriesResult(Struct, frozen=True, kw_only=True):
    """One series of an answer. `values[i]` belongs to the grid's place `at[i]`; bits are kept exactly.

    `histograms` is empty, or has one entry for each value: a histogram that stands instead of it, or None.
    """

    labels: tuple[tuple[str, str], ...]
    at: tuple[int, ...]
    values: tuple[float, ...]
    histograms: tuple[NativeHistogram | None, ...] = ()


class PartResult(Struct, frozen=True, kw_only=True):
    """What became of one part. Exactly one of `series`, `body` and `refused` says something.

    `body` is the JSON of lines, traces or statistics, which has no grid (as bytes, because answers travel as msgpack).
    `suppressed` counts groups that were left out because they were too small, so that an answer never looks complete
    when it is not.
    """

    series: tuple[SeriesResult, ...] = ()
    body: bytes = b""
    suppressed: int = 0
    warnings: tuple[str, ...] = ()
    refused: Rejection | None = None


class FederatedAnswer(Struct, frozen=True, kw_only=True):
    """The owner's answer, a `Told` for every part in order."""

    question_id: str
    hub_id: str
    country: str
    results: tuple[PartResult, ...] = field(name="told")


# What does the owner's audit learn of an answer? How much of each part was disclosed, suppressed or refused; no value.


class PartAccount(Struct, frozen=True, kw_only=True):
    """One part: series and points that were disclosed, bytes of a body, groups left out, and the rule of a refusal."""

    groups: int = 0
    points: int = 0
    body_bytes: int = 0
    suppressed: int = 0
    refused_rule: str = ""


class Judged(Struct, frozen=True, kw_only=True):
    """What SENTINEL hands to its hub: the answer as bytes (msgpack of `Answer`), and what the hub writes down of it."""

    parts: tuple[PartAccount, ...]
    answer: bytes


class InboundQuestion(Struct, frozen=True, kw_only=True):
    """What a hub hands to its SENTINEL: a question, and who asks, by the link's certificate and the fleet file.

    `here` is the hub itself, as its fleet file names it.
    """

    question: Question
    asker: Requester
    here: Requester
    within_s: float


def account_of(answer: FederatedAnswer) -> tuple[PartAccount, ...]:
    return tuple(_account(result) for result in answer.results)


def is_breach(part: Part, account: PartAccount) -> bool:
    """Whether lines or spans stand in this answer. The last look before a border: the policy should have refused it."""
    is_raw_kind = isinstance(part, LogPart) or (isinstance(part, TracePart) and part.kind != "statistics")
    return is_raw_kind and account.body_bytes > 0


def text_of(part: Part) -> str:
    """How the audit names a part."""
    if isinstance(part, TracePart):
        return " ".join(word for word in (part.kind, part.query, f"by {','.join(part.by)}" if part.by else "") if word)
    return part.expression


def _account(result: PartResult) -> PartAccount:
    return PartAccount(
        groups=len(result.series),
        points=sum(len(one.at) for one in result.series),
        body_bytes=len(result.body),
        suppressed=result.suppressed,
        refused_rule=result.refused.rule if result.refused is not None else "",
    )
