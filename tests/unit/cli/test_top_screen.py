"""The screen of `harch top` fits every terminal, leaves out what matters least, and never hides that it did."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len
from top_samples import LOOK

from harch.cli.live_screen.screen import TableColumn, fit, screen
from harch.cli.live_screen.snapshot import FederationSnapshot
from harch.cli.live_screen.view_options import HUB_ORDERS, ViewOptions, filtered, pressed
from harch.cli.verbs.fleet.top import keys_in


def lines(
    view: ViewOptions | None = None,
    width: int = 160,
    height: int = 60,
    look: FederationSnapshot = LOOK,
    trouble: str = "",
) -> list[str]:
    return [line.plain for line in screen(look, view or ViewOptions(), width, height, trouble=trouble)]


def after(*keys: str) -> ViewOptions:
    view = ViewOptions()
    for key in keys:
        view = pressed(view, key)
    return view


def test_a_wide_screen_shows_everything_with_how_it_was_found() -> None:
    text = "\n".join(lines())
    assert lines()[0].startswith(
        "harch top, 3 hubs, 1 unreachable; 264 of 1,014 GPUs used; 3 workloads; 1 alerts; seen from dakhla"
    )
    (dakar,) = [line for line in lines() if line.startswith("Dakar")]
    assert dakar.split()[:6] == ["Dakar", "SN", "ready", "200", "of", "214"]
    assert "71 kW modelled" in dakar
    assert "214  estimated" in dakar
    for word in ("large", "120,000", "8.2", "DiskNearlyFull", "workload.running", "suspected: silent for 9 s"):
        assert word in text


def test_what_is_missing_is_said_once_for_all_hubs() -> None:
    text = "\n".join(lines())
    assert "alerts, telemetry of dakar, dakhla missing: E0802: no SENTINEL answers: refused" in text
    assert "workloads of abidjan missing: suspected" in text
    assert "no hub answers" in "\n".join(lines(trouble="no hub answers, the figures are old"))


def test_text_of_others_cannot_move_the_cursor() -> None:
    assert not any("\x1b" in line for line in lines())


@given(width=st.integers(1, 250), height=st.integers(1, 80), hidden=st.sets(st.sampled_from(["hubs", "events"])))
def test_it_fits_every_terminal(width: int, height: int, hidden: set[str]) -> None:
    drawn = lines(ViewOptions(hidden=frozenset(hidden)), width, height)
    assert 1 <= len(drawn) <= height
    assert all(cell_len(line) <= width for line in drawn)


def test_a_narrow_screen_keeps_what_matters_most() -> None:
    drawn = lines(width=40, height=30)
    assert any(line.split()[:2] == ["Dakar", "ready"] and "200 of 214" in line for line in drawn)
    assert not any("modelled" in line for line in drawn)


def test_what_does_not_fit_is_counted() -> None:
    drawn = lines(height=22)
    assert any(line.startswith("and ") and line.endswith(" more") for line in drawn)
    assert drawn[-1].startswith("q quit")


def test_keys_sort_filter_hide_pause_and_quit() -> None:
    assert [hub.name for hub in filtered(LOOK, after("s")).hubs] == ["Dakar", "Dakhla", "Abidjan"]  # most used first
    assert [hub.name for hub in filtered(LOOK, after("s", "r")).hubs] == ["Abidjan", "Dakhla", "Dakar"]
    assert after(*"s" * len(HUB_ORDERS)) == ViewOptions()
    assert [hub.name for hub in filtered(LOOK, ViewOptions(order="power")).hubs][-1] == "Abidjan"  # not known: last
    assert [one.name for one in filtered(LOOK, ViewOptions()).workloads] == ["large", "small", "waits"]
    found = filtered(LOOK, after("/", *"dakX", "\x7f", "ar", "\r"))
    assert [hub.name for hub in found.hubs] == ["Dakar"]
    assert after("/", "x", "\x1b").needle == ""
    assert after("/", "x", "\r", "\x1b").needle == ""
    assert after("1", "5", "5").hidden == {"hubs"}
    assert not any(line.startswith("HUB") for line in lines(after("1")))
    assert after("p").paused
    assert "(paused)" in lines(after(" "))[0]
    assert (after("+").interval_s, after("-").interval_s) == (1.0, 4.0)
    assert after("q").leaving
    assert after("\x1b[A") == ViewOptions()
    assert not after("/", "q").leaving
    assert lines(after("/", "d", "a"))[-1].startswith("filter: da_")


def test_arrows_are_one_key_and_escape_is_another() -> None:
    assert keys_in("ab\x1b[A") == ["a", "b", "\x1b[A"]
    assert keys_in("\x1b") == ["\x1b"]
    assert keys_in("") == []


def test_nothing_at_all_is_said_in_words() -> None:
    empty = replace(LOOK, workloads=(), pipelines=(), alerts=(), events=(), missing=())
    text = "\n".join(lines(look=empty))
    assert "no unfinished work" in text
    assert "no alerts firing" in text


@pytest.mark.parametrize(("width", "titles"), [(40, ["A", "B", "REST"]), (16, ["A", "REST"]), (9, ["A"])])
def test_columns_go_by_importance_and_the_last_takes_the_rest(width: int, titles: list[str]) -> None:
    columns = (TableColumn("A"), TableColumn("B", 2), TableColumn("REST", 1, takes_rest=True))
    drawn = [line.plain for line in fit(columns, [("一二三", "bbbbbb", "x" * 50)], width)]
    assert drawn[0].split() == titles
    assert all(cell_len(line) <= width for line in drawn)
    assert (drawn[1][-1] == "…") is ("REST" in titles)
