"""How does a carbon file become a board? Makes the sources that it names, hands them their keys, sets the orders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.base.guarded_http import http_address
from harch.carbon.signals import config as files
from harch.carbon.signals.circuit_breaker import RequestLimit
from harch.carbon.signals.config import CarbonConfig, WebEntry
from harch.carbon.signals.registry import Pace, SignalRegistry, SourcePlan
from harch.carbon.signals.sites import SignalSite, site_of
from harch.carbon.signals.source import SignalSource
from harch.carbon.signals.sources import electricity_maps, open_meteo, watttime
from harch.carbon.signals.sources.csv_file import CsvColumn, CsvFile
from harch.carbon.signals.sources.manual import Manual, manual_value
from harch.carbon.signals.sources.modelled import NAME as MODELLED
from harch.carbon.signals.sources.modelled import modelled
from harch.carbon.signals.sources.prometheus import Prometheus, PrometheusQuery
from harch.carbon.signals.web import ApiKey, WebLimits, WebReader, read_key
from harch.carbon.units import quantity
from harch.carbon.values import Evidence, Signal
from harch.fleet.model import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceContext:
    """What sources need of the world. `jitter` gives numbers from 0 to 1; `folder` is where relative paths begin."""

    client: httpx.AsyncClient
    clock: Clock
    jitter: Callable[[], float]
    environment: Mapping[str, str]
    folder: Path = Path()


def build_registry(config: CarbonConfig, fleet: Fleet, world: SourceContext) -> SignalRegistry:
    """The board of a fleet. Raises HarchError E0220 for keys that are not there and for hubs that no fleet has."""
    for hub in config.hubs:
        if fleet.hub(hub) is None:
            raise HarchError("E0220", f"hubs.{hub[:64]}: no such hub in the fleet", hint="`harch hubs` lists the hubs")
    plans = [_plan(name, entry, world) for name, entry in config.entries.items()]
    plans.append(SourcePlan(source=modelled(), is_model=True))
    sites = [_site(config, fleet, hub.id) for hub in fleet.hubs]
    orders = {site.hub: order_of(site, config, [plan.source for plan in plans]) for site in sites}
    return SignalRegistry(sites, plans, orders, world.clock, limits=config.limits)


def order_of(site: SignalSite, config: CarbonConfig, sources: list[SignalSource]) -> dict[Signal, tuple[str, ...]]:
    """For each signal, its sources, best first: as the hub says, else its zone, else the file, else in file order.

    The model comes last, unless the order says otherwise: what a decision rests on is always a value.
    """
    hub, zone = config.hubs.get(site.hub), config.zones.get(site.grid_zone)
    orders: dict[Signal, tuple[str, ...]] = {}
    for signal in Signal:
        providers = [source.name for source in sources if signal in source.provides]
        preferred = [*([hub.order] if hub else []), *([zone.order] if zone else []), config.order]
        names = next((order[signal] for order in preferred if signal in order), providers)
        for name in names:
            if name not in providers:
                raise HarchError("E0220", f"`{name}` does not provide `{signal}`", hint="remove it from the order")
        if MODELLED in providers and MODELLED not in names:
            names = [*names, MODELLED]
        if names:
            orders[signal] = tuple(dict.fromkeys(names))
    return orders


def _site(config: CarbonConfig, fleet: Fleet, hub_id: str) -> SignalSite:
    hub = next(hub for hub in fleet.hubs if hub.id == hub_id)
    entry = config.hubs.get(hub_id)
    return site_of(hub, config.onsite(hub_id), grid_zone=(entry.grid_zone if entry else "") or None)


def _plan(name: str, entry: files.Entry, world: SourceContext) -> SourcePlan:
    return SourcePlan(source=_source(name, entry, world), pace=Pace(every_s=entry.every_s))


def _source(name: str, entry: files.Entry, world: SourceContext) -> SignalSource:
    match entry:
        case files.ElectricityMapsEntry():
            return electricity_maps.ElectricityMaps(
                name=name,
                web=_web(name, entry, world),
                key=_needed(name, entry.key_env, entry.key_file, world),
                url=_address(name, entry.url or electricity_maps.URL),
                provides=_some_of(name, electricity_maps.PROVIDES, entry.signals),
                zones=entry.zones,
                with_forecast=entry.forecast,
            )
        case files.WattTimeEntry():
            return watttime.WattTime(
                name=name,
                web=_web(name, entry, world),
                user=_needed(f"{name}, user", entry.user_env, entry.user_file, world),
                password=_needed(f"{name}, password", entry.password_env, entry.password_file, world),
                url=_address(name, entry.url or watttime.URL),
                regions=entry.regions,
            )
        case files.OpenMeteoEntry():
            return open_meteo.OpenMeteo(
                name=name,
                web=_web(name, entry, world),
                url=_address(name, entry.url or open_meteo.URL),
                key=_optional(name, entry.key_env, entry.key_file, world),
            )
        case files.PrometheusEntry():
            return Prometheus(
                name=name,
                web=_web(name, entry, world),
                url=_address(name, entry.url),
                key=_optional(name, entry.key_env, entry.key_file, world),
                queries={signal: _query(name, signal, query) for signal, query in entry.queries.items()},
            )
        case files.CsvEntry():
            return CsvFile(
                name=name,
                path=world.folder / entry.path,
                time_column=entry.time,
                place_column=entry.place,
                columns={signal: _column(name, signal, column) for signal, column in entry.values.items()},
                naive_is_utc=entry.naive_times == "utc",
                evidence=Evidence.ESTIMATED if entry.estimated else Evidence.MEASURED,
                forecast=entry.forecast,
            )
        case files.ManualEntry():
            return _manual(name, entry)


def _manual(name: str, entry: files.ManualEntry) -> Manual:
    source = Manual(name=name)
    for value in entry.values:
        source.set(
            manual_value(
                value.place,
                value.signal,
                value.value,
                value.unit,
                set_at=value.since,
                valid_until=value.until,
                note=value.note,
            )
        )
    return source


def _query(name: str, signal: Signal, entry: files.QueryEntry) -> PrometheusQuery:
    _check_unit(name, signal, entry.unit)
    return PrometheusQuery(entry.query, entry.unit, Evidence.ESTIMATED if entry.estimated else Evidence.MEASURED)


def _column(name: str, signal: Signal, entry: files.ColumnEntry) -> CsvColumn:
    _check_unit(name, signal, entry.unit)
    return CsvColumn(entry.column, entry.unit)


def _check_unit(name: str, signal: Signal, unit: str) -> None:
    """Now and not with the first value: a unit that does not fit is a mistake in the file."""
    try:
        quantity(signal, 1.0, unit)
    except HarchError as error:
        raise HarchError("E0220", f"sources.{name}: {error.message}", hint=error.hint) from error


def _web(name: str, entry: WebEntry, world: SourceContext) -> WebReader:
    return WebReader(
        source=name,
        client=world.client,
        jitter=world.jitter,
        limits=WebLimits(timeout_s=entry.timeout_s),
        requests=RequestLimit(entry.requests_max, entry.window_s),
    )


def _address(name: str, url: str) -> str:
    """Without a slash at its end. A user or password in it is refused: it would end up in logs."""
    try:
        http_address(url)
    except ValueError as error:
        hint = "write e.g. https://host/path"
        raise HarchError("E0220", f"sources.{name}.url: {error}", hint=hint) from None
    if httpx.URL(url).userinfo:
        raise HarchError("E0220", f"sources.{name}.url: must not contain user and password", hint="use key_file")
    return url.rstrip("/")


def _some_of(name: str, known: frozenset[Signal], requested: tuple[Signal, ...]) -> frozenset[Signal]:
    if unknown := set(requested) - known:
        raise HarchError(
            "E0220",
            f"sources.{name}.signals: {', '.join(sorted(unknown))} not offered",
            hint=f"use {', '.join(sorted(known))}",
        )
    return frozenset(requested)


def _needed(what: str, variable: str, path: str, world: SourceContext) -> ApiKey:
    key = _optional(what, variable, path, world)
    if key is None:
        raise HarchError("E0220", f"{what}: no key given", hint="name an environment variable or a file that holds it")
    return key


def _optional(what: str, variable: str, path: str, world: SourceContext) -> ApiKey | None:
    if not variable and not path:
        return None
    return read_key(what, variable=variable, path=str(world.folder / path), environment=world.environment)
