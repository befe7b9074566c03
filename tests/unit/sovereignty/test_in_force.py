"""Which jurisdictions a machine knows: the shipped ones, and what the operator's own file adds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.sovereignty.jurisdiction_file import FILE_NAME, jurisdictions_in_force


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("HARCH_HOME", str(tmp_path))
    jurisdictions_in_force.cache_clear()
    yield tmp_path
    jurisdictions_in_force.cache_clear()


def test_without_a_file_the_shipped_ones_are_in_force() -> None:
    assert "UEMOA" in jurisdictions_in_force().groups


def test_a_file_in_the_state_folder_adds_a_group(home: Path) -> None:
    (home / FILE_NAME).write_text('[groups.MAGHREB]\nname = "Maghreb"\ncountries = ["MA", "TN", "DZ"]\n')
    known = jurisdictions_in_force()
    assert {"MAGHREB", "UEMOA"} <= set(known.groups)


def test_a_file_with_a_mistake_is_an_error_and_not_ignored(home: Path) -> None:
    (home / FILE_NAME).write_text('[groups.MAGHREB]\nname = "Maghreb"\ncountries = ["XQ"]\n')
    with pytest.raises(HarchError) as refused:
        jurisdictions_in_force()
    assert refused.value.code == "E0903"
