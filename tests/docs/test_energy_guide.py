"""Are the contracts that the guide shows valid?"""

from __future__ import annotations

import re

import pytest
from documents import DOCS

from harch.energy.tariffs.file import parse_tariff

EXAMPLES = re.findall(
    r"^```toml\n(.*?)^```", (DOCS / "guides" / "energy.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
)


@pytest.mark.parametrize("text", EXAMPLES, ids=lambda text: text.split('"')[1])
def test_every_contract_of_the_guide_is_valid(text: str) -> None:
    assert parse_tariff(text, "guide").name


def test_the_guide_shows_contracts() -> None:
    assert len(EXAMPLES) == 2
