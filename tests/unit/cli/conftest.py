"""A hub to talk to, and a `harch` to run: for every test of a verb."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from content_hub import ContentHub, content_hub
from hub_double import HubDouble, hub_double

from harch.cli.main import root


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubDouble]:
    with hub_double() as double:
        monkeypatch.setenv("HARCH_URL", double.url)
        monkeypatch.setenv("HARCH_API_KEY", "hsk_test_key_of_enough_length")
        monkeypatch.setenv("HARCH_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        elsewhere = tmp_path / "empty"
        elsewhere.mkdir()
        monkeypatch.chdir(elsewhere)  # no project, so that `harch run` sends no code unless a test is about that
        yield double


@pytest.fixture
def content(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ContentHub]:
    """A hub that keeps content; the current folder is that of an empty project."""
    project, work = tmp_path / "project", tmp_path / "work"
    project.mkdir()
    work.mkdir()
    with content_hub(work) as double:
        monkeypatch.setenv("HARCH_URL", double.url)
        monkeypatch.setenv("HARCH_API_KEY", "hsk_test_key_of_enough_length")
        monkeypatch.setenv("HARCH_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.chdir(project)
        yield double


@pytest.fixture
def harch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*words: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(root, list(words), input=stdin)

    return run
