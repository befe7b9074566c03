"""Does anything under version control only work on one machine, or wait for somebody to merge it?"""

from __future__ import annotations

import re
from pathlib import Path

from documents import ROOT, name, tracked_text_files

_HOME_FOLDERS = re.compile(r"(?<![\w.$}])/(?:home|Users)/[A-Za-z]\w*/")
_CONFLICT = re.compile(r"^(?:<{7}|>{7}) ", re.MULTILINE)


def test_no_tracked_file_names_a_path_of_one_machine() -> None:
    checkout = re.compile(rf"(?<![\w.]){re.escape(str(ROOT))}(?![\w-])") if len(ROOT.parts) > 2 else None
    found = [
        name(path)
        for path, text in tracked_text_files()
        if path != Path(__file__) and (_HOME_FOLDERS.search(text) or (checkout and checkout.search(text)))
    ]
    assert found == []


def test_no_tracked_file_has_the_marks_of_an_unfinished_merge() -> None:
    assert [name(path) for path, text in tracked_text_files() if _CONFLICT.search(text)] == []
