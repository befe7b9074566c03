"""Which sources does the carbon file name, and in which order? TOML in, settings out, or one error with all mistakes.

Keys are not in the file: it names the environment variable or the file that holds them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as dataclass_replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from harch.base.errors import HarchError, Problems
from harch.carbon.planning.settings import BudgetsEntry, PlanningEntry, PlanSettings
from harch.carbon.signals.quality import DEFAULT_LIMITS, SignalLimits
from harch.carbon.signals.sites import CLEARNESS, PERFORMANCE, OnSite
from harch.carbon.values import Signal

CODE = "E0220"
HINT = "docs/guides/carbon.md describes the file and shows an example"
FILE_BYTES_MAX = 1024 * 1024
ENTRIES_MAX = 1000

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Text = Annotated[str, Meta(min_length=1, max_length=1024)]
Moment = Annotated[datetime, Meta(tz=True)]
Orders = dict[Signal, list[Text]]
_TABLES = ("sources", "order", "hubs", "zones", "limits", "planning", "budgets")


class WebEntry(Struct, forbid_unknown_fields=True, kw_only=True):
    """What all web APIs have in common."""

    every_s: Positive = 300.0
    timeout_s: Positive = 10.0
    requests_max: Count = 600
    window_s: Positive = 3600.0


class ElectricityMapsEntry(WebEntry, tag_field="type", tag="electricity-maps", kw_only=True):
    url: Text = ""
    key_env: Text = ""
    key_file: Text = ""
    signals: tuple[Signal, ...] = (Signal.GRID_AVERAGE_LIFECYCLE,)
    zones: dict[str, str] = {}
    forecast: bool = False


class WattTimeEntry(WebEntry, tag_field="type", tag="watttime", kw_only=True):
    url: Text = ""
    user_env: Text = ""
    user_file: Text = ""
    password_env: Text = ""
    password_file: Text = ""
    regions: dict[str, str] = {}


class OpenMeteoEntry(WebEntry, tag_field="type", tag="open-meteo", kw_only=True):
    every_s: Positive = 900.0
    url: Text = ""
    key_env: Text = ""
    key_file: Text = ""


class QueryEntry(Struct, forbid_unknown_fields=True):
    query: Text
    unit: Text
    estimated: bool = False


class PrometheusEntry(WebEntry, tag_field="type", tag="prometheus", kw_only=True):
    url: Text
    queries: Annotated[dict[Signal, QueryEntry], Meta(min_length=1)]
    every_s: Positive = 30.0
    timeout_s: Positive = 5.0
    requests_max: Count = 6000
    key_env: Text = ""
    key_file: Text = ""


class ColumnEntry(Struct, forbid_unknown_fields=True):
    column: Text
    unit: Text


class CsvEntry(Struct, tag_field="type", tag="csv", forbid_unknown_fields=True, kw_only=True):
    path: Text
    time: Text
    values: Annotated[dict[Signal, ColumnEntry], Meta(min_length=1)]
    place: str = ""
    forecast: bool = False  # rows about times to come are a forecast
    naive_times: Literal["refuse", "utc"] = "refuse"
    estimated: bool = False
    every_s: Positive = 30.0


class ManualValueEntry(Struct, forbid_unknown_fields=True):
    place: Text
    signal: Signal
    value: float
    unit: Text
    since: Moment
    until: Moment
    note: str = ""


class ManualEntry(Struct, tag_field="type", tag="manual", forbid_unknown_fields=True, kw_only=True):
    values: list[ManualValueEntry] = []
    every_s: Positive = 30.0


Entry = ElectricityMapsEntry | WattTimeEntry | OpenMeteoEntry | PrometheusEntry | CsvEntry | ManualEntry


class _Plants(Struct, forbid_unknown_fields=True):
    pv_kw_peak: NotNegative = 0.0
    wind_kw: NotNegative = 0.0
    battery_kw: NotNegative = 0.0
    battery_kwh: NotNegative = 0.0
    clearness: Share = CLEARNESS
    performance: Share = PERFORMANCE
    wind_capacity_factor: Share | None = None


class PlaceEntry(Struct, forbid_unknown_fields=True):
    """A hub or a grid zone. Only a hub has plants, or a grid zone other than the fleet file's."""

    order: Orders = {}
    onsite: _Plants | None = None
    grid_zone: str = ""
    transmission_loss: Annotated[float, Meta(ge=0, le=0.5)] = 0.0  # of what the grid delivers to the meter
    ppa_share: Share = 0.0  # of the grid's delivery, what agreements cover


