"""Does the tour show what the federation can, go on after failures, resume, and clean up whatever happens?"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result
from hub_double import HubDouble, hub_summary
from test_cli_verbs import workload

from harch.base.errors import EXIT_OK, EXIT_REFUSED, HarchError
from harch.cli.main import root
from harch.cli.tour import edge
from harch.cli.tour.progress import FEDERATIONS_MAX, ProgressFile, TourProgress, new_progress
from harch.cli.tour.stations import FederationFacts, Station, TourCommand, TourHub, chosen, plan_tour
from harch.cli.tour.walk import StationOutcome, StationResult, TourKey, walk
from harch.sdk.contexts import contexts_file

Harch = Callable[..., Result]

DAKHLA, TANGIER = TourHub("dakhla", "Dakhla", "MA"), TourHub("tangier", "Tangier", "MA")
DAKAR, THIES = TourHub("dakar", "Dakar", "SN"), TourHub("thies", "Thies", "SN")
ABIDJAN = TourHub("abidjan", "Abidjan", "CI")
HERE = FederationFacts(DAKHLA, (TANGIER, DAKAR), is_local=True)
TAG = "tour-123456"


def texts(stations: Sequence[Station]) -> str:
    return "\n".join(str(command) for station in stations for command in station.commands)


class TestPlan:
    def test_every_command_is_one_that_harch_has_with_its_options(self) -> None:
        for station in plan_tour(HERE, TAG):
            for command in station.commands:
                group: click.Command = root
                words = list(command.words)
                while isinstance(group, click.Group):
                    context = click.Context(group)
                    found = group.get_command(context, words.pop(0))
                    assert found is not None, command
                    group = found
                group.make_context("harch", words)  # parses; raises for an option that does not exist

    def test_whatever_it_makes_bears_the_name_of_this_tour_and_is_cleaned_up(self) -> None:
        for station in plan_tour(HERE, TAG):
            for command in station.commands:
                if command.words[0] == "run":
                    assert command.words[command.words.index("--name") + 1] in station.work
                if command.words[:2] == ("data", "add"):
                    assert command.words[2] in station.data
                    assert "stay" in station.notice
            assert all(name.startswith(f"{TAG}-") for name in (*station.work, *station.data))

    def test_detached_work_ends_by_itself_should_nobody_be_left_to_stop_it(self) -> None:
        detached = [c for s in plan_tour(HERE, TAG) for c in s.commands if "-d" in c.words]
        assert detached
        assert all("300" in str(command) for command in detached)

    def test_work_abroad_goes_to_the_country_in_which_one_hub_alone_stands(self) -> None:
        several = FederationFacts(DAKHLA, (DAKAR, THIES, ABIDJAN), is_local=True)
        assert "--country CI" in texts([chosen(plan_tour(several, TAG), "country")])
        assert "--country SN" in texts([chosen(plan_tour(HERE, TAG), "country")])

    def test_a_federation_of_one_country_shows_no_border_and_says_why(self) -> None:
        alone = FederationFacts(DAKHLA, (TANGIER,), is_local=True)
        for name in ("country", "data"):
            station = chosen(plan_tour(alone, TAG), name)
            assert station.not_here == "no other hub that answers stands outside of Morocco"
            assert not station.commands

    @pytest.mark.parametrize("country", ["MA", "FR"])
    def test_what_no_hub_may_run_names_a_country_without_a_hub(self, country: str) -> None:
        home = TourHub("paris", "Paris", country)
        station = chosen(plan_tour(FederationFacts(home, (), is_local=False), TAG), "refused")
        words = station.commands[0].words
        assert words[words.index("--country") + 1] != country
        assert station.commands[0].exit_code == EXIT_REFUSED

    def test_only_a_hub_that_runs_on_this_machine_is_killed(self) -> None:
        assert "hub kill dakhla" in texts(plan_tour(HERE, TAG))
        far = plan_tour(FederationFacts(DAKHLA, (DAKAR,), is_local=False), TAG)
        assert "kill" not in texts(far)
        assert "Dakhla is not run by `harch up` on this machine" in chosen(far, "kill").not_here

    def test_a_station_that_does_not_exist_is_an_error_that_lists_them(self) -> None:
        with pytest.raises(HarchError, match="no station named `moon`") as raised:
            chosen(plan_tour(HERE, TAG), "moon")
        assert "telemetry" in raised.value.hint


ONE = TourCommand(("hubs",))
WORKING = Station("working", "t", "x", (ONE, ONE), "look", work=("w",))
REFUSED = Station("refused", "t", "x", (TourCommand(("run",), EXIT_REFUSED),), "look", work=("w",))
TELEMETRY = Station("telemetry", "t", "x", (ONE,), "look", needs_sentinel=True)
ABSENT = Station("absent", "t", "x", not_here="no hub")
LAST = Station("last", "t", "x")
STATIONS = (WORKING, REFUSED, TELEMETRY, ABSENT, LAST)
NAMES = [station.name for station in STATIONS]


class FakeEdge:
    """Somebody who presses these keys (then Enter), and commands that end with these codes (then as expected)."""

    def __init__(self, keys: Sequence[TourKey] = (), codes: Sequence[Any] = (), gap: str = "") -> None:
        self._keys, self._codes, self._gap = list(keys), list(codes), gap
        self.left: str = ""
        self.ran: list[TourCommand] = []
        self.cleaned = 0
        self.said: dict[str, str] = {}
        self.remembered: list[StationResult] = []

    def show(self, station: Station, number: int, total: int) -> None:
        pass

    def prompt(self, command: TourCommand | None) -> TourKey:
        return self._keys.pop(0) if self._keys else TourKey.NEXT

    def run(self, command: TourCommand) -> int:
        self.ran.append(command)
        code = self._codes.pop(0) if self._codes else command.exit_code
        if isinstance(code, BaseException):
            raise code
        assert isinstance(code, int)
        return code

    def sentinel_gap(self) -> str:
        return self._gap

    def clean_up(self) -> None:
        self.cleaned += 1
        if self.left:
            raise HarchError("E0802", self.left)

    def say(self, result: StationResult, notice: str) -> None:
        self.said[result.name] = result.detail or notice

    def remember(self, result: StationResult) -> None:
        self.remembered.append(result)


def outcomes(results: Sequence[StationResult]) -> list[str]:
    return [result.outcome.value for result in results]


class TestWalk:
    def test_it_runs_every_command_says_what_to_notice_and_cleans_up_what_a_station_made(self) -> None:
        walker = FakeEdge()
        results = walk(STATIONS, NAMES, walker)
        assert outcomes(results) == ["done", "done", "done", "not here", "done"]
        assert len(walker.ran) == 4
        assert walker.cleaned == 2
        assert walker.said["working"] == "look"
        assert walker.remembered == results

    @pytest.mark.parametrize(
        ("codes", "detail"),
        [([1], "`harch hubs` ended with exit code 1, not 0"), ([HarchError("E0801", "too slow")], "E0801: too slow")],
    )
    def test_a_station_that_fails_says_so_and_the_tour_goes_on(self, codes: list[Any], detail: str) -> None:
        walker = FakeEdge(codes=codes)
        results = walk(STATIONS, NAMES, walker)
        assert outcomes(results) == ["failed", "done", "done", "not here", "done"]
        assert walker.said["working"] == detail
        assert walker.cleaned == 2

    def test_a_refusal_that_does_not_come_is_a_failure(self) -> None:
        (result,) = walk(STATIONS, ["refused"], FakeEdge(codes=[EXIT_OK]))
        assert result.detail == "`harch run` ended with exit code 0, not 4"

    def test_sentinel_that_is_not_ready_is_no_failure(self) -> None:
        walker = FakeEdge(gap="it starts")
        (result,) = walk(STATIONS, ["telemetry"], walker)
        assert (result.outcome, result.detail) == (StationOutcome.NOT_READY, "it starts")
        assert walker.ran == []

    def test_a_skipped_station_is_cleaned_up_and_the_next_one_shown(self) -> None:
        walker = FakeEdge(keys=[TourKey.NEXT, TourKey.SKIP])
        results = walk(STATIONS, ["working", "last"], walker)
        assert outcomes(results) == ["skipped", "done"]
        assert (len(walker.ran), walker.cleaned) == (1, 1)

    def test_who_quits_in_a_station_comes_back_to_it(self) -> None:
        walker = FakeEdge(keys=[TourKey.NEXT, TourKey.QUIT])
        assert walk(STATIONS, NAMES, walker) == []
        assert (walker.remembered, walker.cleaned) == ([], 1)

    def test_ctrl_c_cleans_up_too_and_what_is_left_is_said(self) -> None:
        walker = FakeEdge(codes=[KeyboardInterrupt()])
        walker.left = "dakhla is silent"
        with pytest.raises(KeyboardInterrupt):
            walk(STATIONS, NAMES, walker)
        assert walker.cleaned == 1
        assert walker.said["working"] == "E0802: dakhla is silent"

    def test_work_that_cannot_be_stopped_fails_the_station(self) -> None:
        walker = FakeEdge()
        walker.left = "dakhla is silent"
        (result,) = walk(STATIONS, ["working"], walker)
        assert result == StationResult("working", StationOutcome.FAILED, "E0802: dakhla is silent")


class TestProgress:
    def test_it_is_kept_by_federation_and_resumes_with_what_is_left_under_a_new_name(self, tmp_path: Path) -> None:
        file, other = ProgressFile(tmp_path / "tour.json", "one"), ProgressFile(tmp_path / "tour.json", "two")
        first = new_progress().after("working").after("working")
        file.write(first)
        assert other.read() is None
        found = file.read()
        assert found is not None
        again = new_progress().resumed(found)
        assert again.todo(STATIONS) == ("refused", "telemetry", "absent", "last")
        assert again.tag != first.tag
        file.write(None)
        assert file.read() is None

    def test_a_broken_file_begins_anew_and_the_longest_untouched_federation_is_dropped(self, tmp_path: Path) -> None:
        path = tmp_path / "tour.json"
        path.write_text("{")
        for number in range(FEDERATIONS_MAX + 1):
            ProgressFile(path, f"f{number}").write(TourProgress("tour-1"))
        assert ProgressFile(path, "f0").read() is None
        assert ProgressFile(path, "f1").read() == TourProgress("tour-1")

    def test_two_tours_at_a_time_would_stop_each_others_work(self, tmp_path: Path) -> None:
        file = ProgressFile(tmp_path / "tour.json", "one")
        with file.held(), pytest.raises(HarchError, match="another `harch tour`"), file.held():
            pass


@pytest.fixture
def federation(hub: HubDouble, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> HubDouble:
    """One hub, whose `harch` ends as the plan expects."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HARCH_SENTINEL_URL", "http://127.0.0.1:1")
    monkeypatch.setattr(edge, "run_harch", lambda command, stdout: command.exit_code)
    summary = hub_summary(hub_id="dakhla", name="Dakhla", country="MA", status="ready")
    capacity = dict.fromkeys(("total_gpus", "available_gpus"), 1)
    hub.on("GET /health", {"status": "healthy", "hub_id": "dakhla"})
    one = {"id": "dakhla", "name": "Dakhla", "country": "MA", "status": "ready", "reachable": True}
    hub.on("GET /hubs", {"items": [{**summary, **one, "capacity": capacity}], "total": 1})
    hub.on("GET /workloads", {"items": [], "total": 0})
    return hub


