"""Do `harch hub init`, `invite` and `join` say what to do when something is missing?"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from harch.cli.main import root
from harch.federation.identity.enrolment import parse_invitation

Harch = Callable[..., Result]


@pytest.fixture
def harch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Harch:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("HARCH_HOME", str(tmp_path))
    monkeypatch.setenv("HARCH_PORT_BASE", "9100")
    return lambda *words, stdin=None: CliRunner().invoke(root, ["hub", *words], input=stdin)


def error(result: Result) -> dict[str, str]:
    return dict(json.loads(result.stdout)["error"])


def test_init_takes_the_port_from_the_fleet_and_shows_no_key(harch: Harch, tmp_path: Path) -> None:
    result = harch("init", "Dakar", "--trust-domain", "gpu.example.org")
    assert result.exit_code == 0
    assert "dakar is its first hub and accepts links at 127.0.0.1:9124" in result.stdout
    for secret in ("state.key", "authority/ca.key"):
        assert (tmp_path / "dakar" / "federation" / secret).read_text().strip() not in result.output


@pytest.mark.parametrize(
    ("words", "code", "exit_code"),
    [
        (("init", "nouakchott"), "E0305", 1),
        (("init", "dakar", "--address", "nowhere"), "E0201", 2),
        (("init", "dakar", "--address", "10.0.0.1:70000"), "E0201", 2),
        (("init", "dakar", "--trust-domain", "No Domain"), "E0201", 2),
        (("invite", "abidjan"), "E0113", 1),
        (("join", "hinv_nonsense"), "E0112", 4),
        (("join", "-"), "E0112", 4),
    ],
)
def test_what_is_wrong_has_a_code_and_a_hint(harch: Harch, words: tuple[str, ...], code: str, exit_code: int) -> None:
    result = harch(*words, "--json", stdin="")
    assert result.exit_code == exit_code
    assert error(result)["code"] == code
    assert error(result)["hint"]


def test_an_invitation_is_one_line_and_stays_out_of_remarks(harch: Harch) -> None:
    harch("init", "dakar", "--address", "10.1.0.7:7721")
    result = harch("invite", "abidjan", "--valid", "2h")
    assert result.exit_code == 0
    invitation = parse_invitation(result.stdout)
    assert (invitation.hub_id, str(invitation.address)) == ("abidjan", "10.1.0.7:7721")
    assert result.stdout.count("\n") == 1
    assert result.stdout.strip() not in result.stderr


def test_with_several_authorities_it_asks_which(harch: Harch) -> None:
    harch("init", "dakar")
    harch("init", "dakhla")
    assert error(harch("invite", "abidjan", "--json"))["code"] == "E0201"
    assert harch("invite", "abidjan", "--at", "dakhla").exit_code == 0
    assert error(harch("invite", "abidjan", "--at", "tangier", "--json"))["code"] == "E0113"


def test_a_federation_is_not_founded_over_another(harch: Harch) -> None:
    harch("init", "dakar")
    assert error(harch("init", "dakar", "--json"))["code"] == "E0114"


def test_the_founder_is_not_invited(harch: Harch) -> None:
    harch("init", "dakar")
    assert error(harch("invite", "dakar", "--again", "--json"))["code"] == "E0114"
