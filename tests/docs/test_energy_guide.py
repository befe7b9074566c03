"""Are the contracts and energy files that the docs show valid?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import DOCS

from harch.energy.site_file import parse_sites
from harch.energy.tariffs.file import parse_tariff
from unit.energy.energy_fixtures import TIME_OF_USE


def examples(page: str) -> list[str]:
    return re.findall(r"^```toml[^\n]*\n(.*?)^```", (DOCS / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)


CONTRACTS = examples("guides/energy.md")
FILES = [
    text
    for page in ("reference/energy.md", "guides/buy-power.md")
    for text in examples(page)
    if not text.startswith("[project") and ".onsite]" not in text
]


@pytest.mark.parametrize("text", CONTRACTS, ids=lambda text: text.split('"')[1])
def test_every_contract_of_the_guide_is_valid(text: str) -> None:
    assert parse_tariff(text, "guide").name


@pytest.mark.parametrize("text", FILES, ids=lambda text: text.splitlines()[0])
def test_every_energy_file_of_the_docs_is_valid(text: str, tmp_path: Path) -> None:
    (tmp_path / "casablanca-contract.toml").write_text(TIME_OF_USE)
    (site,) = parse_sites(text, "docs", folder=tmp_path).values()
    assert site.tariff.name


def test_the_docs_show_contracts_and_files() -> None:
    assert (len(CONTRACTS), len(FILES)) == (2, 5)
