"""What does `harch policy prove` answer, and with which exit code?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from harch.cli.main import root
from harch.sovereignty.proof.state import write_state
from proof_seeded import clean_world, seeded

WORLD = clean_world(size=150)


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(root, ["policy", "prove", *words])
    return result.exit_code, result.stdout


@pytest.fixture
def broken(tmp_path: Path) -> str:
    seed = seeded(WORLD, 4)
    path = tmp_path / "state.json"
    path.write_text(json.dumps(write_state(seed.world, seed.changes)))
    return str(path)


def test_a_proven_state_ends_with_0(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps(write_state(WORLD)))
    code, out = run("--state", str(path))
    assert code == 0
    assert out.startswith("proven:")


def test_a_violation_ends_with_4_and_a_story(broken: str) -> None:
    code, out = run("--state", broken)
    assert code == 4
    assert "That breaks `rest_in`" in out
    assert "fix: " in out


def test_json_has_the_story_and_nothing_else(broken: str) -> None:
    code, out = run("--state", broken, "--json")
    proof = json.loads(out)
    assert (code, proof["status"]) == (4, "violated")
    assert proof["stories"][0]["changes"][0]["id"] == "seeded"


def test_what_cannot_be_proven_ends_with_1(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps({"version": 1, "workloads": [{"id": "w", "reads": ["ghost"]}]}))
    code, out = run("--state", str(path))
    assert code == 1
    assert "unknown: " in out


def test_nothing_to_prove_is_a_mistake_of_usage() -> None:
    code, out = run("--json")
    assert code == 2
    assert json.loads(out)["error"]["code"] == "E0201"
