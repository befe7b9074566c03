"""What does a guide have its reader do? Its blocks in order: files to write, commands to type, what the commands say.

A page says it by its fences, so that what is tested is what is read:

    ```sh                                       commands, each of which exits with 0
    ```sh title="In a terminal of its own"      a command that goes on until the guide is over
    ```toml title="acme/policy.toml"            a file, written where it stands
    ```text                                     output; `error[E0901]` in it: the last command above fails with that

A command whose comment names Ctrl-C is a view: it is interrupted once it has shown something.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OWN_TERMINAL = "In a terminal of its own"
_FENCE = re.compile(r"^(?P<fence>```+)(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=fence)[ ]*$", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r'title="([^"]+)"')
_ERROR = re.compile(r"^error\[(E\d{4})\]", re.MULTILINE)
_COMMENT = re.compile(r"(?:^|\s)#\s.*$", re.MULTILINE)


@dataclass(frozen=True)
class ShownFile:
    """A file whose content the page shows, to be written under that name."""

    line: int
    path: str
    text: str


@dataclass(frozen=True)
class Commands:
    """A block of commands, as it is pasted into a shell."""

    line: int
    text: str
    fails_with: str = ""  # error code that the last command ends with
    goes_on: bool = False  # in a terminal of its own, until the guide is over

    @property
    def commands(self) -> list[str]:
        """One entry per command that is typed: continued lines and bodies of functions and loops belong together."""
        found: list[str] = []
        open_line = ""
        for line in self.text.splitlines():
            open_line = f"{open_line}\n{line}" if open_line else line
            if not line.strip() or _is_open(open_line):
                continue
            if _COMMENT.sub("", open_line).strip():
                found.append(open_line)
            open_line = ""
        return found


Step = ShownFile | Commands


def read_guide(path: Path) -> list[Step]:
    """The steps of one page. Plain fences and unnamed files show something; they ask the reader for nothing."""
    page = path.read_text("utf-8")
    blocks = [
        (page.count("\n", 0, fence.start()) + 1, fence["info"].strip(), fence["body"])
        for fence in _FENCE.finditer(page)
    ]
    return list(_steps(blocks))


def _steps(blocks: list[tuple[int, str, str]]) -> Iterator[Step]:
    for index, (line, info, body) in enumerate(blocks):
        language, title = info.split(" ")[0], _TITLE.search(info)
        if language in ("sh", "bash"):
            _, told, output = blocks[index + 1] if index + 1 < len(blocks) else (0, "", "")
            error = _ERROR.search(output) if told == "text" else None
            yield Commands(line, body, error[1] if error else "", title is not None and title[1] == OWN_TERMINAL)
        elif title is not None:
            yield ShownFile(line, title[1], body)


def is_view(command: str) -> bool:
    """Does it show something until Ctrl-C is pressed?"""
    comment = _COMMENT.search(command)
    return comment is not None and "Ctrl-C" in comment[0]


def _is_open(text: str) -> bool:
    """Does the command go on in the next line?"""
    if text.endswith("\\"):
        return True
    words = re.sub(r"'[^']*'|\"[^\"]*\"", "", _COMMENT.sub("", text))
    if words.count("'") % 2 or words.count('"') % 2:
        return True
    opened = len(re.findall(r"(?:^|[\s;|(])(?:for|while|until|if|case)\s", words)) + len(
        re.findall(r"\{\s*$", words, re.MULTILINE)
    )
    closed = len(re.findall(r"(?:^|[\s;])(?:done|fi|esac)\b", words)) + len(re.findall(r"^\}", words, re.MULTILINE))
    return opened > closed
