"""Where does a hub take its scheduling settings from? The named file, else its state folder, else the defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from harch.api.process import HubConfig
from harch.base.config import Home, Ports
from harch.base.errors import HarchError
from harch.placement.turns.settings import TurnSettings
from harch.testing.fleets import tiny_fleet


def config(home: Path, scheduling: Path | None = None) -> HubConfig:
    fleet = tiny_fleet()
    return HubConfig(fleet, "dakhla", Home(home), Ports(7700, len(fleet.hubs)), scheduling=scheduling)


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    assert config(tmp_path).turn_settings() == TurnSettings()


def test_the_state_folder_may_hold_one_and_the_option_goes_before_it(tmp_path: Path) -> None:
    made = config(tmp_path)
    made.state_dir.mkdir(parents=True)
    (made.state_dir / "scheduling.toml").write_text("[defragmentation]\nafter_s = 60")
    other = tmp_path / "other.toml"
    other.write_text("[defragmentation]\nafter_s = 90")
    assert made.turn_settings().defragment_after_s == 60
    assert config(tmp_path, other).turn_settings().defragment_after_s == 90


def test_mistakes_name_the_file(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[fairness]\naged_share = 7\n[quotas]\n")
    with pytest.raises(HarchError, match="aged_share: 7 is out of range") as refused:
        config(tmp_path, wrong).turn_settings()
    assert str(wrong) in refused.value.message
    with pytest.raises(HarchError, match="cannot be read"):
        config(tmp_path, tmp_path / "missing.toml").turn_settings()
