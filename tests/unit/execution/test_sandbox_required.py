"""Where work must be confined, is it confined or refused, whatever the machine has?"""

from __future__ import annotations

from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.execution.admission import Premises, refusal
from harch.execution.isolation.sandbox import MODES, SandboxMode, agent_mode, choose, workers_mode
from unit.execution.test_agent_tags import HERE, TASK

WORKS, FAILS = "exit 0", "echo 'bwrap: No permissions to create new namespace' >&2; exit 1"


@pytest.fixture
def bwrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only program on the PATH, once it is written."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder / "bwrap"


def install(bwrap: Path, script: str) -> None:
    bwrap.write_text(f"#!/bin/sh\n{script}\n")
    bwrap.chmod(0o755)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("", "bubblewrap (bwrap) is not installed"),
        (FAILS, "bubblewrap does not work here: bwrap: No permissions to create new namespace"),
        ("exit 3", "bubblewrap does not work here: exit status 3"),
    ],
)
def test_without_a_sandbox_that_works_required_refuses_and_auto_says_why_there_is_none(
    bwrap: Path, tmp_path: Path, script: str, why: str
) -> None:
    if script:
        install(bwrap, script)
    lenient = choose("auto", tmp_path)
    assert (lenient.program, lenient.detail, lenient.refusal) == ("", why, "")
    lenient.check()
    strict = choose("required", tmp_path)
    assert strict.program == ""
    with pytest.raises(HarchError) as refused:
        strict.check()
    assert refused.value.code == "E0312"
    assert refused.value.message == f"work must run in a sandbox here, and {why}"
    assert "harch doctor" in refused.value.hint


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_a_sandbox_that_works_is_used(bwrap: Path, tmp_path: Path, mode: SandboxMode) -> None:
    install(bwrap, WORKS)
    chosen = choose(mode, tmp_path)
    chosen.check()
    assert chosen.program == str(bwrap)


def test_switched_off_is_switched_off(bwrap: Path, tmp_path: Path) -> None:
    install(bwrap, WORKS)
    assert choose("off", tmp_path).program == ""


def test_an_agent_that_should_not_have_started_refuses_every_task() -> None:
    unconfined = Premises("MA", frozenset(), (), (), HERE.safeguards, "work must run in a sandbox here, and …")
    assert refusal(TASK, HERE) == ""
    assert refusal(TASK, unconfined) == "E0312 work must run in a sandbox here, and …"


def test_one_setting_is_for_agents_and_hubs_and_another_for_workers_of_pipelines_alone() -> None:
    assert (agent_mode({}), workers_mode({})) == ("auto", "auto")
    for mode in MODES:
        assert (agent_mode({"HARCH_SANDBOX": mode}), workers_mode({"HARCH_SANDBOX": mode})) == (mode, mode)
    both = {"HARCH_SANDBOX": "required", "HARCH_PIPELINE_SANDBOX": "off"}
    assert (agent_mode(both), workers_mode(both)) == ("required", "off")


@pytest.mark.parametrize("name", ["HARCH_SANDBOX", "HARCH_PIPELINE_SANDBOX"])
def test_a_word_that_nobody_knows_is_refused_and_does_not_mean_auto(name: str) -> None:
    with pytest.raises(HarchError) as refused:
        workers_mode({name: "require"})
    assert refused.value.code == "E0201"
    assert f"{name} is `require`" in refused.value.message
