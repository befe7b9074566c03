"""Which files are documentation, and what do they say? Shared by the tests of this folder."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^(?P<fence>```+|~~~+)[^\n]*\n.*?^(?P=fence)\s*$", re.MULTILINE | re.DOTALL)
_CODE_SPAN = re.compile(r"`[^`\n]+`")


def pages() -> list[Path]:
    """Every page written for people: docs/, the top-level pages and the changelog fragments."""
    return sorted({*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "changelog.d").glob("*.md")})


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def text_without_code(path: Path) -> str:
    return _CODE_SPAN.sub("", _FENCE.sub("", path.read_text("utf-8")))


def shell_lines(path: Path) -> Iterator[str]:
    """The commands of a page's ```sh blocks: one line each, comments and continuations removed."""
    for block in re.findall(r"^```sh[^\n]*\n(.*?)^```", path.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            command = re.sub(r"(^|\s)#.*$", "", line).strip()
            if command:
                yield command


def tracked_text_files() -> Iterator[tuple[Path, str]]:
    """Every text file under version control; without git, every text file outside hidden and built folders."""
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
        paths = [ROOT / part for part in listed.split("\0") if part]
    except (OSError, subprocess.CalledProcessError):
        built = {"site", "dist", "node_modules"}
        paths = [
            path
            for path in ROOT.rglob("*")
            if not any(part.startswith(".") or part in built for part in path.relative_to(ROOT).parts)
        ]
    for path in paths:
        if path.is_file():
            try:
                yield path, path.read_text("utf-8")
            except UnicodeDecodeError:
                continue
