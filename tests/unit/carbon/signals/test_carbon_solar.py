"""Does the small model of the sun agree with pvlib? (pvlib is needed by this test only; ADR 23.)"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pandas as pd
import pvlib
import pytest

from harch.carbon.signals.sites import clear_sky_w_per_m2, sun_elevation_deg
from harch.fleet.file import shipped_fleet

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of pandas, about calls in pvlib
PLACES = {hub.id: (hub.latitude, hub.longitude) for hub in shipped_fleet("twenty-hubs").hubs} | {
    hub.id: (hub.latitude, hub.longitude) for hub in shipped_fleet("five-hubs").hubs
}
# A year in steps that are no divisor of a day, so that all hours of all seasons are met.
MOMENTS = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=397 * step) for step in range(1323)]


@pytest.mark.parametrize("hub", sorted(PLACES))
def test_the_sun_stands_where_pvlib_says_within_two_hundredths_of_a_degree(hub: str) -> None:
    latitude, longitude = PLACES[hub]
    expected = pvlib.solarposition.get_solarposition(pd.DatetimeIndex(MOMENTS), latitude, longitude)
    own = [sun_elevation_deg(moment, latitude, longitude) for moment in MOMENTS]
    assert (expected["elevation"] - own).abs().max() < 0.02


@pytest.mark.parametrize("hub", sorted(PLACES))
def test_the_clear_sky_is_pvlibs_haurwitz_within_a_watt(hub: str) -> None:
    latitude, longitude = PLACES[hub]
    position = pvlib.solarposition.get_solarposition(pd.DatetimeIndex(MOMENTS), latitude, longitude)
    expected = pvlib.clearsky.haurwitz(position["zenith"])["ghi"]
    own = [clear_sky_w_per_m2(moment, latitude, longitude) for moment in MOMENTS]
    assert (expected - own).abs().max() < 1.0


@pytest.mark.parametrize("hub", ["dakhla", "tangier", "casablanca", "dakar", "abidjan"])
def test_over_a_year_it_is_near_the_turbidity_model_that_it_stands_in_for(hub: str) -> None:
    latitude, longitude = PLACES[hub]
    ineichen = pvlib.location.Location(latitude, longitude).get_clearsky(pd.DatetimeIndex(MOMENTS))["ghi"]
    own = sum(clear_sky_w_per_m2(moment, latitude, longitude) for moment in MOMENTS)
    assert 0.95 < own / ineichen.sum() < 1.15
