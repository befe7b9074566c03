from __future__ import annotations

import pytest

from harch.base.errors import HarchError
from harch.sovereignty.jurisdictions import COUNTRIES, countries_of, country_of, region_word


@pytest.mark.parametrize(
    ("word", "code"),
    [
        ("morocco", "MA"),
        ("Morocco", "MA"),
        ("MA", "MA"),
        ("ma", "MA"),
        ("senegal", "SN"),
        ("cote-divoire", "CI"),
        ("cote_divoire", "CI"),
        ("ivory_coast", "CI"),
        ("Côte d'Ivoire", "CI"),
        ("nigeria", "NG"),
        ("south_africa", "ZA"),
    ],
)
def test_codes_of_any_case_and_region_words_name_a_country(word: str, code: str) -> None:
    assert country_of(word) == code


@pytest.mark.parametrize("word", ["MRO", "xx", "", "  ", "africa-south-1", "m" * 10_000])
def test_an_unknown_place_is_refused(word: str) -> None:
    with pytest.raises(HarchError) as caught:
        country_of(word)
    assert caught.value.code == "E0901"
    assert caught.value.hint
    assert len(caught.value.message) < 200


def test_a_misspelt_name_gets_a_suggestion() -> None:
    with pytest.raises(HarchError, match="use `MA` for Morocco"):
        country_of("marocco")


def test_every_country_is_found_by_its_own_region_word() -> None:
    assert len(COUNTRIES) == 249
    assert {country_of(region_word(code)) for code in COUNTRIES} == set(COUNTRIES)


def test_repeats_are_dropped_and_order_is_kept() -> None:
    assert countries_of(["senegal", "MA", "morocco", "sn"]) == ("SN", "MA")
