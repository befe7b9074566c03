"""Are lists alike for every verb: ids whole, columns by name, sorted by value, the same in JSON, YAML and names?"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
import yaml
from click.testing import Result
from hub_double import HubDouble, hub_summary
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from test_cli_verbs import page, workload

from harch import cli
from harch.base.errors import HarchError
from harch.cli.listing import Listing, Sortable, sort_key
from harch.cli.views.table import GAP, TableColumn, draw, fit, visible_columns
from harch.cli.watch import spelled_out

Harch = Callable[..., Result]

LONG = "wl_1m7r8t3ymjhnd983h4bx8"
HUBS = page(
    *(
        {
            "id": name.lower(),
            "name": name,
            "status": "ready",
            "country": "MA",
            "own": name == "Dakhla",
            "provenance": "modelled",
            "age_s": age_s,
            "capacity": {"total_gpus": 640, "available_gpus": free},
            "summary": hub_summary(models=[]),
        }
        for name, age_s, free in (("Dakhla", 0.0, 64), ("Tangier", 500.0, 320), ("Casablanca", 9.0, 8))
    )
)


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output is a terminal of 80 columns from here on."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")


def shown(listing: Listing, items: list[int]) -> None:
    listing.show(
        items,
        (
            TableColumn("ID"),
            TableColumn("NUMBER", 1),
            TableColumn("WIDE", 3),
            TableColumn("RARE", 4, wide_only=True),
            TableColumn("NOTE", 2, takes_rest=True),
        ),
        lambda item: (f"{LONG}{item}", item, "w" * 36, "r", "a note that goes on" + " and on" * 9),
        name=lambda item: f"{LONG}{item}",
        none="nothing here",
    )


class TestOnATerminal:
    def test_ids_stay_whole_columns_leave_by_importance_and_that_is_said(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        on_terminal(monkeypatch)
        shown(Listing(), [1, 2])
        said = capsys.readouterr()
        lines = click.unstyle(said.out).splitlines()
        assert len(lines) == 3
        assert all(f"{LONG}{number}" in line for number, line in enumerate(lines[1:], start=1))
        assert all(cell_len(line) <= 80 for line in lines)
        assert "WIDE" not in lines[0]
        assert lines[1].endswith("…")
        assert "no room for WIDE; `-o wide`" in said.err

    def test_wide_shows_everything_whole(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        on_terminal(monkeypatch)
        shown(Listing("wide"), [1])
        titles, row = click.unstyle(capsys.readouterr().out).splitlines()
        assert titles.split() == ["ID", "NUMBER", "WIDE", "RARE", "NOTE"]
        assert row.endswith("on and on and on")

    def test_chosen_columns_are_neither_cut_nor_left_out(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        on_terminal(monkeypatch)
        shown(Listing(columns=("note", "rare", "wide", "id")), [1])
        titles, row = click.unstyle(capsys.readouterr().out).splitlines()
        assert titles.split() == ["NOTE", "RARE", "WIDE", "ID"]
        assert row.endswith(f"{LONG}1")


class TestOptions:
    def test_sorting_goes_by_value_both_ways_and_titles_may_be_left_out(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        shown(Listing(columns=("number",), sort="number", titles=False), [10, 9, 100])
        assert capsys.readouterr().out.split() == ["9", "10", "100"]
        shown(Listing(columns=("number",), sort="-NUMBER", titles=False), [10, 9, 100])
        assert capsys.readouterr().out.split() == ["100", "10", "9"]

    def test_programs_get_the_same_order(self, capsys: pytest.CaptureFixture[str]) -> None:
        shown(Listing("json", sort="-number"), [1, 3, 2])
        assert json.loads(capsys.readouterr().out) == {"items": [3, 2, 1], "total": 3}
        shown(Listing("yaml", sort="number"), [1, 3, 2])
        assert yaml.safe_load(capsys.readouterr().out) == {"items": [1, 2, 3], "total": 3}
        shown(Listing("name", sort="number"), [2, 1])
        assert capsys.readouterr().out.split() == [f"{LONG}1", f"{LONG}2"]

    def test_an_empty_list_says_so_to_people_and_is_empty_for_programs(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        shown(Listing(), [])
        said = capsys.readouterr()
        assert (said.out, said.err) == ("", "nothing here\n")
        shown(Listing("json"), [])
        assert json.loads(capsys.readouterr().out) == {"items": [], "total": 0}

    @pytest.mark.parametrize(("columns", "sort"), [(("id", "gpus"), ""), ((), "-gpus")])
    def test_an_unknown_column_is_an_error_that_names_the_known(self, columns: tuple[str, ...], sort: str) -> None:
        with pytest.raises(HarchError, match="no column `gpus`") as raised:
            shown(Listing(columns=columns, sort=sort), [1])
        assert raised.value.hint == "choose from id, number, wide, rare, note"


def test_cells_sort_as_people_expect() -> None:
    cells: list[object] = [
        "n10",
        "n9",
        "-",
        "",
        Sortable("2 h", 7200.0),
        Sortable("90 s", 90.0),
        Sortable("never", None),
    ]
    keys = [(key, str(cell)) for cell in cells if (key := sort_key(cell)) is not None]
    assert [text for _, text in sorted(keys)] == ["90 s", "2 h", "n9", "n10"]
    assert [str(cell) for cell in cells if sort_key(cell) is None] == ["-", "", "never"]


words = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=30)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=8).flatmap(
        lambda columns: st.tuples(
            st.just(columns), st.lists(st.tuples(*(words for _ in columns)), max_size=4), st.integers(10, 120)
        )
    )
)
def test_a_table_keeps_its_width_and_never_cuts_what_is_not_to_be_cut(
    given_: tuple[list[tuple[int, bool]], list[tuple[str, ...]], int],
) -> None:
    kinds, rows, width = given_
    columns = [
        TableColumn(f"C{at}", importance, takes_rest=rest and at == len(kinds) - 1)
        for at, (importance, rest) in enumerate(kinds)
    ]
    visible = visible_columns(columns, rows, width)
    assert all(at in visible for at, column in enumerate(columns) if column.importance == 0)
    lines = [line.plain for line in draw(columns, rows, visible, width)]
    for row, line in zip(rows, lines[1:], strict=True):
        assert all(row[at] in line for at in visible if not columns[at].takes_rest)
    if len(visible) > sum(column.importance == 0 for column in columns):  # else it may be too wide for good
        assert all(cell_len(line) <= width for line in lines)
    assert all(cell_len(line.plain) <= width for line in fit(columns, rows, width))
    assert GAP == 2


class TestVerbs:
    def test_hubs_are_sorted_by_what_is_free_and_named(self, hub: HubDouble, harch: Harch) -> None:
        hub.on("GET /hubs", HUBS)
        assert harch("hubs", "-o", "name", "--sort", "-gpus-free").stdout.split() == ["tangier", "dakhla", "casablanca"]
        assert harch("hubs", "--columns", "hub,age", "--sort", "age", "--no-headers").stdout.splitlines() == [
            "Dakhla *    0.0 s",
            "Casablanca  9.0 s",
            "Tangier     8 min",
        ]

    def test_ps_names_one_node_and_counts_the_others(self, hub: HubDouble, harch: Harch) -> None:
        placement = [{"rank": rank, "node_id": f"dakhla-n{rank}", "gpu_ids": []} for rank in range(38)]
        hub.on("GET /workloads", page(workload(placement=placement)))
        assert "dakhla-n0 +37" in harch("ps").stdout

    def test_yaml_is_the_same_document_as_json(self, hub: HubDouble, harch: Harch) -> None:
        hub.on("GET /workloads", page(workload()))
        assert yaml.safe_load(harch("ps", "-o", "yaml").stdout) == json.loads(harch("ps", "--json").stdout)

    def test_an_error_of_a_list_as_json_is_json(self, hub: HubDouble, harch: Harch) -> None:
        hub.on("GET /hubs", HUBS)
        result = harch("hubs", "-o", "json", "--sort", "speed")
        assert json.loads(result.stdout)["error"]["code"] == "E0201"
        assert result.exit_code == 2

    def test_a_pipe_gets_every_column_whole(self, hub: HubDouble, harch: Harch) -> None:
        hub.on("GET /workloads", page(workload(id=LONG, error_message="x" * 300)))
        assert f"{'x' * 300}\n" in harch("ps").stdout


@pytest.mark.parametrize(
    ("words_", "found"),
    [
        (["--watch"], ["--watch=default"]),
        (["--watch", "5", "a"], ["--watch", "5", "a"]),
        (["--watch", "dakhla"], ["--watch=default", "dakhla"]),
        (["--watch", "--hub", "a"], ["--watch=default", "--hub", "a"]),
        (["--watch=0.5"], ["--watch=0.5"]),
        (["--watch", "--interval", "5"], ["--interval", "5"]),
        (["--", "--watch"], ["--", "--watch"]),
    ],
)
def test_the_seconds_of_watch_may_be_left_out(words_: list[str], found: list[str]) -> None:
    assert spelled_out(words_) == found


SOURCES = sorted(Path(cli.__file__).parent.rglob("*.py"))
SENTENCES = {  # columns that are cut where there is no room: what they say is said elsewhere, and nobody copies it
    *(
        "BASED ON",
        "BECAUSE",
        "NOT HERE BECAUSE",
        "NOTE",
        "NOTES",
        "SOURCE",
        "SUMMARY",
        "TROUBLE",
        "WHAT",
        "WHY",
        "WHY NOT",
    ),
    *("COUNTRIES", "IN FORCE IN", "NAMES"),  # long lists
    "NAME",  # of what a trace is about, beside its id
}


NAME = TableColumn.__name__


def calls_of_columns() -> list[tuple[str, ast.Call]]:
    """Every `TableColumn("TITLE", ...)` of the command line, with the file in which it stands."""
    nodes = [(path.name, node) for path in SOURCES for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    calls = [(name, node) for name, node in nodes if isinstance(node, ast.Call)]
    return [(name, call) for name, call in calls if isinstance(call.func, ast.Name) and call.func.id == NAME]


def test_only_sentences_are_cut_and_ids_never_are_in_whatever_verb() -> None:
    calls = [(name, call) for name, call in calls_of_columns() if name != "screen.py"]  # a screen, drawn each second
    assert len(calls) > 100
    for name, call in calls:
        cut = {word.arg for word in call.keywords} & {"takes_rest", "width_max"}
        title = call.args[0]
        if cut:
            assert isinstance(title, ast.Constant), name
            assert title.value in SENTENCES, f"{name}: {title.value}"


def test_every_table_is_drawn_by_the_one_that_folds_nothing() -> None:
    for path in SOURCES:
        assert "rich.table" not in path.read_text("utf-8"), path
