"""What did a hub use, from where, and with which factors?

Readings of an interval become one value each; where nothing measures a job, its plates times time.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from math import fsum

from msgspec import Struct

from harch.base.errors import HarchError
from harch.carbon.ledger.accounting import HubEnergyUse
from harch.carbon.ledger.charge import Factor, Factors, Interval, not_negative, observed_factor
from harch.carbon.signals.choice import HubSignals
from harch.carbon.values import Evidence, KindsMixed, Method, Quantity, Reading, Signal

# What did a hub use, from where, and with which factors? Readings of an interval become one figure each.
#
# Own power is matched with the load sample by sample, not over the interval: sun at ten past does not run what ran at
# ten to. What a battery gives is taken for power from the grid at that moment.


METERED = "facility meter"
FROM_GPU_METERS = "GPU meters x PUE"
MODELLED = "modelled IT power x PUE"
STAND_IN = "residual mix unknown: grid average used"
NO_CONTRACT = "contract unknown: grid average used"


def hub_energy(
    interval: Interval,
    samples: Sequence[HubSignals],
    *,
    modelled_it_kw: float,
    pue: float,
    ppa_share: float = 0.0,
    transmission_loss: float = 0.0,
) -> HubEnergyUse:
    """From the facility meter; without one from GPU meters, else from `modelled_it_kw`. A sample holds until the next.

    `pue` serves where no reading tells it, `ppa_share` is what agreements cover of the grid's delivery.
    """
    kwh: list[float] = []
    onsite: list[float] = []
    made: list[float] = []
    pues: list[float] = []
    methods: set[str] = set()
    evidence = Evidence.MEASURED
    for sample, hours in weighted_samples(interval, samples):
        pue_now = number_of(sample, Signal.PUE, pue)
        load_kw, method, seen = load_of(sample, modelled_it_kw, pue_now)
        own_kw = max(0.0, number_of(sample, Signal.PV_POWER, 0.0)) + max(0.0, number_of(sample, Signal.WIND_POWER, 0.0))
        kwh.append(load_kw * hours)
        onsite.append(min(load_kw, own_kw) * hours)
        made.append(own_kw * hours)
        pues.append(pue_now * hours)
        methods.add(method)
        if seen is Evidence.ESTIMATED:
            evidence = Evidence.ESTIMATED
    total, own = fsum(kwh), fsum(onsite)
    own = min(own, total)
    return HubEnergyUse(
        kwh=total,
        onsite_kwh=own,
        onsite_available_kwh=max(own, fsum(made)),
        ppa_kwh=(total - own) * ppa_share,
        pue=max(1.0, fsum(pues) / (interval.duration.total_seconds() / 3600)),
        transmission_loss=transmission_loss,
        evidence=evidence,
        method=", ".join(sorted(methods)),
    )


def observed_factors(interval: Interval, samples: Sequence[HubSignals]) -> Factors:
    """The mean factors of an interval. Raises E0820 if the grid's average intensity was never known in it."""
    weighted = weighted_samples(interval, samples)
    grid = _mean_factor(weighted, Signal.GRID_AVERAGE_LIFECYCLE)
    if grid is None:
        raise HarchError(
            "E0820",
            f"the grid's intensity from {interval.start} to {interval.end} is not known yet: nothing charged",
            hint="it is charged once a source reports it; `harch carbon now` shows the sources",
        )
    return Factors(
        grid=grid,
        residual=_by_contract(grid, STAND_IN),
        contract=_mean_factor(weighted, Signal.CONTRACT_LIFECYCLE) or _by_contract(grid, NO_CONTRACT),
        onsite=_mean_factor(weighted, Signal.ONSITE_LIFECYCLE) or _unknown_own(grid),
    )


Weighted = list[tuple[HubSignals, float]]


def weighted_samples(interval: Interval, samples: Sequence[HubSignals]) -> Weighted:
    """Each sample with the hours that it stands for; the first also for the time before it."""
    if not samples:
        raise HarchError("E0820", f"no signals from {interval.start} to {interval.end}")
    order = sorted(samples, key=lambda sample: sample.taken_at)
    # The last sample before the interval still holds when it begins.
    before = [sample for sample in order if sample.taken_at <= interval.start][-1:]
    inside = before + [sample for sample in order if interval.start < sample.taken_at < interval.end]
    inside = inside or order[:1]
    edges: list[datetime] = [interval.start, *(sample.taken_at for sample in inside[1:]), interval.end]
    return [
        (sample, (end - start).total_seconds() / 3600)
        for sample, start, end in zip(inside, edges, edges[1:], strict=False)
    ]