class _LimitsEntry(Struct, forbid_unknown_fields=True):
    low: float | None = None
    high: float | None = None
    stale_after_s: Positive | None = None
    stuck_after_s: Positive | None = None
    odd_factor: Annotated[float, Meta(gt=1)] | None = None
    odd_margin_above: NotNegative | None = None
    odd_margin_below: NotNegative | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CarbonConfig:
    """The carbon file, checked. An empty one is valid: everything is modelled then."""

    entries: Mapping[str, Entry]
    order: Mapping[Signal, list[str]]
    hubs: Mapping[str, PlaceEntry]
    zones: Mapping[str, PlaceEntry]
    limits: Mapping[Signal, SignalLimits]
    plan: PlanSettings = field(default_factory=PlanSettings)

    def supply(self, hub: str) -> tuple[float, float]:
        """Transmission loss, and the share of the grid's delivery that agreements cover."""
        entry = self.hubs.get(hub)
        return (entry.transmission_loss, entry.ppa_share) if entry is not None else (0.0, 0.0)

    def onsite(self, hub: str) -> OnSite:
        plants = self.hubs[hub].onsite if hub in self.hubs else None
        return OnSite() if plants is None else OnSite(**msgspec.structs.asdict(plants))


EMPTY = CarbonConfig(entries={}, order={}, hubs={}, zones={}, limits=DEFAULT_LIMITS)


def load_config(path: Path) -> CarbonConfig:
    """Reads and checks a carbon file. Raises HarchError E0220."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HarchError(CODE, f"{path}: cannot be read ({type(error).__name__})", hint=HINT) from error
    return parse_config(text, str(path))


def parse_config(text: str, source_name: str = "carbon.toml") -> CarbonConfig:
    """Checks the text of a carbon file; `source_name` names it in errors. Raises HarchError E0220."""
    if len(text) > FILE_BYTES_MAX:
        raise HarchError(CODE, f"{source_name}: larger than {FILE_BYTES_MAX // 1024} KiB", hint=HINT)
    try:
        root = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise HarchError(CODE, f"{source_name}: not valid TOML: {str(error)[:200]}", hint=HINT) from error
    problems = Problems()
    for name in root.keys() - set(_TABLES):
        problems.add(name[:64], f"unknown key; use {', '.join(_TABLES[:-1])} or {_TABLES[-1]}")
    config = CarbonConfig(
        entries=dict(_tables(root, "sources", Entry, problems)),
        order=_convert(root.get("order", {}), Orders, "order", problems) or {},
        hubs=dict(_tables(root, "hubs", PlaceEntry, problems)),
        zones=dict(_tables(root, "zones", PlaceEntry, problems)),
        limits={**DEFAULT_LIMITS, **dict(_read_limits(root, problems))},
        plan=PlanSettings(
            _convert(root.get("planning", {}), PlanningEntry, "planning", problems) or PlanningEntry(),
            _convert(root.get("budgets", {}), BudgetsEntry, "budgets", problems) or BudgetsEntry(),
        ),
    )
    if not problems:
        _check_orders(config, problems)
    if problems:
        raise HarchError(CODE, f"{source_name}: {problems}", hint=HINT, field=problems.found[0][0])
    return config


def _tables(root: Mapping[str, object], key: str, shape: Any, problems: Problems) -> Iterator[tuple[str, Any]]:
    tables = root.get(key, {})
    if not isinstance(tables, dict) or len(tables) > ENTRIES_MAX:
        problems.add(key, f"must hold at most {ENTRIES_MAX} named tables; write e.g. `[{key}.NAME]`")
        return
    for name, raw in tables.items():
        if (entry := _convert(raw, shape, f"{key}.{name[:64]}", problems)) is not None:
            yield name, entry


def _read_limits(root: Mapping[str, object], problems: Problems) -> Iterator[tuple[Signal, SignalLimits]]:
    for name, entry in _tables(root, "limits", _LimitsEntry, problems):
        if name not in list(Signal):
            problems.add(f"limits.{name[:64]}", f"not a signal; use {', '.join(Signal)}")
            continue
        given = {key: value for key, value in msgspec.structs.asdict(entry).items() if value is not None}
        yield Signal(name), dataclass_replace(DEFAULT_LIMITS[Signal(name)], **given)


def _convert(raw: object, shape: Any, where: str, problems: Problems) -> Any:
    """A value of the shape, which may be a union and therefore is no type to the checker; None after a problem."""
    try:
        return msgspec.convert(raw, shape)
    except msgspec.ValidationError as error:
        problems.add(where, str(error)[:300])
        return None


def _check_orders(config: CarbonConfig, problems: Problems) -> None:
    known = {*config.entries, "modelled"}
    if "modelled" in config.entries:
        problems.add("sources.modelled", "is reserved for the built-in model; use another name")
    places = [("order", config.order)]
    places += [(f"hubs.{name}.order", entry.order) for name, entry in config.hubs.items()]
    places += [(f"zones.{name}.order", entry.order) for name, entry in config.zones.items()]
    for where, orders in places:
        for signal, names in orders.items():
            for name in names:
                if name not in known:
                    problems.add(f"{where}.{signal}", f"no source named `{name[:64]}`")
