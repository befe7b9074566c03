"""Does every program find its federation from any folder, and another hub of it where the first one is gone?"""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.sdk.aio import AsyncClient
from harch.sdk.client import Client
from harch.sdk.contexts import (
    HubContext,
    KnownContexts,
    as_toml,
    changing_contexts,
    checked_context,
    contexts_file,
    read_contexts,
)
from harch.sdk.exchange import RetryPolicy
from harch.sdk.settings import settings_from_env

HUBS = ("http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3")


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a folder without a federation, with contexts of one's own."""
    for name in ("HARCH_URL", "HARCH_API_KEY", "HARCH_PORT_BASE", "HARCH_HOME", "HARCH_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")


def known(tmp_path: Path, *names: str) -> None:
    for number, name in enumerate(names):
        key = tmp_path / f"{name}.key"
        key.write_text(f"hsk_{name}\n")
        with changing_contexts(contexts_file()) as found:
            found[0] = found[0].with_context(HubContext(name, tuple(f"{url}{number}" for url in HUBS), str(key)))


class TestChoice:
    def test_the_first_context_is_the_current_one_and_another_is_chosen_by_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        known(tmp_path, "one", "two")
        found = settings_from_env()
        assert (found.url, found.others, found.api_key) == (
            "http://127.0.0.1:10",
            ("http://127.0.0.1:20", "http://127.0.0.1:30"),
            "hsk_one",
        )
        monkeypatch.setenv("HARCH_CONTEXT", "two")
        assert settings_from_env().api_key == "hsk_two"
        monkeypatch.setenv("HARCH_CONTEXT", "three")
        with pytest.raises(HarchError, match="no context named `three`") as raised:
            settings_from_env()
        assert raised.value.hint == "choose one of one, two"

    @pytest.mark.parametrize(
        ("name", "value"), [("HARCH_URL", "http://127.0.0.1:9"), ("HARCH_HOME", "."), ("HARCH_PORT_BASE", "8700")]
    )
    def test_what_is_said_for_this_command_comes_first(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
    ) -> None:
        known(tmp_path, "one")
        monkeypatch.setenv(name, value)
        found = settings_from_env()
        assert (found.api_key, found.others) == (None, ())

    def test_the_federation_of_the_current_folder_comes_before_the_current_context(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        known(tmp_path, "one")
        Path(".harch").mkdir()
        Path(".harch/admin.key").write_text("hsk_here")
        assert settings_from_env().api_key == "hsk_here"
        monkeypatch.setenv("HARCH_CONTEXT", "one")
        assert settings_from_env().api_key == "hsk_one"

    def test_a_federation_that_was_started_here_has_its_other_hubs_too(self) -> None:
        Path(".harch").mkdir()
        key = Path(".harch/admin.key")
        key.write_text("hsk_here")
        hubs = ("http://127.0.0.1:7701", "http://127.0.0.1:7702")
        with changing_contexts(contexts_file()) as found:
            found[0] = found[0].with_context(HubContext("local", hubs, str(key.absolute())))
        here = settings_from_env()
        assert (here.url, here.others, here.api_key) == (hubs[0], hubs[1:], "hsk_here")
        assert settings_from_env(hubs[0]).others == (), "a hub that is named is the only one"

    def test_its_key_goes_to_no_hub_of_another_federation(self) -> None:
        Path(".harch").mkdir()
        Path(".harch/admin.key").write_text("hsk_here")
        with changing_contexts(contexts_file()) as found:
            strange = HubContext("strange", ("http://127.0.0.1:7701", "http://192.0.2.1"), "/somewhere/else.key")
            found[0] = found[0].with_context(strange)
            moved = HubContext(
                "moved", ("http://127.0.0.1:9701", "http://192.0.2.2"), str(Path(".harch/admin.key").absolute())
            )
            found[0] = found[0].with_context(moved)
        assert settings_from_env().others == ()
        contexts_file().write_text("]")
        assert settings_from_env().api_key == "hsk_here", "a broken file of contexts is in nobody's way here"

    def test_a_key_of_the_environment_goes_to_the_hubs_of_the_context(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        known(tmp_path, "one")
        monkeypatch.setenv("HARCH_API_KEY", "hsk_env")
        found = settings_from_env()
        assert (found.url, found.api_key, found.key_source) == ("http://127.0.0.1:10", "hsk_env", "HARCH_API_KEY")


texts = st.text(st.characters(codec="utf-8"))


class TestFile:
    @given(
        st.dictionaries(
            st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
            st.tuples(st.lists(texts, min_size=1, max_size=3), texts),
            max_size=4,
        )
    )
    def test_what_is_written_is_read_back(self, contexts: dict[str, tuple[list[str], str]]) -> None:
        found = KnownContexts()
        for name, (hubs, key_file) in contexts.items():
            found = found.with_context(HubContext(name, tuple(hubs), key_file))
        folder = Path("file")
        folder.mkdir(exist_ok=True)
        (folder / "contexts.toml").write_text(as_toml(found), "utf-8")
        assert read_contexts(folder / "contexts.toml") == found

    @pytest.mark.parametrize(
        "text",
        [
            "current = 1",
            "contexts = 3",
            "[contexts.a]\nhubs = 3",
            "[contexts.a]\nhubs = []",
            "[contexts.a]\nhubs = [1]",
            '[contexts."a b"]\nhubs = ["http://x"]',
            "]",
            "x" * 300_000,
            "\udcff",
        ],
    )
    def test_a_file_that_is_no_list_of_contexts_is_an_error_with_its_path(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "contexts.toml"
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(HarchError, match=r"contexts\.toml cannot be used") as raised:
            read_contexts(path)
        assert raised.value.code == "E0202"

    def test_a_current_context_that_is_gone_is_none(self, tmp_path: Path) -> None:
        path = tmp_path / "contexts.toml"
        path.write_text('current = "gone"\n')
        assert read_contexts(path) == KnownContexts()

    def test_writers_at_the_same_time_lose_nothing_and_the_file_is_private(self) -> None:
        def add(number: int) -> None:
            with changing_contexts(contexts_file()) as found:
                found[0] = found[0].with_context(HubContext(f"c{number}", ("http://x",), ""))

        threads = [threading.Thread(target=add, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(read_contexts(contexts_file()).by_name) == 20
        assert contexts_file().stat().st_mode & 0o077 == 0

    @pytest.mark.parametrize(
        ("name", "hubs"), [("a b", ("u",)), ("", ("u",)), ("x" * 65, ("u",)), ("a", ()), ("a", ("u",) * 101)]
    )
    def test_names_and_numbers_have_limits(self, name: str, hubs: tuple[str, ...]) -> None:
        with pytest.raises(HarchError):
            checked_context(name, hubs, "")

    def test_without_the_current_one_none_is_current(self) -> None:
        both = KnownContexts().with_context(HubContext("a", ("u",), "")).with_context(HubContext("b", ("u",), ""))
        assert both.current == "a"
        assert both.using("b").without("b").current == ""
        assert both.using("b").without("a").current == "b"


def hubs_of_which(listens: int, heard: list[str]) -> httpx.MockTransport:
    """Three hubs; only this one is there."""

    def answer(request: httpx.Request) -> httpx.Response:
        heard.append(str(request.url))
        if request.url.port != listens:
            raise httpx.ConnectError("refused", request=request)
        return httpx.Response(200, json={"status": "ok", "version": "1"})

    return httpx.MockTransport(answer)


class TestFailover:
    def test_the_next_hub_of_the_context_is_asked_where_nothing_listens(self, tmp_path: Path) -> None:
        known(tmp_path, "one")
        heard: list[str] = []
        moves: list[tuple[str, str]] = []
        with Client(transport=hubs_of_which(30, heard), on_failover=lambda *move: moves.append(move)) as client:
            client.health()
            client.health()
            assert client.settings.url == "http://127.0.0.1:30"
        assert moves == [
            ("http://127.0.0.1:10", "http://127.0.0.1:20"),
            ("http://127.0.0.1:20", "http://127.0.0.1:30"),
        ]
        assert len(heard) == 4, "afterwards it stays where it was answered"

    def test_a_hub_with_tls_is_never_left_for_one_without(self, tmp_path: Path) -> None:
        key = tmp_path / "one.key"
        key.write_text("hsk_one\n")
        urls = ("https://127.0.0.1:10", "http://127.0.0.1:20", "https://127.0.0.1:30")
        with changing_contexts(contexts_file()) as found:
            found[0] = found[0].with_context(HubContext("one", urls, str(key)))
        heard: list[str] = []
        with Client(transport=hubs_of_which(30, heard)) as client:
            client.health()
        assert heard == ["https://127.0.0.1:10/v1/health", "https://127.0.0.1:30/v1/health"]

    async def test_so_does_the_asynchronous_client(self, tmp_path: Path) -> None:
        known(tmp_path, "one")
        async with AsyncClient(transport=hubs_of_which(20, [])) as client:
            await client.health()
            assert client.settings.url == "http://127.0.0.1:20"

    async def test_requests_that_fail_together_leave_out_no_hub(self, tmp_path: Path) -> None:
        known(tmp_path, "one")
        answer = hubs_of_which(20, [])

        async def later(request: httpx.Request) -> httpx.Response:
            await asyncio.sleep(0)  # all of them are on their way before the first one fails
            return answer.handle_request(request)

        moves: list[tuple[str, str]] = []
        transport = httpx.MockTransport(later)
        async with AsyncClient(transport=transport, retry=_once(), on_failover=lambda *to: moves.append(to)) as client:
            await asyncio.gather(*(client.health() for _ in range(5)))
            assert client.settings.url == "http://127.0.0.1:20"
        assert len(moves) == 1, "it is said once"

    def test_so_do_requests_of_several_threads(self, tmp_path: Path) -> None:
        known(tmp_path, "one")
        answer, together = hubs_of_which(20, []), threading.Barrier(5)

        def at_once(request: httpx.Request) -> httpx.Response:
            if request.url.port == 10:
                together.wait(10)
            return answer.handle_request(request)

        moves: list[tuple[str, str]] = []
        transport = httpx.MockTransport(at_once)
        with (
            Client(transport=transport, retry=_once(), on_failover=lambda *to: moves.append(to)) as client,
            ThreadPoolExecutor(5) as threads,
        ):
            assert len(list(threads.map(lambda _: client.health(), range(5)))) == 5
            assert client.settings.url == "http://127.0.0.1:20"
        assert len(moves) == 1, "it is said once"

    def test_a_hub_that_is_named_is_the_only_one_asked(self, tmp_path: Path) -> None:
        known(tmp_path, "one")
        heard: list[str] = []
        with (
            Client("http://127.0.0.1:10", transport=hubs_of_which(30, heard), retry=_once()) as client,
            pytest.raises(HarchError, match=r"nothing listens at http://127\.0\.0\.1:10"),
        ):
            client.health()
        assert heard == ["http://127.0.0.1:10/v1/health"]

    def test_a_request_that_may_have_been_heard_goes_nowhere_else(self, tmp_path: Path) -> None:
        known(tmp_path, "one")

        def broke(request: httpx.Request) -> httpx.Response:
            raise httpx.ReadError("reset", request=request)

        with Client(transport=httpx.MockTransport(broke), retry=_once()) as client:
            with pytest.raises(HarchError, match=r"the connection to http://127\.0\.0\.1:10 broke"):
                client.health()
            assert client.settings.url == "http://127.0.0.1:10"


def _once() -> RetryPolicy:
    return RetryPolicy(retries_max=0)


def test_a_missing_key_says_where_it_was_looked_for(tmp_path: Path) -> None:
    body = {"error": {"code": "E0101", "message": "no key", "hint": "send one"}}
    refusing = httpx.MockTransport(lambda request: httpx.Response(401, text=json.dumps(body)))
    with Client(transport=refusing) as client, pytest.raises(HarchError) as raised:
        client.health()
    assert "HARCH_API_KEY is not set" in raised.value.hint
    assert str(tmp_path / "elsewhere" / ".harch" / "admin.key") in raised.value.hint
    assert "harch login" in raised.value.hint
