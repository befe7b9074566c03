"""Does a tariff file say what it means, and does a wrong one say why it is wrong?"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.energy.tariffs.file import load_tariff, parse_tariff
from harch.energy.tariffs.terms import FlatPrice, SpotPrice, TimeOfUse
from unit.energy.energy_fixtures import SPOT, TIME_OF_USE, spot_tariff, time_of_use

FLAT = 'name = "flat"\ncurrency = "USD"\n[energy]\nkind = "flat"\nprice_per_mwh = 90\n'


def refusal(text: str) -> str:
    with pytest.raises(HarchError) as caught:
        parse_tariff(text, "t.toml")
    assert caught.value.code == "E0240"
    assert caught.value.hint
    assert caught.value.message.startswith("t.toml: ")
    return caught.value.message


def test_a_flat_tariff_is_five_lines() -> None:
    tariff = parse_tariff(FLAT)
    assert tariff.energy == FlatPrice(90.0)
    assert tariff.sale is None
    assert tariff.demand is None


def test_bands_follow_season_weekday_and_local_time() -> None:
    tariff = time_of_use()
    terms = tariff.energy
    assert isinstance(terms, TimeOfUse)
    for moment, band in (
        ("2026-03-03T18:00", ("winter peak", 1400.0)),  # a Tuesday
        ("2026-03-07T18:00", ("winter normal", 1000.0)),  # a Saturday
        ("2026-03-31T23:59", ("winter normal", 1000.0)),
        ("2026-04-01T00:00", ("summer night", 700.0)),
        ("2026-07-05T18:15", ("summer normal", 1100.0)),
        ("2026-07-05T18:30", ("summer peak", 1500.0)),
        ("2026-07-05T06:59", ("summer night", 700.0)),
    ):
        assert terms.band_at(datetime.fromisoformat(moment)) == band, moment


def test_agreements_are_read_with_their_kind_of_volume() -> None:
    farm, base = time_of_use().ppas
    assert (farm.share, farm.plant, farm.must_take, farm.volume_kw) == (0.25, "akhfenir", True, None)
    assert (base.volume_kw, base.must_take, base.share) == (100.0, False, None)


def test_tomorrows_prices_are_known_from_the_stated_hour_on() -> None:
    terms = spot_tariff().energy
    assert isinstance(terms, SpotPrice)
    before = datetime(2026, 7, 1, 10, 59, tzinfo=UTC)  # 12:59 in Madrid
    after = datetime(2026, 7, 1, 11, 0, tzinfo=UTC)
    assert terms.known_until(before) == datetime(2026, 7, 1, 22, tzinfo=UTC)
    assert terms.known_until(after) == datetime(2026, 7, 2, 22, tzinfo=UTC)
    assert terms.day_of(datetime(2026, 7, 1, 22, tzinfo=UTC)) == "2026-07-02"


def test_a_market_day_is_23_hours_long_when_clocks_go_forward() -> None:
    terms = spot_tariff().energy
    assert isinstance(terms, SpotPrice)
    first = terms.known_until(datetime(2026, 3, 28, 8, tzinfo=UTC))
    assert (terms.known_until(datetime(2026, 3, 29, 8, tzinfo=UTC)) - first).total_seconds() == 23 * 3600


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('currency = "MAD"', 'currency = "dirham"', "not an ISO 4217 code"),
        ("fee_per_mwh = 50", "fee_per_mwh = nan", "fee_per_mwh: must be a number"),
        ("fee_per_mwh = 50", "fee_per_mwh = 1e12", "fee_per_mwh: is 1e+12"),
        ("fee_per_mwh = 50", "fee_per_mhw = 50", "fee_per_mhw: unknown key"),
        ('time_zone = "Africa/Casablanca"', 'time_zone = "Morocco/Casa"', "is not a time zone"),
        ('kind = "time-of-use"', 'kind = "tou"', "`tou` is not known; use flat, time-of-use, spot"),
        ('hours = "17:00-22:00"', 'hours = "17:00-25:00"', "must be quarter-hour spans"),
        ('hours = "17:00-22:00"', 'hours = "17:05-22:00"', "must be quarter-hour spans"),
        ('hours = "17:00-22:00"', 'hours = "17:00-17:00"', "is an empty time span"),
        ('days = "weekdays"', 'days = ["monday"]', "days: must be"),
        ('hours = ["18:30-23:00"]', 'hours = ["18:30-23:30"]', "mon 23:00 is in `peak` too"),
        ('from = "04-01"', 'from = "04-05"', "04-01 is in no season"),
        ('from = "04-01"', 'from = "03-05"', "03-05 is in 2 seasons (winter, summer)"),
        ('from = "04-01"', 'from = "04-31"', "must be a month and a day"),
        ("per_kw_month = 40", "per_kw_month = -1", "per_kw_month: is -1"),
        ("share = 0.25", "share = 25", "share: is 25; use 0 to 1"),
        ("share = 0.25\n", "share = 0.25\nvolume_kw = 5\n", "give either `volume_kw` or `share`"),
        ('plant = "akhfenir"\n', "", "plant: is missing"),
        ('name = "baseload"', 'name = "wind farm"', "`wind farm` occurs 2 times"),
        ("must_take = true", 'must_take = "yes"', "must be true or false"),
        ("[sale]\nprice_per_mwh = 200", "[sale]\nshare_of_spot = 0.5", "needs a contract with spot prices"),
        ("[demand_charge]", "[[demand_charge]]", "must be a table"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_fix(old: str, new: str, said: str) -> None:
    assert old in TIME_OF_USE
    assert said in refusal(TIME_OF_USE.replace(old, new, 1))


def test_an_hour_without_a_price_is_a_mistake() -> None:
    text = FLAT.replace('"flat"\nprice_per_mwh = 90', '"time-of-use"\n[[energy.seasons]]\n[[energy.seasons.bands]]\n')
    text += 'name = "day"\nprice_per_mwh = 5\nhours = "06:00-22:00"\n'
    assert "mon 00:00 has no price" in refusal(text)


def test_a_spot_contract_needs_zone_and_hour_of_publication() -> None:
    assert 'published_at: must be a time of day, e.g. "13:00"' in refusal(SPOT.replace('"13:00"', '"25:00"'))
    assert "energy.zone" in refusal(SPOT.replace('zone = "ES"\n', ""))


def test_all_mistakes_are_told_at_once() -> None:
    text = FLAT.replace('"USD"', '"usd"').replace("90", '"cheap"')
    assert "2 problems" in refusal(text)


@pytest.mark.parametrize("text", ["", "name = ", "x" * 300_000, 'energy = 1\nname = "a"\ncurrency = "USD"'])
def test_what_is_no_tariff_at_all_is_refused(text: str) -> None:
    refusal(text)


def test_files_are_read_and_missing_ones_refused(tmp_path: Path) -> None:
    path = tmp_path / "tariff.toml"
    path.write_text(FLAT)
    assert load_tariff(path).name == "flat"
    with pytest.raises(HarchError, match="cannot be read"):
        load_tariff(tmp_path / "none.toml")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(HarchError, match="not UTF-8"):
        load_tariff(path)
