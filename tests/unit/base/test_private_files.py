"""Is state closed to others? Also what an earlier version has left open; and nothing of anybody else is touched."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from harch.base.state_files import close_to_others


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat(follow_symlinks=False).st_mode)


def test_folders_and_files_are_closed_and_keep_their_owners_rights(tmp_path: Path) -> None:
    root = tmp_path / "state"
    (root / "deep" / "deeper").mkdir(parents=True, mode=0o755)
    for path, given in ((root / "hub.db", 0o644), (root / "deep/run.sh", 0o755), (root / "deep/deeper/log", 0o666)):
        path.write_text("x")
        path.chmod(given)
    for folder in (root, root / "deep", root / "deep/deeper"):
        folder.chmod(0o755)
    assert close_to_others(root) == 6
    assert [mode(path) for path in (root, root / "deep", root / "deep/deeper")] == [0o700] * 3
    assert [mode(root / name) for name in ("hub.db", "deep/run.sh", "deep/deeper/log")] == [0o600, 0o700, 0o600]
    assert close_to_others(root) == 0


def test_links_inside_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    (outside / "file").write_text("x")
    for path, given in ((outside, 0o755), (outside / "file", 0o644)):
        path.chmod(given)
    root = tmp_path / "state"
    root.mkdir(mode=0o700)
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "file")
    assert close_to_others(root) == 0
    assert (mode(outside), mode(outside / "file")) == (0o755, 0o644)
    assert close_to_others(root / "folder") == 2  # an operator may keep the state elsewhere


def test_a_shallow_look_closes_the_folder_alone(tmp_path: Path) -> None:
    root = tmp_path / "home"
    root.mkdir()
    root.chmod(0o755)
    (root / "file").write_text("x")
    (root / "file").chmod(0o644)
    assert close_to_others(root, deep=False) == 1
    assert (mode(root), mode(root / "file")) == (0o700, 0o644)


def test_pipes_and_missing_folders_do_no_harm(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o644)
    assert close_to_others(tmp_path / "nowhere") == 0
    close_to_others(tmp_path)
    assert (tmp_path / "pipe").exists()
