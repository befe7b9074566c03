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
_METHODS = ("GET", "POST", "PUT")
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
    chance, bits = rng.random, f"{rng.getrandbits(160):040x}"
    kind = bits[0]
    if kind < "6":
        return (
            f"level={_LEVELS[int(chance() * 5)]} ts=2026-11-15T{int(chance() * 24):02d}:{int(chance() * 60):02d}:"
            f"{chance() * 60:06.3f}Z caller=router.py:{int(chance() * 400)} "
            f'msg="request done" method={_METHODS[int(chance() * 3)]} '
            f"path={_PATHS[int(chance() * 6)]} status={_STATUS[int(chance() * 10)]} duration_ms={chance() * 200:.3f} "
            f"bytes={int(chance() * 100_000)} request_id={bits[1:17]} user=user-{int(chance() * 2000):04d}"
        )
    if kind < "a":
        return (
            f'{{"level":"{_LEVELS[int(chance() * 5)]}","msg":"placement decided","workload":"w-{bits[1:11]}",'
            f'"node":"node-{int(chance() * 400):03d}","gpus":{1 + int(chance() * 8)},"score":{chance():.4f},'
            f'"queue_s":{int(chance() * 3000)},"trace_id":"{bits[8:40]}"}}'
        )
    if kind < "d":
        return (
            f"gpu {int(chance() * 8)} on node-{int(chance() * 400):03d}: temperature {30 + int(chance() * 60)} C, "
            f"power {60 + int(chance() * 640)} W, utilisation {int(chance() * 101)} %, "
            f"memory {int(chance() * 81_920)} MiB used"
        )
    if kind < "f":
        return (
            f"WARN lease l-{bits[1:13]} of workload w-{bits[13:23]} renewed late by {int(chance() * 900)} ms, "
            f"epoch {int(chance() * 100_000)}"
        )
    return (
        f"ERROR connection to 10.{int(chance() * 4)}.{int(chance() * 256)}.{int(chance() * 256)}:"
        f"{1024 + int(chance() * 64_512)} refused: timeout after {int(chance() * 30_000)} ms "
        f"(attempt {int(chance() * 9)}), peer={HUBS[int(chance() * 5)]}"
    )
