"""Which band holds when? Reads the seasons of a time-of-use tariff; every minute of the year has exactly one price."""

from __future__ import annotations

import re
from datetime import date, timedelta

from harch.energy.tariffs.entries import Entry, minutes_of
from harch.energy.tariffs.terms import QUARTER_MINUTES, QUARTERS_PER_DAY, WEEKDAYS, Season, TimeOfUse

_MONTH_DAY = re.compile(r"(\d\d)-(\d\d)")
_DAYS = {"all": range(7), "weekdays": range(5), "weekend": range(5, 7)}
_LEAP_YEAR = 2024  # has every day that a year can have
_NO_BAND = -1


def read_time_of_use(entry: Entry) -> TimeOfUse:
    entry.only("kind", "seasons")
    seasons = tuple(_read_season(season) for season in entry.tables("seasons"))
    if not seasons:
        entry.wrong("seasons", f"needs at least one season; write `[[{entry.at('seasons')}]]`")
    elif not entry.problems:
        _check_year(seasons, entry)
    return TimeOfUse(seasons)


def _read_season(entry: Entry) -> Season:
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


def _week(rows: list[tuple[Entry, list[int], list[int] | None]], entry: Entry) -> tuple[tuple[int, ...], ...]:
    """Which band each quarter hour of the week belongs to. A band without hours takes what the others leave."""
    week = [[_NO_BAND] * QUARTERS_PER_DAY for _ in WEEKDAYS]
    for index, (band, days, quarters) in enumerate(rows):
        for day in days if quarters is not None else ():
            for quarter in quarters or ():
                if week[day][quarter] != _NO_BAND:
                    other = rows[week[day][quarter]][0].raw.get("name")
                    band.wrong("hours", f"{_moment(day, quarter)} is in `{other}` too; let every hour be in one band")
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


def _days(band: Entry) -> list[int]:
    value = band.raw.get("days", "all")
    if isinstance(value, str) and value in _DAYS:
        return list(_DAYS[value])
    if isinstance(value, list) and value and all(day in WEEKDAYS for day in value):
        return sorted({WEEKDAYS.index(day) for day in value})
    band.wrong("days", f'must be "all", "weekdays", "weekend" or a list of {", ".join(WEEKDAYS)}')
    return []


def _quarters(band: Entry) -> list[int] | None:
    """The quarter hours of a day that the band names; None: the rest. `22:00-06:00` runs over midnight."""
    value = band.raw.get("hours")
    if value is None:
        return None
    found: list[int] = []
    for text in value if isinstance(value, list) else [value]:
        ends = [minutes_of(part) for part in text.split("-")] if isinstance(text, str) else []
        if len(ends) != 2 or None in ends or any(end is not None and end % QUARTER_MINUTES for end in ends):
            band.wrong("hours", f'must be spans of quarter hours such as "17:00-22:00", not `{str(text)[:40]}`')
            return []
        first, last = ((end or 0) // QUARTER_MINUTES for end in ends)
        if first == last:
            band.wrong("hours", f"`{text}` is no time at all")
        found += range(first, last) if first < last else [*range(first, QUARTERS_PER_DAY), *range(last)]
    return found


def _month_day(entry: Entry, name: str, default: tuple[int, int]) -> tuple[int, int]:
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


def _check_year(seasons: tuple[Season, ...], entry: Entry) -> None:
    first = date(_LEAP_YEAR, 1, 1)
    for offset in range(366):
        day = first + timedelta(days=offset)
        held = [season.name for season in seasons if season.holds_on(day.month, day.day)]
        if len(held) != 1:
            what = f"is in {len(held)} seasons ({', '.join(held)})" if held else "is in no season"
            entry.wrong("seasons", f"{day:%m-%d} {what}; let every day be in one")
            return


def _moment(day: int, quarter: int) -> str:
    minutes = quarter * QUARTER_MINUTES
    return f"{WEEKDAYS[day]} {minutes // 60:02}:{minutes % 60:02}"
