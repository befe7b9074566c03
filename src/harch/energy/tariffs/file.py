"""Which contract does this file describe? TOML in, `Tariff` out, or one error with all mistakes and fixes."""

from __future__ import annotations

import tomllib
from datetime import UTC, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from harch.base.errors import HarchError, Problems
from harch.energy.currencies import is_currency
from harch.energy.tariffs.bands import read_time_of_use
from harch.energy.tariffs.entries import Entry
from harch.energy.tariffs.terms import DemandCharge, EnergyPrice, FlatPrice, Ppa, Sale, SpotPrice, Tariff

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
    tariff = read_tariff(Entry(raw, "", problems))
    if problems:
        _refuse(problems, source_name)
    return tariff


def read_tariff(root: Entry) -> Tariff:
    """The contract of a table. Mistakes are collected in the entry's problems."""
    root.only("name", "currency", "time_zone", "fee_per_mwh", "energy", "demand_charge", "ppas", "sale")
    currency = root.text("currency")
    if currency and not is_currency(currency):
        root.wrong("currency", f"`{currency}` is no ISO 4217 code; use e.g. MAD, XOF or USD")
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


def _read_energy(root: Entry) -> EnergyPrice:
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


def _read_demand(root: Entry) -> DemandCharge | None:
    entry = root.table("demand_charge")
    if entry is None:
        return None
    entry.only("per_kw_month")
    return DemandCharge(entry.number("per_kw_month", low=0, high=1e7))


def _read_ppas(root: Entry) -> tuple[Ppa, ...]:
    found = tuple(_read_ppa(entry) for entry in root.tables("ppas"))
    names = [ppa.name for ppa in found]
    for name in sorted({name for name in names if names.count(name) > 1}):
        root.wrong("ppas", f"`{name}` is there {names.count(name)} times; give every agreement its own name")
    return found


def _read_ppa(entry: Entry) -> Ppa:
    entry.only("name", "price_per_mwh", "volume_kw", "share", "plant", "must_take", "contract_g_per_kwh")
    if ("volume_kw" in entry.raw) == ("share" in entry.raw):
        entry.wrong("volume_kw", "give either `volume_kw` or `share` with `plant`")
    volume = entry.number("volume_kw", low=0, high=_POWER_KW_MAX) if "volume_kw" in entry.raw else None
    share = entry.number("share", low=0, high=1) if "share" in entry.raw else None
    if share is not None and "plant" not in entry.raw:
        entry.wrong("plant", "is missing; a share is a share of a plant")
    return Ppa(
        name=entry.text("name"),
        per_mwh=entry.price("price_per_mwh"),
        volume_kw=volume,
        share=share,
        plant=entry.text("plant", "none"),
        must_take=entry.flag("must_take", False),
        contract_g_per_kwh=entry.number("contract_g_per_kwh", low=0, high=2000, default=0.0),
    )


def _read_sale(root: Entry, energy: EnergyPrice) -> Sale | None:
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


def _zone(entry: Entry, name: str, default: str | None) -> tzinfo:
    zone = entry.text(name, default)
    try:
        return ZoneInfo(zone) if zone else UTC
    except (ZoneInfoNotFoundError, ValueError, OSError):
        entry.wrong(name, f"`{zone}` is no time zone of this machine; use e.g. Africa/Casablanca or UTC")
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
