"""Where does a hub take its settings from? Scheduling files, its identity, and the address that others reach."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from harch.api.process import HubConfig
from harch.base.config import Home, Ports
from harch.base.errors import HarchError
from harch.federation.identity.authority import make_federation
from harch.placement.queueing.settings import QueueSettings
from harch.testing.samples import tiny_fleet


def config(home: Path, scheduling: Path | None = None, host: str = "127.0.0.1") -> HubConfig:
    fleet = tiny_fleet()
    return HubConfig(fleet, "dakhla", Home(home), Ports(7700, len(fleet.hubs)), host, scheduling=scheduling)


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    assert config(tmp_path).turn_settings() == QueueSettings()


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


def test_a_hub_is_on_its_own_until_its_folder_holds_an_identity(tmp_path: Path) -> None:
    assert config(tmp_path).identity() is None
    now = datetime(2026, 1, 1, tzinfo=UTC)
    make_federation(Home(tmp_path), {"dakhla": ("10.1.0.7", 7721), "dakar": ("10.2.0.7", 7721)}, now=now)
    identity = config(tmp_path).identity()
    assert identity is not None
    assert identity.hub_id == "dakhla"
    assert config(tmp_path, host="10.9.0.1").url_of("dakhla", identity) == "http://10.9.0.1:7701"
    assert config(tmp_path, host="0.0.0.0").url_of("dakhla", identity) == "http://10.1.0.7:7701"
    assert config(tmp_path, host="::").url_of("dakhla") == "http://127.0.0.1:7701"
    assert config(tmp_path, host="::1").url_of("dakhla") == "http://[::1]:7701"


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "127.0.0.1"),
        ("::1", "[::1]"),
        ("10.9.0.1", "10.9.0.1"),
    ],
)
def test_a_hub_reaches_its_own_sentinel_where_it_listens(tmp_path: Path, host: str, address: str) -> None:
    made = config(tmp_path, host=host)
    assert made.telemetry_url == f"http://{address}:{made.ports.telemetry(0)}"
