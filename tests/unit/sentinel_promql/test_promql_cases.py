"""Does the engine answer as the language demands? Files of our own, run by the harness."""

from __future__ import annotations

from pathlib import Path

import pytest

from harch.testing.promqltest.__main__ import main
from harch.testing.promqltest.engine import EngineTarget, StoreTarget
from harch.testing.promqltest.runner import run_file

CASES = sorted(Path(__file__).with_name("cases").glob("*.test"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_evaluation_of_a_file_passes(path: Path) -> None:
    outcome = run_file(path, EngineTarget())
    assert not outcome.broken
    assert outcome.evals
    assert [(one.line, one.query, one.variant, one.failure) for one in outcome.evals if not one.passed] == []


@pytest.mark.parametrize("in_blocks", [False, True], ids=["head", "blocks"])
@pytest.mark.parametrize("name", ["native", "stale"])
def test_the_store_hands_out_what_was_loaded(name: str, in_blocks: bool, tmp_path: Path) -> None:
    target = StoreTarget(tmp_path, in_blocks=in_blocks)
    outcome = run_file(Path(__file__).with_name("cases") / f"{name}.test", target)
    target.close()
    assert not outcome.broken
    assert [(one.line, one.query, one.variant, one.failure) for one in outcome.evals if not one.passed] == []


def test_the_command_tells_of_failures_by_its_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.test", tmp_path / "bad.test"
    good.write_text("eval instant at 0 1 + 1\n  2\n")
    bad.write_text("eval instant at 0 1 + 1\n  3\n")
    assert main([str(good)]) == 0
    assert main([str(tmp_path), "--json"]) == 1
    assert '"passed": 1, "evals": 2' in capsys.readouterr().out
    assert main([str(tmp_path / "none")]) == 2