def load_of(sample: HubSignals, modelled_it_kw: float, pue: float) -> tuple[float, str, Evidence]:
    facility = _observed(sample, Signal.FACILITY_POWER)
    if facility is not None:
        return max(0.0, facility.value.number), METERED, facility.evidence
    gpus = _observed(sample, Signal.GPU_POWER)
    if gpus is not None:
        return max(0.0, gpus.value.number) * pue, FROM_GPU_METERS, Evidence.ESTIMATED
    return modelled_it_kw * pue, MODELLED, Evidence.ESTIMATED


def _observed(sample: HubSignals, signal: Signal) -> Reading[Quantity] | None:
    reading = sample.reading(signal)
    if reading is not None and reading.ahead:
        raise KindsMixed(f"`{reading}` is a forecast: it cannot be billed")
    return reading


def number_of(sample: HubSignals, signal: Signal, otherwise: float) -> float:
    reading = _observed(sample, signal)
    return otherwise if reading is None else reading.value.number


def _mean_factor(weighted: Weighted, signal: Signal) -> Factor | None:
    """Weighted by time, over the samples that have a reading."""
    seen = [
        (observed_factor(reading), hours)
        for sample, hours in weighted
        if (reading := sample.reading(signal)) is not None
    ]
    hours_all = fsum(hours for _, hours in seen)
    if hours_all <= 0:
        return None
    latest = max((factor for factor, _ in seen), key=lambda factor: factor.as_of)
    estimated = any(factor.evidence is Evidence.ESTIMATED for factor, _ in seen)
    return Factor(
        g_per_kwh=fsum(factor.g_per_kwh * hours for factor, hours in seen) / hours_all,
        basis=latest.basis,
        scope=latest.scope,
        method=latest.method,
        source=_joined(factor.source for factor, _ in seen),
        evidence=Evidence.ESTIMATED if estimated else Evidence.MEASURED,
        as_of=latest.as_of,
        note=_joined(factor.note for factor, _ in seen if factor.note),
    )


def _by_contract(grid: Factor, why: str) -> Factor:
    """The one place where a figure by location serves as one by contract, as the GHG Protocol allows; it says so."""
    return Factor(
        g_per_kwh=grid.g_per_kwh,
        basis=grid.basis,
        scope=grid.scope,
        method=Method.MARKET,
        source=grid.source,
        evidence=Evidence.ESTIMATED,
        as_of=grid.as_of,
        note=why,
    )


def _unknown_own(grid: Factor) -> Factor:
    """Own plants of which nobody said what they emit are charged like the grid: unknown is never clean."""
    return Factor(
        g_per_kwh=grid.g_per_kwh,
        basis=grid.basis,
        scope=grid.scope,
        method=Method.ONSITE,
        source=grid.source,
        evidence=Evidence.ESTIMATED,
        as_of=grid.as_of,
        note="factor of own plants unknown: grid average used",
    )


def _joined(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))


# How much IT energy does a job take where nothing measures it? The plates of what it holds, times time.
#
# Running work is taken at the plate, which overstates most work and never flatters it; idle GPUs at a tenth or so of
# it.
# The hub's meter, where there is one, shrinks what is too much (`account`).


METHOD = "modelled GPU and host power x share of the allocation"
IDLE_SHARE = 0.12  # of the plate; assumed, not measured here
HOST_IDLE_SHARE = 0.5  # assumed likewise: memory, fans and network hardly rest


class HeldDevices(Struct, frozen=True, kw_only=True):
    """What a job holds, or what nobody does: its share of GPUs and of their hosts, all tasks together."""

    gpu_power_w: float  # plates of its GPUs, a shared one in part
    host_power_w: float = 0.0  # plates of the hosts, by its share of each

    def __post_init__(self) -> None:
        not_negative("GPU power", self.gpu_power_w)
        not_negative("host power", self.host_power_w)

    def running_it_kwh(self, duration: timedelta) -> float:
        return (self.gpu_power_w + self.host_power_w) / 1000 * _hours(duration)

    def idle_it_kwh(self, duration: timedelta) -> float:
        """While suspended with its GPUs kept, or free."""
        idle_w = self.gpu_power_w * IDLE_SHARE + self.host_power_w * HOST_IDLE_SHARE
        return idle_w / 1000 * _hours(duration)


def _hours(duration: timedelta) -> float:
    return duration.total_seconds() / 3600
