"""Do people get at their federation from any folder, and never lose or show a key on the way?"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from hub_double import HubDouble
from test_cli_verbs import page

from harch.base.config import Ports
from harch.cli.contexts import remember, remember_local
from harch.sdk.contexts import contexts_file, read_contexts

Harch = Callable[..., Result]


@pytest.fixture(autouse=True)
def _elsewhere(hub: HubDouble, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HARCH_URL", "HARCH_API_KEY", "HARCH_PORT_BASE", "HARCH_HOME", "HARCH_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")


def plan_sign_in(hub: HubDouble) -> None:
    hub.on("GET /auth/me", {"id": "key_1", "name": "ada", "tenant": "t", "role": "user"})
    near = {"id": "dakhla", "name": "Dakhla", "endpoint": hub.url}
    far = {"id": "dakar", "name": "Dakar", "endpoint": "http://127.0.0.1:9"}
    hub.on("GET /hubs", page(*({**one, "status": "ready", "capacity": {}} for one in (near, far))))


def test_a_key_that_is_good_is_stored_for_its_owner_alone_and_used_from_then_on(harch: Harch, hub: HubDouble) -> None:
    plan_sign_in(hub)
    done = harch("login", hub.url, "--name", "work", stdin="hsk_secret\n")
    assert done.stdout == "signed in to work (2 hubs) as ada, user; it is in use now\n"
    known = read_contexts(contexts_file())
    assert known.named("work").hubs == (hub.url, "http://127.0.0.1:9")
    key_file = Path(known.named("work").key_file)
    assert (key_file.read_text(), key_file.stat().st_mode & 0o777) == ("hsk_secret\n", 0o600)
    hub.on("GET /workloads", page())
    assert harch("ps").exit_code == 0
    assert hub.asked[-1].key == "hsk_secret"
    assert "hsk_secret" not in done.stdout + done.stderr + contexts_file().read_text()


def test_a_key_that_is_refused_leaves_nothing(harch: Harch, hub: HubDouble) -> None:
    hub.fail("GET /auth/me", 401, "E0102", "this key is not known")
    assert harch("login", hub.url, stdin="hsk_wrong").exit_code == 1
    assert harch("login", hub.url, stdin=" \n").exit_code == 1
    assert harch("login", hub.url, "--key-file", "nowhere").exit_code == 2
    assert not contexts_file().parent.exists()


def test_contexts_are_listed_chosen_and_removed(harch: Harch, hub: HubDouble, tmp_path: Path) -> None:
    assert harch("context", "ls").stderr == "no contexts; `harch up` and `harch login URL` add one\n"
    key = tmp_path / "a.key"
    key.write_text("hsk_a")
    assert harch("context", "add", "one", "--hub", hub.url, "--key-file", str(key)).exit_code == 0
    assert harch("context", "add", "two", "--hub", hub.url, "--key-file", str(key)).exit_code == 0
    assert harch("context", "ls", "-o", "name").stdout.split() == ["one", "two"]
    assert "one *" in harch("context", "ls").stdout
    assert harch("context", "use", "two").stdout == "context two is in use\n"
    assert json.loads(harch("context", "ls", "--json").stdout)["current"] == "two"
    assert harch("context", "rm", "two").exit_code == 0
    assert "(missing)" not in harch("context", "ls").stdout
    assert key.exists(), "only what `harch login` stored is its own"
    assert json.loads(harch("context", "ls", "--json").stdout)["current"] == ""
    key.unlink()
    assert f"{key} (missing)" in harch("context", "ls").stdout
    missing = harch("context", "use", "two")
    assert missing.exit_code == 2
    assert "no context named `two`" in missing.stderr
    assert "choose one of one" in missing.stderr


def test_a_stored_key_goes_with_its_context(harch: Harch, hub: HubDouble) -> None:
    plan_sign_in(hub)
    harch("login", hub.url, "--name", "work", stdin="hsk_secret\n")
    key_file = Path(read_contexts(contexts_file()).named("work").key_file)
    harch("context", "rm", "work")
    assert not key_file.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("add", "a b", "--hub", "http://x", "--key-file", "KEY"), "`a b` is not a name"),
        (("add", "a", "--hub", "x", "--key-file", "KEY"), "not the address of a hub"),
        (("add", "a", "--hub", "http://x", "--key-file", "nowhere"), "is not a file"),
        (("rm", "a"), "no context named `a`"),
    ],
)
def test_wrong_input_is_named_and_changes_nothing(
    harch: Harch, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    key = tmp_path / "a.key"
    key.write_text("hsk_a")
    done = harch("context", *(str(key) if word == "KEY" else word for word in words))
    assert done.exit_code != 0
    assert said in done.stderr
    assert not contexts_file().exists()


def test_another_hub_is_asked_and_named(harch: Harch, hub: HubDouble, tmp_path: Path) -> None:
    key = tmp_path / "a.key"
    key.write_text("hsk_a")
    remember("one", ("http://127.0.0.1:9", hub.url), key)
    hub.on("GET /workloads", page())
    done = harch("ps")
    assert done.exit_code == 0
    assert f"http://127.0.0.1:9 does not answer; asking {hub.url}\n" in done.stderr


def test_a_federation_that_starts_is_written_down_and_never_takes_the_place_of_the_one_in_use(tmp_path: Path) -> None:
    hubs = ("http://127.0.0.1:7701",)
    assert remember_local(Ports(), hubs, tmp_path / "k") == "local (in use)"
    assert remember_local(Ports(8700), hubs, tmp_path / "k") == "local-8700 (`harch context use local-8700` selects it)"
    contexts_file().write_text("]")
    assert remember_local(Ports(), hubs, tmp_path / "k").startswith("not written: ")
