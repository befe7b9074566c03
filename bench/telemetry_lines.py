"""Log lines as programs write them: requests in logfmt, decisions in JSON, readings of GPUs, warnings and failures.

Generated with a seed. About a fifth of all bytes is random (ids, durations, counts), which is more than most logs
have; the rest repeats as templates do.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from harch.sentinel.model.labels import Labels, labels

APPS = ("gateway", "hub", "agent", "sense", "think", "act", "ledger", "billing")
HUBS = ("dakhla", "tangier", "casablanca", "dakar", "abidjan")
HOUR_NS = 3600 * 10**9
LINES = 1000  # of one batch
_PATHS = ("/v1/workloads", "/v1/hubs", "/v1/events", "/loki/api/v1/push", "/v1/carbon/plan", "/v1/placements")
_STATUS = (200, 200, 200, 200, 200, 201, 204, 404, 500, 503)
_LEVELS = ("info", "info", "info", "warn", "error")


@dataclass(frozen=True, slots=True)
class Batch:
    app: str
    hour: int
    stream: Labels
    times_ns: list[int]
    texts: list[str]


def batches(raw_bytes: int, hours: int, first_ns: int, seed: int = 1) -> Iterator[Batch]:
    """Batches of one stream each until there are so many bytes, evenly over some hours."""
    rng = random.Random(seed)
    per_hour = raw_bytes / hours
    for hour in range(hours):
        written, number = 0, 0
        while written < per_hour:
            app = APPS[number % len(APPS)]
            stream = labels({"app": app, "hub": rng.choice(HUBS), "pod": f"{app}-{rng.randrange(5)}"})
            begin = first_ns + hour * HOUR_NS + int(written / per_hour * HOUR_NS)
            texts = [_line(rng) for _ in range(LINES)]
            yield Batch(app, hour, stream, [begin + 37_000 * place for place in range(LINES)], texts)
            written += sum(map(len, texts)) + LINES
            number += 1


def _line(rng: random.Random) -> str:
    bits, below, choice = rng.getrandbits, rng.randrange, rng.choice
    kind = bits(4)
    if kind < 6:
        return (
            f"level={choice(_LEVELS)} ts=2026-11-15T{below(24):02d}:{below(60):02d}:{below(60):02d}.{below(1000):03d}Z "
            f'caller=router.py:{below(400)} msg="request done" method={choice(("GET", "POST", "PUT"))} '
            f"path={choice(_PATHS)} status={choice(_STATUS)} duration_ms={below(200_000) / 1000} "
            f"bytes={below(100_000)} request_id={bits(64):016x} user=user-{below(2000):04d}"
        )
    if kind < 10:
        return (
            f'{{"level":"{choice(_LEVELS)}","msg":"placement decided","workload":"w-{bits(40):010x}",'
            f'"node":"node-{below(400):03d}","gpus":{below(1, 9)},"score":{below(10_000) / 10_000},'
            f'"queue_s":{below(3000)},"trace_id":"{bits(128):032x}"}}'
        )
    if kind < 13:
        return (
            f"gpu {below(8)} on node-{below(400):03d}: temperature {below(30, 90)} C, power {below(60, 700)} W, "
            f"utilisation {below(101)} %, memory {below(81_920)} MiB used"
        )
    if kind < 15:
        return (
            f"WARN lease l-{bits(48):012x} of workload w-{bits(40):010x} renewed late by {below(900)} ms, "
            f"epoch {below(100_000)}"
        )
    return (
        f"ERROR connection to 10.{below(4)}.{below(256)}.{below(256)}:{below(1024, 65_536)} refused: timeout after "
        f"{below(30_000)} ms (attempt {below(9)}), peer={choice(HUBS)}"
    )
