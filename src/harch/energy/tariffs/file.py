"""Which contract does this file describe?

TOML in, `Tariff` out, or one error with all mistakes and fixes; every minute of the year has exactly one price.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, time, timedelta, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from harch.base.errors import HarchError, Problems
from harch.energy.currencies import is_currency
from harch.energy.tariffs.terms import (
    QUARTER_MINUTES,
    QUARTERS_PER_DAY,
    WEEKDAYS,
    DemandCharge,
    EnergyPrice,
    FlatPrice,
    Ppa,
    Sale,
    Season,
    SpotPrice,
    Tariff,
    TimeOfUse,
)

TEXT_CHARS_MAX = 120
ENTRIES_MAX = 64
# Far above any real price, also in currencies of small units; what is above was written in another unit.
PER_MWH_MAX = 1e8
_CLOCK = re.compile(r"([01]\d|2[0-4]):([0-5]\d)")


@dataclass(frozen=True, slots=True)
class TariffEntry:
    """One table and the path that names it to people."""

    raw: dict[str, object]
    path: str
    problems: Problems

    def at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def wrong(self, name: str, what: str) -> None:
        self.problems.add(self.at(name), what)

    def only(self, *names: str) -> None:
        for name in self.raw:
            if name not in names:
                self.wrong(name[:64], f"unknown key; use {', '.join(names)}")

    def text(self, name: str, default: str | None = None) -> str:
        value = self.raw.get(name, default)
        if isinstance(value, str) and 0 < len(value) <= TEXT_CHARS_MAX:
            return value
        if value != default or default is None:
            self.wrong(name, f"must be a string of 1 to {TEXT_CHARS_MAX} characters")
        return default or ""

    def number(self, name: str, *, low: float, high: float, default: float | None = None) -> float:
        value = self.raw.get(name, default)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            if low <= value <= high:
                return float(value)
            self.wrong(name, f"is {value:g}; use {low:g} to {high:g}")
        else:
            self.wrong(name, f"must be a number from {low:g} to {high:g}")
        return low if default is None else default

    def price(self, name: str, default: float | None = None) -> float:
        """Per MWh. Prices may be negative."""
        return self.number(name, low=-PER_MWH_MAX, high=PER_MWH_MAX, default=default)

    def flag(self, name: str, default: bool) -> bool:
        value = self.raw.get(name, default)
        if not isinstance(value, bool):
            self.wrong(name, "must be true or false")
            return default
        return value

    def clock(self, name: str) -> time:
        value = self.raw.get(name)
        minutes = minutes_of(value) if isinstance(value, str) else None
        if minutes is None or minutes == 24 * 60:
            self.wrong(name, 'must be a time of day, e.g. "13:00"')
            return time(0)
        return time(minutes // 60, minutes % 60)

    def table(self, name: str) -> TariffEntry | None:
        value = self.raw.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.wrong(name, f"must be a table; write `[{self.at(name)}]`")
            return None
        return TariffEntry(value, self.at(name), self.problems)

    def tables(self, name: str) -> Iterator[TariffEntry]:
        value = self.raw.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            self.wrong(name, f"must be tables; write `[[{self.at(name)}]]`")
            return
        if len(value) > ENTRIES_MAX:
            self.wrong(name, f"has {len(value)} entries, the limit is {ENTRIES_MAX}")
            return
        for index, item in enumerate(value):
            yield TariffEntry(item, f"{self.at(name)}[{index}]", self.problems)


def minutes_of(text: str) -> int | None:
    """Minutes after midnight of `HH:MM`, up to 24:00; None if it is no time."""
    found = _CLOCK.fullmatch(text)
    if found is None:
        return None
    minutes = int(found[1]) * 60 + int(found[2])
    return minutes if minutes <= 24 * 60 else None


# Which band holds when? Reads the seasons of a time-of-use tariff; every minute of the year has exactly one price.


_MONTH_DAY = re.compile(r"(\d\d)-(\d\d)")
_DAYS = {"all": range(7), "weekdays": range(5), "weekend": range(5, 7)}
_LEAP_YEAR = 2024  # has every day that a year can have
_NO_BAND = -1


def read_time_of_use(entry: TariffEntry) -> TimeOfUse:
    entry.only("kind", "seasons")
    seasons = tuple(_read_season(season) for season in entry.tables("seasons"))
    if not seasons:
        entry.wrong("seasons", f"needs at least one season; write `[[{entry.at('seasons')}]]`")
    elif not entry.problems:
        _check_year(seasons, entry)
    return TimeOfUse(seasons)


def _read_season(entry: TariffEntry) -> Season:
    entry.only("name", "from", "to", "bands")
    bands, rows = [], []
    for band in entry.tables("bands"):
        band.only("name", "price_per_mwh", "days", "hours")
        bands.append((band.text("name"), band.price("price_per_mwh")))
        rows.append((band, _days(band), _quarters(band)))
    if not bands:
        entry.wrong("bands", "needs at least one band")
    return Season(
        name=entry.text("name", "all year"),
        first=_month_day(entry, "from", (1, 1)),
        last=_month_day(entry, "to", (12, 31)),
        bands=tuple(bands),
        band_of_quarter=_week(rows, entry),
    )


def _week(
    rows: list[tuple[TariffEntry, list[int], list[int] | None]], entry: TariffEntry
) -> tuple[tuple[int, ...], ...]:
    """Which band each quarter hour of the week belongs to. A band without hours takes what the others leave."""
    week = [[_NO_BAND] * QUARTERS_PER_DAY for _ in WEEKDAYS]
    for index, (band, days, quarters) in enumerate(rows):
        for day in days if quarters is not None else ():
            for quarter in quarters or ():
                if week[day][quarter] != _NO_BAND:
                    other = rows[week[day][quarter]][0].raw.get("name")
                    band.wrong(
                        "hours", f"{_moment(day, quarter)} is in `{other}` too; each hour must be in exactly one band"
                    )
                    return tuple(map(tuple, week))
                week[day][quarter] = index
    for index, (_, days, quarters) in enumerate(rows):
        if quarters is None:
            for day in days:
                week[day] = [index if old == _NO_BAND else old for old in week[day]]
    for day, line in enumerate(week):
        if _NO_BAND in line and rows:
            gap = _moment(day, line.index(_NO_BAND))
            entry.wrong("bands", f"{gap} has no price; add a band without `hours` for the rest")
            break
    return tuple(map(tuple, week))


def _days(band: TariffEntry) -> list[int]:
    value = band.raw.get("days", "all")
    if isinstance(value, str) and value in _DAYS:
        return list(_DAYS[value])
    if isinstance(value, list) and value and all(day in WEEKDAYS for day in value):
        return sorted({WEEKDAYS.index(day) for day in value})
    band.wrong("days", f'must be "all", "weekdays", "weekend" or a list of {", ".join(WEEKDAYS)}')
    return []


def _quarters(band: TariffEntry) -> list[int] | None:
    """The quarter hours of a day that the band names; None: the rest. `22:00-06:00` runs over midnight."""
    value = band.raw.get("hours")
    if value is None:
        return None
    found: list[int] = []
    for text in value if isinstance(value, list) else [value]:
        ends = [minutes_of(part) for part in text.split("-")] if isinstance(text, str) else []
        if len(ends) != 2 or None in ends or any(end is not None and end % QUARTER_MINUTES for end in ends):
            band.wrong("hours", f'must be quarter-hour spans such as "17:00-22:00", not `{str(text)[:40]}`')
            return []
        first, last = ((end or 0) // QUARTER_MINUTES for end in ends)
        if first == last:
            band.wrong("hours", f"`{text}` is an empty time span")
        found += range(first, last) if first < last else [*range(first, QUARTERS_PER_DAY), *range(last)]
    return found


def _month_day(entry: TariffEntry, name: str, default: tuple[int, int]) -> tuple[int, int]:
    value = entry.raw.get(name)
    if value is None:
        return default
    found = _MONTH_DAY.fullmatch(value) if isinstance(value, str) else None
    try:
        day = date(_LEAP_YEAR, int(found[1]), int(found[2])) if found else None
    except ValueError:
        day = None
    if day is None:
        entry.wrong(name, 'must be a month and a day, e.g. "10-01"')
        return default
    return day.month, day.day


def _check_year(seasons: tuple[Season, ...], entry: TariffEntry) -> None:
    first = date(_LEAP_YEAR, 1, 1)
    for offset in range(366):
        day = first + timedelta(days=offset)
        held = [season.name for season in seasons if season.holds_on(day.month, day.day)]
        if len(held) != 1:
            what = f"is in {len(held)} seasons ({', '.join(held)})" if held else "is in no season"
            entry.wrong("seasons", f"{day:%m-%d} {what}; each day must be in exactly one")
            return


def _moment(day: int, quarter: int) -> str:
    minutes = quarter * QUARTER_MINUTES
    return f"{WEEKDAYS[day]} {minutes // 60:02}:{minutes % 60:02}"


# Which contract does this file describe? TOML in, `Tariff` out, or one error with all mistakes and fixes.


CODE = "E0240"
HINT = "docs/guides/energy.md describes the file and shows examples"
FILE_CHARS_MAX = 256 * 1024
_POWER_KW_MAX = 1e7
_KINDS = ("flat", "time-of-use", "spot")


def load_tariff(path: Path | str) -> Tariff:
    """Reads and checks a tariff file. Raises HarchError E0240 for whatever is wrong, a missing file included."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(FILE_CHARS_MAX + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise HarchError(CODE, f"{path}: cannot be read ({reason})", hint=HINT) from error
    return parse_tariff(text, str(path))


