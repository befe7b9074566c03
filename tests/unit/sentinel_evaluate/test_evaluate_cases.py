"""Does the evaluator answer as the language demands? Files of our own for joins, labels, buckets, numbers and times."""

from __future__ import annotations

from pathlib import Path

import pytest

from harch.testing.promqltest.engine import EngineTarget
from harch.testing.promqltest.runner import run_file

CASES = sorted(Path(__file__).with_name("cases").glob("*.test"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_case_of_a_file_passes(path: Path) -> None:
    outcome = run_file(path, EngineTarget())
    assert not outcome.broken
    assert outcome.evals
    assert [(one.line, one.query, one.variant, one.failure) for one in outcome.evals if not one.passed] == []
