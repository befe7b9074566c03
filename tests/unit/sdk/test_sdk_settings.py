"""Which hub and which key does a client take, in which order?"""

from __future__ import annotations

from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.sdk.settings import Settings, client_options, settings_from_env


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HARCH_URL", "HARCH_API_KEY", "HARCH_PORT_BASE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HARCH_HOME", str(tmp_path))


def test_by_default_it_is_the_first_hub_of_this_machine() -> None:
    assert settings_from_env().url == "http://127.0.0.1:7701"


def test_the_port_base_moves_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARCH_PORT_BASE", "8700")
    assert settings_from_env().url == "http://127.0.0.1:8701"


def test_the_key_comes_from_the_argument_then_the_environment_then_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert settings_from_env().api_key is None
    (tmp_path / "admin.key").write_text("hsk_file\n")
    assert settings_from_env().api_key == "hsk_file"
    monkeypatch.setenv("HARCH_API_KEY", "hsk_env")
    assert settings_from_env().api_key == "hsk_env"
    assert settings_from_env(api_key="hsk_argument").api_key == "hsk_argument"


@pytest.mark.parametrize("url", ["http://hub.test:1/", "http://hub.test:1/v1", "http://hub.test:1/v1/"])
def test_the_version_may_be_part_of_the_address_or_not(url: str) -> None:
    assert settings_from_env(url).url == "http://hub.test:1"


@pytest.mark.parametrize("url", ["hub.test", "ftp://hub.test", "http://", "/v1"])
def test_what_is_no_address_is_an_error(url: str) -> None:
    with pytest.raises(HarchError, match="not the address of a hub"):
        settings_from_env(url)


@pytest.mark.parametrize(
    ("url", "proxied"), [("http://127.0.0.1:1", False), ("http://localhost:1", False), ("http://hub.test", True)]
)
def test_a_proxy_is_never_asked_for_this_machine(url: str, proxied: bool) -> None:
    assert client_options(Settings(url, None, ""))["trust_env"] is proxied