def parse_tariff(text: str, source_name: str = "tariff.toml") -> Tariff:
    """Checks the text of a tariff file; `source_name` names it in errors. Raises HarchError E0240."""
    if len(text) > FILE_CHARS_MAX:
        raise HarchError(CODE, f"{source_name}: larger than {FILE_CHARS_MAX // 1024} KiB", hint=HINT)
    try:
        raw = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise HarchError(CODE, f"{source_name}: not valid TOML: {str(error)[:200]}", hint=HINT) from error
    problems = Problems()
    tariff = read_tariff(TariffEntry(raw, "", problems))
    if problems:
        _refuse(problems, source_name)
    return tariff


def read_tariff(root: TariffEntry) -> Tariff:
    """The contract of a table. Mistakes are collected in the entry's problems."""
    root.only("name", "currency", "time_zone", "fee_per_mwh", "energy", "demand_charge", "ppas", "sale")
    currency = root.text("currency")
    if currency and not is_currency(currency):
        root.wrong("currency", f"`{currency}` is not an ISO 4217 code; use e.g. MAD, XOF or USD")
    local_time = _zone(root, "time_zone", "UTC")
    energy = _read_energy(root)
    return Tariff(
        name=root.text("name"),
        currency=currency,
        local_time=local_time,
        energy=energy,
        fee_per_mwh=root.price("fee_per_mwh", 0.0),
        demand=_read_demand(root),
        ppas=_read_ppas(root),
        sale=_read_sale(root, energy),
    )


