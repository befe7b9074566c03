"""The documentation, built as a site."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documents import DOCS, ROOT


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    shutil.copytree(DOCS, folder / "docs")
    built = subprocess.run(
        [sys.executable, "-m", "zensical", "build"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "http_proxy": "http://127.0.0.1:9", "NO_COLOR": "1"},
    )
    assert built.returncode == 0, built.stdout + built.stderr
    assert "No issues found" in built.stdout + built.stderr, built.stdout + built.stderr
    return folder / "site"
