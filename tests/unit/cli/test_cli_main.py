"""Does `harch` start fast, and does every error end with the right words and the right code?"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable

import click
import httpx
import pytest
from click.testing import Result

from harch.base.errors import HarchError
from harch.cli.failure import wants_json
from harch.cli.local_federation import StartStep, start_step
from harch.cli.main import VERBS, root

Harch = Callable[..., Result]


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['harch', '--help']\n"
        "from harch.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(*[name for name in sys.modules if '.' not in name], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"httpx", "rich", "fastapi", "starlette", "numpy", "msgspec", "yaml", "asyncio", "numba", "pydantic"}
    assert heavy & set(done.stderr.split()) == set()
    assert re.search(r"^  run +Run a command on the fleet", done.stdout, re.MULTILINE)


def test_every_verb_says_the_same_in_the_list_and_in_its_own_help() -> None:
    context = click.Context(root)
    for verb in VERBS:
        command = root.get_command(context, verb.name)
        assert command is not None
        assert (command.help or "").splitlines()[0] == verb.summary


def test_a_verb_that_does_not_exist_is_a_usage_error_with_a_guess(harch: Harch) -> None:
    result = harch("doctr")
    assert result.exit_code == 2
    assert result.stderr == (
        "error[E0201]: `harch doctr` is not a verb; did you mean `doctor`?\n\nhint: `harch --help` lists them\n"
    )
    assert result.stdout == ""


def test_a_verb_of_a_group_that_does_not_exist_is_answered_the_same_way(harch: Harch) -> None:
    result = harch("hub", "uncordn")
    assert result.exit_code == 2
    assert "error[E0201]: `harch hub uncordn` is not a verb; did you mean `uncordon`?" in result.stderr
    assert "`harch hub --help` lists them" in result.stderr


@pytest.mark.parametrize("words", [("hub",), ("sentinel",), ("pipeline",), ("node",), ("policy",), ("audit",)])
def test_groups_list_their_verbs_in_whole_sentences(harch: Harch, words: tuple[str, ...]) -> None:
    text = harch(*words, "--help").stdout
    assert "Commands:" in text
    assert "..." not in text.partition("Commands:")[2]


def test_an_option_that_does_not_exist_is_a_usage_error(harch: Harch) -> None:
    result = harch("ps", "--frobnicate")
    assert result.exit_code == 2
    assert "error[E0201]: No such option" in result.stderr
    assert "hint: `harch ps --help`" in result.stderr


def test_with_json_an_error_is_one_object_on_stdout_and_nothing_else(harch: Harch) -> None:
    result = harch("ps", "--json", "--frobnicate")
    assert result.exit_code == 2
    assert result.stderr == ""
    error = json.loads(result.stdout)["error"]
    assert error["code"] == "E0201"
    assert error["hint"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ps", "--json"], True),
        (["ps", "-o", "json"], True),
        (["ps", "--output=json"], True),
        (["ps", "-o", "yaml"], False),
        (["ps", "-o"], False),
        (["run", "--", "tool", "--json"], False),
        (["run", "--", "tool", "-o", "json"], False),
        (["run", "--json", "--", "x"], True),
    ],
)
def test_json_counts_only_before_the_command_of_the_user(words: list[str], expected: bool) -> None:
    assert wants_json(words) is expected


def test_a_fault_of_ours_is_told_without_a_stack(harch: Harch, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(**words: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("harch.cli.verbs.help.reference.explain_command.callback", explode)
    result = harch("explain", "E0301")
    assert result.exit_code == 1
    assert "error[E1001]: ZeroDivisionError" in result.stderr
    assert "Traceback" not in result.stderr


def test_no_hub_is_an_error_that_says_what_to_do(harch: Harch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARCH_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("harch.sdk.exchange.RetryPolicy.delay_s", lambda self, failures: 0.0)
    result = harch("ps")
    assert result.exit_code == 1
    assert "error[E0802]: no hub answers: nothing listens at http://127.0.0.1:9" in result.stderr
    assert "hint: start one with `harch up`" in result.stderr


def test_explain_tells_what_the_registry_says(harch: Harch) -> None:
    assert "Residency forbids this" in harch("explain", "e0902").stdout
    assert json.loads(harch("explain", "E0902", "--json").stdout)["exit_code"] == 4
    assert harch("explain", "E4242").exit_code == 2
    assert "E0301" in harch("explain").stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_that_calls_harch(harch: Harch, shell: str) -> None:
    assert "_HARCH_COMPLETE" in harch("completion", shell).stdout


def test_completion_of_verbs_needs_no_import_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root, "get_command", None)
    items = root.shell_complete(click.Context(root), "e")
    assert [item.value for item in items] == ["events", "energy", "explain"]


def test_schema_is_json_with_and_without_the_option(harch: Harch) -> None:
    assert json.loads(harch("schema").stdout) == json.loads(harch("schema", "--json").stdout)


def test_a_harch_error_reads_the_same_everywhere() -> None:
    error = HarchError("E0301", "no workload", hint="harch ps")
    assert str(error) == "error[E0301]: no workload\n\nhint: harch ps"


@pytest.mark.parametrize(
    ("summary", "is_ready"),
    [
        ({"status": "ready", "agents": 1, "status_detail": ""}, True),
        ({"status": "cordoned", "agents": 1, "status_detail": "by hand"}, True),
        ({"status": "ready", "agents": 0, "status_detail": ""}, False),
        ({"status": "error", "agents": 0, "status_detail": "starting"}, False),
        ({"status": "error", "agents": 0, "status_detail": "records lost; `harch audit accept-loss`"}, True),
    ],
)
async def test_up_goes_on_without_a_hub_that_only_a_person_can_help(
    summary: dict[str, object], is_ready: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = httpx.MockTransport(lambda request: httpx.Response(200, json={"name": "Dakhla", **summary}))
    async with httpx.AsyncClient(transport=answer) as client:
        assert (await start_step(client, "http://hub") is StartStep.READY) is is_ready
    assert ("accept-loss" in capsys.readouterr().err) == ("accept-loss" in str(summary["status_detail"]))


@pytest.mark.parametrize("words", [[], ["hub"], ["sentinel", "alerts"]])
def test_a_group_by_itself_shows_what_it_has(harch: Harch, words: list[str]) -> None:
    result = harch(*words)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"Usage: {' '.join(['harch', *words])}")


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    words = [sys.executable, "-m", "harch", "explain"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()  # as `head` does, only sooner
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 0
