"""A flag is called and takes the same wherever it stands, and its old names still work for a release."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest
from click.testing import Result
from hub_double import HubDouble

from harch.base.clock import SystemClock
from harch.base.errors import HarchError
from harch.cli.inputs import DURATION, MOMENT_AGO, MOMENT_AHEAD
from harch.cli.main import root

Harch = Callable[..., Result]


def verbs(group: click.Group, prefix: str = "harch") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield f"{prefix} {name}", command
            yield from verbs(command, f"{prefix} {name}")
        elif not command.hidden:
            yield f"{prefix} {name}", command


VERBS = dict(verbs(root))
LEAVES = {name: command for name, command in VERBS.items() if not isinstance(command, click.Group)}


def options(command: click.Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option) and not one.hidden]


def long_name(option: click.Option) -> str:
    return max(option.opts, key=len)


def form(option: click.Option) -> str:
    """How it is written: `-f, --file FILE`. What may be chosen from differs by verb."""
    takes = "" if option.is_flag else "CHOICE" if isinstance(option.type, click.Choice) else str(option.metavar)
    return " ".join((*sorted(option.opts, key=len), takes)).strip()


# What means one thing at one verb and another at another, each with its reason.
TWO_MEANINGS = {
    "--address": "a peer's has a port, that of gangs gets a range of them",
    "--after": "events are numbered, alerts have times",
    "--by": "several groups at once, or one of a few",
    "--data": "the folder of a store, or a data object",
    "--for": "what is waited for, or how long",
    "--hub": "a context is made of addresses; where they are known, hubs have names",
    "--output": "the format of a list, the file of an export, what work produces",
    "--status": "free words for work, few for GPUs",
    "--workload": "of a running hub, or a source for replay",
}


def test_a_flag_has_one_form_over_all_verbs() -> None:
    forms: dict[str, set[str]] = defaultdict(set)
    for command in LEAVES.values():
        for option in options(command):
            forms[long_name(option)].add(form(option))
    two = {name for name, found in forms.items() if len(found) > 1}
    assert {name: forms[name] for name in two - set(TWO_MEANINGS)} == {}
    assert set(TWO_MEANINGS) - two == set()


def test_a_short_flag_means_one_thing_or_the_two_that_everybody_knows() -> None:
    meanings: dict[str, set[str]] = defaultdict(set)
    for command in LEAVES.values():
        for option in options(command):
            for short in (word for word in option.opts if not word.startswith("--")):
                meanings[short].add(long_name(option))
    two = {short: found for short, found in meanings.items() if len(found) > 1}
    assert two == {"-f": {"--follow", "--file"}}


KNOWN = {
    "--all-hubs": "--all-hubs",
    "--file": "-f --file FILE",
    "--fleet": "--fleet FLEET",
    "--follow": "-f --follow",
    "--limit": "--limit N",
    "--plot": "--plot [FILE]",
    "--reason": "--reason TEXT",
    "--since": "--since TIME",
    "--tail": "--tail N",
    "--tenant": "--tenant NAME",
    "--until": "--until TIME",
    "--wait": "--wait",
    "--watch": "--watch [SECONDS]",
    "--yes": "-y --yes",
}


@pytest.mark.parametrize("name", LEAVES)
def test_what_many_verbs_have_is_written_as_everywhere(name: str) -> None:
    found = {long_name(option): form(option) for option in options(LEAVES[name])}
    assert {flag: found[flag] for flag in KNOWN if flag in found} == {
        flag: KNOWN[flag] for flag in KNOWN if flag in found
    }
    # Names that would say the same in other words.
    assert found.keys().isdisjoint({"--why", "--comment", "--interval", "--every", "--last", "--input", "--force"})
    if "--follow" in found:
        assert "--file" not in found
        assert "--tail" in found
        assert "--limit" not in found


def test_durations_are_called_durations_and_times_times() -> None:
    for name, command in LEAVES.items():
        for option in options(command):
            if option.type.name == "duration":
                assert option.metavar == "DURATION", (name, option.opts)
            elif option.type.name == "time":
                assert option.metavar == "TIME", (name, option.opts)
            else:
                assert option.metavar not in {"DURATION", "TIME"}, (name, option.opts)


@pytest.mark.parametrize("name", LEAVES)
def test_what_an_option_takes_has_a_name(name: str) -> None:
    """`--limit N`, not `--limit INTEGER RANGE`: what a library calls its types says nothing to whoever types."""
    for option in options(LEAVES[name]):
        if not option.is_flag and not isinstance(option.type, click.Choice):
            assert option.metavar, option.opts
    context = click.Context(LEAVES[name], info_name=name)
    raw = re.findall(r"\b(?:INTEGER|FLOAT|DIRECTORY|PATH|DATETIME)\b", LEAVES[name].get_help(context))
    assert raw == []


@pytest.mark.parametrize("name", VERBS)
def test_help_before_the_options_is_short(name: str) -> None:
    text = VERBS[name].get_help(click.Context(VERBS[name], info_name=name))
    before = re.split(r"^(?:Options|Commands):$", text, maxsplit=1, flags=re.MULTILINE)[0]
    assert len(before.split()) <= 100
    assert not (VERBS[name].help or "").split("\n")[0].startswith(("This ", "Used to "))


RENAMED = [
    (("ps", "--guests"), "--borrowed"),
    (("ps", "--all"), "--all-hubs"),
    (("hubs", "--watch", "--interval", "9999"), "--watch"),
    (("top", "--once", "--interval", "9"), "--watch"),
    (("pipeline", "top", "--once", "--every", "9"), "--watch"),
    (("pipeline", "drain", "alarms", "-w"), "--wait"),
    (("pipeline", "results", "alarms", "-n", "5"), "--tail"),
    (("pipeline", "results", "alarms", "--last", "5"), "--tail"),
    (("sentinel", "logs", "--limit", "5", "--url", "http://127.0.0.1:1"), "--tail"),
    (("sentinel", "alerts", "ack", "x", "--by", "amina", "--url", "http://127.0.0.1:1"), "--author"),
    (("sentinel", "alerts", "silence", "a=b", "--comment", "why", "--url", "http://127.0.0.1:1"), "--reason"),
    (("audit", "accept-loss", "--why", "gone", "-y"), "--reason"),
    (("node", "cordon", "n1", "--why", "fan"), "--reason"),
    (("hub", "cordon", "dakhla", "--why", "fan"), "--reason"),
    (("hub", "invite", "dakhla", "--hours", "2"), "--valid"),
    (("secret", "set", "TOKEN", "--from-file", "/absent"), "--file"),
    (("events", "--limit", "5"), "--tail"),
    (("hub", "open", "dakhla"), "harch hub uncordon"),
]


@pytest.mark.parametrize(("words", "new"), RENAMED)
def test_an_old_name_works_and_says_the_new_one(harch: Harch, hub: HubDouble, words: tuple[str, ...], new: str) -> None:
    result = harch(*words)
    assert re.search(rf"is deprecated: use `?{new}", result.stderr)
    assert "Missing option" not in result.stderr
    assert "No such option" not in result.stderr


def test_every_hidden_option_has_a_test_of_its_old_name() -> None:
    hidden = {
        word
        for command in LEAVES.values()
        for option in command.params
        if isinstance(option, click.Option) and option.hidden
        for word in option.opts
    }
    assert hidden <= {word for words, _ in RENAMED for word in words}


def test_an_old_name_gives_its_value_to_the_new_one_which_wins(harch: Harch, hub: HubDouble) -> None:
    hub.fail("POST /nodes/n1/cordon", 404, "E0302", "no such node")
    for words, reason in ((("--why", "fan"), "fan"), (("--why", "fan", "--reason", "pump"), "pump")):
        harch("node", "cordon", "n1", *words)
        assert hub.asked[-1].body["why"] == reason


def test_a_file_is_named_by_f_or_alone(harch: Harch, hub: HubDouble, tmp_path: Path) -> None:
    path = tmp_path / "work.yaml"
    path.write_text("name: train\ncommand: [echo]\n")
    harch("plan", str(path))
    harch("plan", "-f", str(path))
    first, second = hub.asked
    assert first == second
    assert "no file given" in harch("plan").stderr
    assert "two files given" in harch("plan", str(path), "-f", str(path)).stderr


NOW = datetime(2026, 3, 1, 8, tzinfo=UTC)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SystemClock, "now", lambda self: NOW)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("10m", NOW - timedelta(minutes=10)),
        ("1h30m", NOW - timedelta(minutes=90)),
        ("90", NOW - timedelta(seconds=90)),
        ("1w", NOW - timedelta(days=7)),
        ("2026-02-28", datetime(2026, 2, 28, tzinfo=UTC)),
        ("2026-02-28T10:00:00", datetime(2026, 2, 28, 10, tzinfo=UTC)),
        ("2026-02-28T10:00:00Z", datetime(2026, 2, 28, 10, tzinfo=UTC)),
        ("2026-02-28T10:00:00+01:00", datetime(2026, 2, 28, 9, tzinfo=UTC)),
        ("1772352000", NOW),
    ],
)
def test_a_time_is_relative_or_absolute(clock: None, text: str, moment: datetime) -> None:
    assert MOMENT_AGO.convert(text, None, None) == moment


def test_a_time_ahead_counts_from_now_on(clock: None) -> None:
    assert MOMENT_AHEAD.convert("6h", None, None) == NOW + timedelta(hours=6)


@pytest.mark.parametrize("text", ["", "soon", "10 parsecs", "-5m", "2026-13-01", "9" * 40])
def test_what_is_no_time_is_an_error_with_an_example(clock: None, text: str) -> None:
    with pytest.raises(click.BadParameter, match="10m"):
        MOMENT_AGO.convert(text, None, None)


@pytest.mark.parametrize(("text", "seconds"), [("250ms", 0.25), ("1.5h", 5400), ("1h 30m", 5400), ("2d", 172_800)])
def test_durations_add_up(text: str, seconds: float) -> None:
    assert DURATION.convert(text, None, None) == seconds


def test_events_start_at_a_time(harch: Harch, hub: HubDouble) -> None:
    """The hub numbers events; where a time lies among them is found by halving."""
    events = [
        {"seq": seq, "at": f"2026-03-01T08:{seq:02d}:00Z", "kind": "hub.note", "subject": f"s{seq}"}
        for seq in range(1, 41)
        if seq % 3
    ]

    def page(params: dict[str, str]) -> object:
        after, limit = int(params.get("after", -1)), int(params.get("limit", 100))
        found = [one for one in events if int(str(one["seq"])) > after][:limit]
        return {"items": found, "next_after": found[-1]["seq"] if found else 40, "last_seq": 40}

    hub.reply("GET /events", page)
    shown = harch("events", "--since", "2026-03-01T08:30:00Z").stdout.splitlines()
    assert [line.split()[0] for line in shown] == ["31", "32", "34", "35", "37", "38", "40"]
    newest = harch("events", "--since", "2026-03-01T08:30:00Z", "--tail", "2").stdout.splitlines()
    assert [line.split()[0] for line in newest] == ["38", "40"]
    assert harch("events", "--since", "2026-03-01T09:00:00Z").stdout == ""


def test_a_dashboard_without_a_duration_is_an_error() -> None:
    from harch.cli.telemetry.dashboard import _seconds

    with pytest.raises(HarchError, match="is not a duration"):
        _seconds("often")
