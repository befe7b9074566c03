"""Do the commands that a page tells people to type exist?"""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from documents import DOCS, ROOT, shell_lines

# Pages whose commands work today. Planned verbs may be named in prose elsewhere, never in a block to copy.
_PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", DOCS / "index.md", DOCS / "internals" / "testing.md")
_GROUPS = frozenset(
    {"hub", "agent", "data", "policy", "audit", "node", "secret", "sentinel", "simulate"}
)  # nouns that take a second word, e.g. `harch hub serve`


def _commands(program: str) -> Iterator[tuple[str, ...]]:
    for page in _PAGES:
        for line in shell_lines(page):
            for command in re.split(r"\s(?:\|\||&&|\||;)\s", line):
                words = shlex.split(command)
                while words and re.match(r"^[A-Z_]+=", words[0]):
                    words = words[1:]
                if words and words[0].rsplit("/", 1)[-1] == program:
                    yield tuple(words[1:])


def _verb(words: tuple[str, ...]) -> tuple[str, ...]:
    length = 2 if words and words[0] in _GROUPS else 1
    return words[:length]


@functools.cache
def _help(verb: tuple[str, ...]) -> str:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("harch")), *verb, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"harch {' '.join(verb)} --help: {done.stderr or done.stdout}"
    return done.stdout


@pytest.mark.parametrize("words", sorted(set(_commands("harch"))), ids=" ".join)
def test_every_harch_command_exists_with_its_options(words: tuple[str, ...]) -> None:
    verb = _verb(words)
    own = words[len(verb) : words.index("--") if "--" in words else len(words)]
    options = {word.split("=")[0] for word in own if word.startswith("-")}
    text = _help(verb)
    assert {option for option in options if not re.search(rf"(?<!\S){re.escape(option)}\b", text)} == set()


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z%-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = {word for words in _commands("make") for word in words if "=" not in word and not word.startswith("-")}
    benches = {word for word in named if word.startswith("bench-")}
    assert named - benches <= targets
    for bench in benches:
        assert (ROOT / "bench" / f"{bench.removeprefix('bench-').replace('-', '_')}.py").exists()


def test_the_two_commands_of_a_newcomer_are_in_the_readme() -> None:
    assert {"make up", "make test"} <= set(shell_lines(ROOT / "README.md"))