class TestVerb:
    def test_without_a_terminal_it_has_to_be_told_to_run_everything(self, harch: Harch, federation: HubDouble) -> None:
        done = harch("tour")
        assert (done.exit_code, "E0201" in done.stderr, "harch tour --yes" in done.stderr) == (2, True, True)

    def test_with_yes_and_json_one_document_says_how_it_went_and_what_is_left(
        self, harch: Harch, federation: HubDouble
    ) -> None:
        done = harch("tour", "--yes", "--json")
        found = json.loads(done.stdout)
        assert done.exit_code == 0, done.output
        went = {item["name"]: item["outcome"] for item in found["items"]}
        assert went["run"] == "done"
        assert {went[name] for name in ("country", "data", "kill")} == {"not here"}
        assert (went["telemetry"], found["left"]) == ("not ready", ["telemetry"])

    def test_the_next_call_resumes_with_what_is_left_and_restart_begins_anew(
        self, harch: Harch, federation: HubDouble
    ) -> None:
        harch("tour", "--yes", "--station", "hubs")
        listed = json.loads(harch("tour", "--list", "--json").stdout)["items"]
        assert [item["name"] for item in listed if item["passed"]] == ["hubs"]
        again = harch("tour", "--yes")
        assert "resuming with `run`" in again.stdout
        assert "A federation of hubs" not in again.stdout
        assert "A federation of hubs" in harch("tour", "--yes", "--restart").stdout

    def test_a_failed_command_makes_the_exit_code_1_and_its_station_comes_again(
        self, harch: Harch, federation: HubDouble, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(edge, "run_harch", lambda command, stdout: 7 if "verify" in command.words else 0)
        done = harch("tour", "--yes", "--station", "audit")
        assert done.exit_code == 1
        said = " ".join(done.stdout.split())
        assert "This station failed: `harch audit verify` ended with exit code 7, not 0" in said
        listed = json.loads(harch("tour", "--list", "--json").stdout)["items"]
        assert not any(item["passed"] for item in listed)

    def test_work_of_a_tour_that_was_killed_is_stopped_by_the_next_one(
        self, harch: Harch, federation: HubDouble
    ) -> None:
        harch("tour", "--yes", "--station", "hubs")
        (tag,) = [one["tag"] for one in json.loads(contexts_file().with_name("tour.json").read_text()).values()]
        work, other = workload(id="wl_1", name=f"{tag}-why"), workload(id="wl_2", name="mine")
        federation.answers["GET /workloads"] = [
            (200, {"items": [work, other], "total": 2}),
            (200, {"items": [other], "total": 1}),
        ]
        federation.on("PATCH /workloads/wl_1", {**work, "status": "cancelled"})
        federation.on("GET /workloads/wl_1", {**work, "status": "cancelled"})
        done = harch("tour", "--yes", "--station", "top")
        assert f"stopped {tag}-why" in done.stdout, done.output
        assert not [asked for asked in federation.asked if "wl_2" in asked.path]
