"""What a hub remembers of itself over restarts, and how much it writes into its history."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.federation.gossip.membership import Forged, IdentityCloned, Reason, Recovered, StateChanged, Suspected
from harch.hub.federation.history import NOTES_MAX, FederationHistory
from harch.hub.federation.membership import next_generation

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_generation_is_above_all_earlier_ones_also_when_the_clock_goes_back(tmp_path: Path) -> None:
    file = tmp_path / "generation"
    first = next_generation(file, MOMENT)
    assert first == int(MOMENT.timestamp() * 1000)
    assert next_generation(file, MOMENT.replace(year=2020)) == first + 1
    assert next_generation(file, MOMENT.replace(year=2030)) > first + 1
    file.write_text("broken")
    with pytest.raises(HarchError) as raised:
        next_generation(file, MOMENT)
    assert raised.value.code == "E1005"


def test_news_become_lines_of_history_and_mere_figures_do_not() -> None:
    lines: list[tuple[str, str, str]] = []
    notices = FederationHistory("dakhla", lambda *line: lines.append(line))
    forged = Forged("dakar", "tangier", Reason.BAD_SIGNATURE, 2)
    news = [Suspected("dakar", 1.74), Recovered("dakar"), StateChanged("dakar", frozenset({"x"})), forged]
    notices.record([*news, IdentityCloned(7, "tangier")], 0.0)
    assert [(kind, subject) for kind, subject, _ in lines] == [
        ("hub.suspected", "dakar"),
        ("hub.recovered", "dakar"),
        ("federation.forged", "dakar"),
        ("federation.cloned", "dakhla"),
    ]
    assert "silent for 1.7 s" in lines[0][2]
    assert "from tangier" in lines[2][2]


def test_a_flood_of_news_is_counted_instead_of_written() -> None:
    lines: list[tuple[str, str, str]] = []
    notices = FederationHistory("dakhla", lambda *line: lines.append(line))
    notices.record([Recovered("dakar")] * (NOTES_MAX + 5), 0.0)
    assert len(lines) == NOTES_MAX
    notices.record([Recovered("dakar")], 61.0)
    assert lines[-1][2] == "contact restored (5 earlier lines were left out)"
