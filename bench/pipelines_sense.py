"""How fast does SENSE add up events on one core? The kernel against NumPy in the same run, then the whole stage.

NumPy does the same work with the tools that it has for it: masks for what is set aside, `bincount` for counts and sums,
`minimum.at` and `maximum.at` for the rest. Both answers are compared before anything is timed. Rounds take turns, so
that a busy machine meets all alike.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from harch.pipelines.sense.devices import DeviceTable
from harch.pipelines.sense.gate import PolicyTable, ResidencyGate
from harch.pipelines.sense.kernels import REASONS
from harch.pipelines.sense.settings import SenseSettings, WindowSettings
from harch.pipelines.sense.stage import SenseStage
from harch.pipelines.sense.state import StageIdentity
from harch.pipelines.sense.windows import WindowState
from harch.pipelines.wire.columns import COMPACT, WIDE, Columns, EventSchema, decode_columns, encode_columns
from harch.pipelines.wire.header import BatchHeader, pack_batch
from verdict import Verdict, conditions

DEVICES, METRICS = 1000, 4
PANE_NS = 1_000_000_000
T0 = 1_700_000_000 * PANE_NS
LOW, HIGH = -50.0, 100.0
ROUND_S = 0.4
MESSAGES_AT_ONCE = 50


def events_of(schema: EventSchema, n: int, seed: int, bad_share: float = 0.001) -> bytes:
    """One batch: a millisecond of events of random devices, by default one in a thousand of them not usable."""
    rng = np.random.default_rng(seed)
    ticks = np.sort(rng.integers(0, 1_000_000 // schema.tick_ns, n))
    values = rng.normal(20, 5, (len(schema.values), n))
    values[0, rng.random(n) < bad_share / 2] = np.nan
    device = rng.integers(0, DEVICES, n)
    device[rng.random(n) < bad_share / 2] = DEVICES + 7
    columns = Columns(ticks, device, rng.integers(0, METRICS, n), np.zeros(n), values)
    return encode_columns(schema, columns)


def settings_of(schema: EventSchema) -> SenseSettings:
    columns = tuple(
        type(column)(name=column.name, type=column.type, role=column.role, low=LOW, high=HIGH)
        if column.role == "value"
        else column
        for column in schema.columns
    )
    return SenseSettings(
        schema=EventSchema(name=schema.name, columns=columns, tick_ns=schema.tick_ns),
        devices=tuple(f"device-{number}" for number in range(DEVICES)),
        devices_max=DEVICES,
        metrics=tuple(f"metric-{number}" for number in range(METRICS)),
        windows=WindowSettings(size_s=1.0, lateness_s=0.5, skew_s=2.0),
    )


class NumpyWindows:
    """The same answer in NumPy: events judged, then count, sum, squares, least, greatest and last by event time."""

    def __init__(self, slots: int, panes_open: int) -> None:
        keys = slots * DEVICES * METRICS
        self.slots, self.keys, self.open = slots, keys, panes_open
        self.count, self.sum, self.squares = np.zeros(keys, np.int64), np.zeros(keys), np.zeros(keys)
        self.least, self.greatest = np.full(keys, np.inf), np.full(keys, -np.inf)
        self.last, self.last_at = np.zeros(keys), np.full(keys, -1, np.int64)
        self.counts = np.zeros(len(REASONS), np.int64)

    def add(self, columns: Columns, t_first_ns: int, tick_ns: int, time_ns_max: int, first_pane: int) -> None:
        value = columns.values[0].astype(np.float64)
        at = t_first_ns + columns.ticks.astype(np.int64) * tick_ns
        pane = at // PANE_NS
        reason = np.zeros(len(at), np.uint8)
        reason[(at > time_ns_max) | (pane >= first_pane + self.open)] = REASONS.index("future")
        reason[pane < first_pane] = REASONS.index("late")
        reason[~((value >= LOW) & (value <= HIGH))] = REASONS.index("bad_value")
        reason[columns.metric >= METRICS] = REASONS.index("unknown_metric")
        reason[columns.device >= DEVICES] = REASONS.index("unknown_device")
        self.counts += np.bincount(reason, minlength=len(REASONS))
        self.aside = np.flatnonzero(reason)
        usable = reason == 0
        key = (((pane % self.slots) * DEVICES + columns.device) * METRICS + columns.metric)[usable]
        value, offset = value[usable], (at - pane * PANE_NS)[usable]
        self.count += np.bincount(key, minlength=self.keys)
        self.sum += np.bincount(key, weights=value, minlength=self.keys)
        self.squares += np.bincount(key, weights=value * value, minlength=self.keys)
        np.minimum.at(self.least, key, value)
        np.maximum.at(self.greatest, key, value)
        np.maximum.at(self.last_at, key, offset)
        newest = offset == self.last_at[key]
        self.last[key[newest]] = value[newest]


def rate_of(step: Callable[[], None], events: int) -> float:
    """Millions of events per second of CPU time, in one round."""
    done, started = 0, time.process_time()
    while (took := time.process_time() - started) < ROUND_S:
        step()
        done += events
    return done / took / 1e6


def compare(schema: EventSchema, n: int, rounds: int) -> dict[str, list[float]]:
    settings = settings_of(schema)
    payload = events_of(schema, n, 1)
    columns = decode_columns(settings.event_schema, n, payload)
    if not isinstance(columns, Columns):
        raise SystemExit(columns.detail)
    windows, plain = WindowState(settings), NumpyWindows(settings.windows.slots, settings.windows.panes_open)
    windows.begin(T0)

    def kernel() -> None:
        windows.add(columns, devices=DEVICES, t_first_ns=T0, time_ns_max=T0 + PANE_NS)

    def numpy() -> None:
        plain.add(columns, T0, schema.tick_ns, T0 + PANE_NS, windows.first_pane)

    def decoded() -> None:
        found = decode_columns(settings.event_schema, n, payload)
        if isinstance(found, Columns):
            windows.add(found, devices=DEVICES, t_first_ns=T0, time_ns_max=T0 + PANE_NS)

    kernel()
    numpy()
    cells = windows.cells.reshape(-1, 8)
    used = cells[:, 0] > 0
    same = (
        np.array_equal(cells[:, 0], plain.count)
        and np.allclose(cells[:, 1], plain.sum)
        and np.array_equal(cells[used, 3], plain.least[used])
        and np.array_equal(cells[used, 4], plain.greatest[used])
        and np.array_equal(cells[used, 5], plain.last[used])
    )
    if not same:
        raise SystemExit("kernel and NumPy differ")
    steps = {"kernel": kernel, "decode + kernel": decoded, "numpy": numpy}
    stages = {"whole stage": StageRounds(settings, n), "a third bad": StageRounds(settings, n, 0.36)}
    found: dict[str, list[float]] = {name: [] for name in (*steps, *stages)}
    for _ in range(rounds):
        for name, step in steps.items():
            found[name].append(rate_of(step, n))
        for name, stage in stages.items():
            found[name].append(stage.rate())
    return found


class StageRounds:
    """The whole stage per message: header, checksum, gate, sequence, windows that close once a second of event time."""

    def __init__(self, settings: SenseSettings, n: int, bad_share: float = 0.001) -> None:
        devices = DeviceTable(settings.devices, settings.devices_max, settings.metrics)
        gate = ResidencyGate("here", PolicyTable(1, {"here": 0}))
        self._stage = SenseStage(StageIdentity("bench", 0), settings, devices, gate)
        self._schema = settings.event_schema
        self._payload = events_of(self._schema, n, 2, bad_share)
        self._n, self._seq = n, 0

    def rate(self) -> float:
        """Messages are packed beforehand, some at a time; only the stage is timed."""
        took, events = 0.0, 0
        while took < ROUND_S:
            messages = [self._next() for _ in range(MESSAGES_AT_ONCE)]
            started = time.process_time()
            for at_ns, now_s, message in messages:
                self._stage.take(message, now_ns=at_ns, now_s=now_s)
            took += time.process_time() - started
            events += self._n * len(messages)
        if self._stage.counters.events_in != self._stage.counters.events_accepted + self._stage.counters.events_aside:
            raise SystemExit("the stage does not account for all events")
        return events / took / 1e6

    def _next(self) -> tuple[int, float, bytes]:
        self._seq += 1
        at_ns = T0 + self._seq * 1_000_000
        header = BatchHeader(
            schema=self._schema.id,
            n=self._n,
            juris_mask=1,
            policy_version=1,
            source=1,
            seq=self._seq,
            t_first_ns=at_ns,
            watermark_ns=at_ns,
            payload_len=len(self._payload),
        )
        return at_ns, self._seq / 1000, pack_batch(header, self._payload)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--events", type=int, default=10_000, help="events per batch")
    options = parser.parse_args()
    print(f"{conditions()}; {DEVICES} devices x {METRICS} metrics, batches of {options.events}, one core, CPU time")
    verdict = Verdict("pipelines-sense")
    for schema in (COMPACT, WIDE):
        found = compare(schema, options.events, options.rounds)
        print(f"\n{schema.name} events of {schema.event_bytes} B, M events/s: median (least to greatest)")
        for name, rates in found.items():
            print(f"  {name:16} {statistics.median(rates):6.1f} ({min(rates):.1f} to {max(rates):.1f})")
        ratios = [kernel / numpy for kernel, numpy in zip(found["decode + kernel"], found["numpy"], strict=True)]
        verdict.goal(f"{schema.name}: decode + kernel against NumPy", ">= 3", statistics.median(ratios), "x")
        verdict.goal(f"{schema.name}: whole stage", ">= 10", statistics.median(found["whole stage"]), "M events/s")
    verdict.print()


if __name__ == "__main__":
    main()
