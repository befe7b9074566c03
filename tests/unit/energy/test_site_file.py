"""Does an energy file become what it says, and does a wrong one name every mistake?"""

from __future__ import annotations

from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.energy.plugins import MarketContext, open_adapter
from harch.energy.site_file import load_sites, modelled_site, modelled_spot, parse_sites
from harch.energy.steps import Steps
from harch.energy.tariffs.terms import SpotPrice
from unit.energy.energy_fixtures import SPOT, START, TIME_OF_USE

WHOLE = """
[hubs.casablanca]
tariff = "contract.toml"
import_kw_max = 4000
step_min = 30
objective = "self-consumption"
carbon_per_t = 800
budget_kg_per_month = 120000
[hubs.casablanca.battery]
energy_kwh = 4000
power_kw = 1000
floor_kwh = 400
to_grid = true
stored_share = 0.2
[[hubs.casablanca.flexible]]
name = "batch"
share = 0.3
within_h = 24
power_kw_max = 500
[hubs.casablanca.plants.akhfenir]
wind_kw = 10000
latitude = 28.1
longitude = -12.0
"""


def refused(text: str) -> HarchError:
    with pytest.raises(HarchError) as error:
        parse_sites(text)
    return error.value


def test_a_whole_site_is_read_with_its_contract_from_another_file(tmp_path: Path) -> None:
    (tmp_path / "contract.toml").write_text(TIME_OF_USE)
    (tmp_path / "energy.toml").write_text(WHOLE)
    site = load_sites(tmp_path / "energy.toml")["casablanca"]
    assert (site.tariff.currency, site.step_s, site.modelled, site.market) == ("MAD", 1800, False, None)
    assert site.battery is not None
    assert (site.battery.floor_kwh, site.battery.to_grid, site.battery_stored_share) == (400, True, 0.2)
    assert (site.flexible[0].within_h, site.plants["akhfenir"].latitude) == (24, 28.1)
    assert (site.budget_kg_per_month, site.carbon_per_t, str(site.objective)) == (120000, 800, "self-consumption")


def test_a_share_of_a_plant_needs_the_plant(tmp_path: Path) -> None:
    (tmp_path / "contract.toml").write_text(TIME_OF_USE)
    with pytest.raises(HarchError, match=r"plants\.akhfenir: the agreement wind farm buys a share"):
        parse_sites('[hubs.x]\ntariff = "contract.toml"\n', folder=tmp_path)


def test_a_spot_contract_trades_on_paper_unless_it_says_otherwise() -> None:
    table = "\n".join(
        line.replace("[", "[hubs.x.tariff.", 1) if line.startswith("[") else line for line in SPOT.splitlines()
    )
    site = parse_sites(f"[hubs.x.tariff]\n{table}")["x"]
    assert site.market is not None
    assert (site.market.adapter, site.market.prices, site.market.limits.currency) == ("paper", "signals", "EUR")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[hubs.x]\nspeed = 1\n", "hubs.x.speed: unknown key"),
        ("[hubs.x]\nstep_min = 7\n", "hubs.x.step_min: is 7; use 15, 30, 60"),
        ("[hubs.x]\nimport_kw_max = -1\n", "hubs.x.import_kw_max: is -1"),
        ("[hubs.x]\nbudget_kg_per_month = nan\n", "hubs.x.budget_kg_per_month"),
        ("[hubs.x]\nobjective = 'fun'\n", "hubs.x.objective: `fun` is not known"),
        ("[hubs.x.battery]\nenergy_kwh = 5\npower_kw = 1\nfloor_kwh = 6\n", "hubs.x.battery.floor_kwh: is 6"),
        ("[[hubs.x.flexible]]\nname='a'\nshare=2\nwithin_h=3\npower_kw_max=1\n", "hubs.x.flexible[0].share"),
        ("[hubs.x.market]\nadapter = 'paper'\n", "hubs.x.market: needs a contract"),
        ("[hubs.x]\ntariff = 3\n", "hubs.x.tariff: must be a table"),
        ("[hubz]\n", "hubz: unknown key"),
        ("hubs = 3\n", "hubs: must be a table"),
        ("[[[", "not valid TOML"),
    ],
)
def test_every_mistake_is_named_with_its_place(text: str, where: str) -> None:
    error = refused(text)
    assert (error.code, where in error.message) == ("E0243", True), error.message
    assert error.hint


def test_made_up_prices_are_for_paper_only() -> None:
    head = '[hubs.x.tariff]\nname="a"\ncurrency="EUR"\n[hubs.x.tariff.energy]\nkind="spot"\nzone="ES"\n'
    spot = f'{head}time_zone="UTC"\npublished_at="13:00"\n[hubs.x.market]\n'
    assert "for the paper market only" in refused(f'{spot}adapter = "real"\nprices = "modelled"\n').message
    assert "must be `paper`" in refused(f'{spot}adapter = "rm -rf /"\n').message
    assert "name of a CSV file" in refused(f'{spot}prices = "prices.xlsx"\n').message


def test_the_modelled_contract_says_that_it_is_none(tmp_path: Path) -> None:
    site = modelled_site()
    assert (site.modelled, "modelled" in site.tariff.name, site.market) == (True, True, None)


def test_made_up_days_repeat_and_are_dear_in_the_evening() -> None:
    terms = parse_sites(
        '[hubs.x.tariff]\nname="a"\ncurrency="EUR"\n'
        '[hubs.x.tariff.energy]\nkind="spot"\nzone="ES"\ntime_zone="UTC"\npublished_at="13:00"\n'
    )["x"].tariff.energy
    assert isinstance(terms, SpotPrice)
    prices = modelled_spot(terms, "EUR", Steps(START, 3600, 48)).per_mwh
    assert prices[:24].tolist() == prices[24:].tolist()
    assert prices[20] > prices[3]
    assert prices[20] > prices[13]
    assert prices.min() > 0


def test_an_adapter_without_its_calls_is_refused() -> None:
    context = MarketContext(hub="x", zone="ES", currency="EUR", options={})
    for word in ("types:SimpleNamespace", "json:JSONDecodeError", "nobody-has-this"):
        with pytest.raises(HarchError, match="cannot be used") as error:
            open_adapter(word, context)
        assert error.value.code == "E0243"
