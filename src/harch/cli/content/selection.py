"""Does code travel with a command, and from which folder? By `--code`, by a project file, or because it is named."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harch.base.errors import HarchError
from harch.cli.content.project import FILE_NAME

PYPROJECT = "pyproject.toml"
# First commands of everybody, wherever he stands: they use no file of a project, and need not wait for it.
READ_NO_FILES = frozenset(
    {"date", "echo", "false", "free", "hostname", "id", "lscpu", "nproc", "nvidia-smi", "printenv", "printf"}
    | {"pwd", "rocm-smi", "sleep", "true", "uname", "uptime", "whoami"}
)
# Not used unless somebody says so: what is installed changes what runs.
SHELLS = frozenset({"sh", "bash", "dash", "zsh"})
ENVIRONMENT_FILES = (("uv.lock", "--lock"), ("requirements.txt", "--requirements"))
_WORDS_MAX = 1000
_WORD_CHARS_MAX = 4096


@dataclass(frozen=True, slots=True)
class CodeChoice:
    """`folder` None: no code travels. `remark`: what somebody may wonder about then."""

    folder: Path | None
    remark: str = ""


def choose_code(
    words: Sequence[str], *, code: str | None, no_code: bool, named: Sequence[str] = (), home: Path | None = None
) -> CodeChoice:
    """`named`: files that options name. Raises E0201 for a folder that is none.

    A home folder and `/` travel only if they are asked for: they hold far more than the code of one project.
    """
    if no_code:
        if code is not None:
            raise HarchError("E0201", "--code and --no-code exclude each other", hint="leave one of them out")
        return CodeChoice(None)
    if code is not None:
        folder = Path(code)
        if not folder.is_dir():
            raise HarchError("E0201", f"--code {code} is not a folder", hint="name the folder that holds the code")
        return CodeChoice(folder)
    here = Path()
    is_project = os.path.isfile(here / FILE_NAME) or (
        os.path.isfile(here / PYPROJECT) and os.path.basename(words[0] if words else "") not in READ_NO_FILES
    )
    if not (is_project or names_file(words, here) or named):
        return CodeChoice(None)
    if here.resolve() in {Path("/"), (home or Path.home()).resolve()}:
        return CodeChoice(None, "no code is sent from your home folder; `--code .` sends it all the same")
    return CodeChoice(here)


def names_file(words: Sequence[str], folder: Path) -> bool:
    """Whether a command has a file of the folder among its words, or a Python module of it after `-m`."""
    before = ""
    if len(words) > 2 and os.path.basename(words[0]) in SHELLS and words[1].endswith("c"):
        words = ("", *re.split(r"[\s;&|()<>\"']+", words[2][:_WORD_CHARS_MAX]))  # a script: what files does it name?
    for number, word in enumerate(words[:_WORDS_MAX]):
        is_program = number == 0
        if before == "-m" and _is_module(word, folder):
            return True
        value = word.partition("=")[2] if word.startswith("-") else word
        # A program without `/` is looked for in PATH, even if a file of that name stands here.
        if _is_inside(value) and not (is_program and "/" not in value) and os.path.isfile(folder / value):
            return True
        before = word
    return False


def unused_environment(folder: Path) -> str:
    """What to say about a file of packages that stands beside the code and is not used; empty if there is none."""
    for name, option in ENVIRONMENT_FILES:
        if os.path.isfile(folder / name):
            table = option.removeprefix("--")
            return (
                f"{name} is not installed: add `{option} {name}`, "
                f'or `{table} = "{name}"` to [environment] of {FILE_NAME}'
            )
    return ""


def in_code(path: str, folder: Path, option: str) -> str:
    """A path as it was typed, as the code has it: relative to its folder, with `/`. Raises E0201 for one outside."""
    # By name and not by target: a link inside of the folder travels as a link.
    relative = os.path.relpath(os.path.abspath(path), os.path.abspath(folder))
    if relative == ".." or relative.startswith("../"):
        hint = "move it into the folder, or send another folder with --code"
        raise HarchError("E0201", f"{option} {path} is outside of the code in {folder.absolute()}", hint=hint)
    if not os.path.exists(path):
        raise HarchError("E0201", f"{option} {path} does not exist", hint="check the path")
    return relative


def _is_inside(word: str) -> bool:
    if not word or len(word) > _WORD_CHARS_MAX or "\0" in word or word.startswith(("/", "~")):
        return False
    return not os.path.normpath(word).startswith("..")


def _is_module(word: str, folder: Path) -> bool:
    if not word or not all(part.isidentifier() for part in word.split(".")):
        return False
    place = folder.joinpath(*word.split("."))
    return os.path.isdir(place) or os.path.isfile(f"{place}.py")