def _read_energy(root: TariffEntry) -> EnergyPrice:
    entry = root.table("energy")
    if entry is None:
        if "energy" not in root.raw:
            root.wrong("energy", 'is missing; write `[energy]` with `kind = "flat"`, "time-of-use" or "spot"')
        return FlatPrice(0.0)
    kind = entry.text("kind", "flat")
    if kind == "time-of-use":
        return read_time_of_use(entry)
    if kind == "spot":
        entry.only("kind", "zone", "time_zone", "published_at")
        return SpotPrice(entry.text("zone"), _zone(entry, "time_zone", None), entry.clock("published_at"))
    if kind != "flat":
        entry.wrong("kind", f"`{kind}` is not known; use {', '.join(_KINDS)}")
        return FlatPrice(0.0)
    entry.only("kind", "price_per_mwh")
    return FlatPrice(entry.price("price_per_mwh"))


def _read_demand(root: TariffEntry) -> DemandCharge | None:
    entry = root.table("demand_charge")
    if entry is None:
        return None
    entry.only("per_kw_month")
    return DemandCharge(entry.number("per_kw_month", low=0, high=1e7))


def _read_ppas(root: TariffEntry) -> tuple[Ppa, ...]:
    found = tuple(_read_ppa(entry) for entry in root.tables("ppas"))
    names = [ppa.name for ppa in found]
    for name in sorted({name for name in names if names.count(name) > 1}):
        root.wrong("ppas", f"`{name}` occurs {names.count(name)} times; names must be unique")
    return found


def _read_ppa(entry: TariffEntry) -> Ppa:
    entry.only("name", "price_per_mwh", "volume_kw", "share", "plant", "must_take", "contract_g_per_kwh")
    if ("volume_kw" in entry.raw) == ("share" in entry.raw):
        entry.wrong("volume_kw", "give either `volume_kw` or `share` with `plant`")
    volume = entry.number("volume_kw", low=0, high=_POWER_KW_MAX) if "volume_kw" in entry.raw else None
    share = entry.number("share", low=0, high=1) if "share" in entry.raw else None
    if share is not None and "plant" not in entry.raw:
        entry.wrong("plant", "is missing; `share` needs a plant")
    return Ppa(
        name=entry.text("name"),
        per_mwh=entry.price("price_per_mwh"),
        volume_kw=volume,
        share=share,
        plant=entry.text("plant", "none"),
        must_take=entry.flag("must_take", False),
        contract_g_per_kwh=entry.number("contract_g_per_kwh", low=0, high=2000, default=0.0),
    )


def _read_sale(root: TariffEntry, energy: EnergyPrice) -> Sale | None:
    entry = root.table("sale")
    if entry is None:
        return None
    entry.only("price_per_mwh", "share_of_spot")
    if ("price_per_mwh" in entry.raw) == ("share_of_spot" in entry.raw):
        entry.wrong("price_per_mwh", "give either `price_per_mwh` or `share_of_spot`")
    if "share_of_spot" in entry.raw:
        if not isinstance(energy, SpotPrice):
            entry.wrong("share_of_spot", "needs a contract with spot prices")
        return Sale(None, entry.number("share_of_spot", low=0, high=1))
    return Sale(entry.price("price_per_mwh"), None)


def _zone(entry: TariffEntry, name: str, default: str | None) -> tzinfo:
    zone = entry.text(name, default)
    try:
        return ZoneInfo(zone) if zone else UTC
    except (ZoneInfoNotFoundError, ValueError, OSError):
        entry.wrong(name, f"`{zone}` is not a time zone on this machine; use e.g. Africa/Casablanca or UTC")
        return UTC


def _refuse(problems: Problems, source_name: str) -> None:
    lines = [f"{where}: {what}" for where, what in problems.found]
    one = len(lines) == 1
    message = f"{source_name}: {lines[0]}" if one else f"{source_name}: {len(lines)} problems\n  " + "\n  ".join(lines)
    meta: dict[str, object] = {
        "source": source_name,
        "problems": [{"where": where, "what": what} for where, what in problems.found],
    }
    raise HarchError(CODE, message, hint=HINT, field=problems.found[0][0], meta=meta)
