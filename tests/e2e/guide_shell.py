"""Does what a guide says work? One shell per guide, in an empty folder, beside a real federation."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from guide_page import Commands, ShownFile, Step, is_view

BLOCK_TIMEOUT_S = 110.0
VIEW_S = 4.0  # how long a view is looked at before Ctrl-C
_VIEW = Path(__file__).with_name("guide_view.py")
_DONE = re.compile(r"<guide-done (\d+)>\n$")

# Every command that fails is named, not only the last of a block; as a condition (`if`, `until`, `||`) it may fail.
_PREAMBLE = """
set -E
trap 'echo "<failed $?> $BASH_COMMAND" >&2' ERR
"""


class GuideFailed(AssertionError):
    """A command of a guide did not do what its reader expects."""


class GuideShell:
    """A bash that goes through one guide; variables and functions stay from block to block, as for its reader."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        programs = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        self._environment = {**environment, "PATH": programs, "COLUMNS": "100"}
        self._shell = subprocess.Popen(
            ["bash", "--norc"],
            cwd=folder,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._beside: list[subprocess.Popen[bytes]] = []
        self.commands = 0
        self._type(_PREAMBLE, "preamble")

    def follow(self, step: Step) -> str:
        """Does one step; the output of its commands."""
        if isinstance(step, ShownFile):
            path = self._folder / step.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step.text, "utf-8")
            return ""
        self.commands += len(step.commands)
        if step.goes_on:
            self._start_beside(step)
            return ""
        return self._run(step)

    def close(self) -> None:
        for process in reversed(self._beside):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            process.wait(30)
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        try:
            self._shell.wait(10)
        except subprocess.TimeoutExpired:
            self._shell.kill()
            self._shell.wait()

    def _run(self, step: Commands) -> str:
        output = ""
        for number, command in enumerate(step.commands, start=1):
            said = self._type(_interrupted(command) if is_view(command) else command, command)
            output += said
            failed = re.findall(r"<failed (\d+)>", said)
            expected = step.fails_with if number == len(step.commands) else ""
            if expected and f"error[{expected}]" not in said:
                raise GuideFailed(f"line {step.line}: expected {expected} of `{command}`, got:\n{said}")
            if failed and not expected:
                raise GuideFailed(f"line {step.line}: `{command}` failed:\n{said}")
        return output

    def _type(self, text: str, what: str) -> str:
        """What the shell and its programs print until the text is done."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f'{text}\necho "<guide-done $?>"\n')
        self._shell.stdin.flush()
        said = ""
        until = time.monotonic() + BLOCK_TIMEOUT_S
        while not _DONE.search(said):
            ready, _, _ = select.select([self._shell.stdout], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise GuideFailed(f"`{what}` is not done after {BLOCK_TIMEOUT_S:g} s; it printed:\n{said}")
            piece = os.read(self._shell.stdout.fileno(), 65536).decode("utf-8", "replace")
            if not piece:
                raise GuideFailed(f"the shell ended in `{what}`; it printed:\n{said}")
            said += piece
        return _DONE.sub("", said)

    def _start_beside(self, step: Commands) -> None:
        """In the reader's other terminal; it is up once it has said something."""
        process = subprocess.Popen(
            ["bash", "-c", f"exec {step.text.strip()}"],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._beside.append(process)
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], BLOCK_TIMEOUT_S)[0] or not process.stdout.readline():
            raise GuideFailed(f"line {step.line}: `{step.text.strip()}` said nothing and ended")


def _interrupted(command: str) -> str:
    """As its reader would see it: on a terminal, ended by Ctrl-C. A view that shows nothing has failed."""
    typed = shlex.quote(re.sub(r"\s#\s.*$", "", command))
    return f"{shlex.quote(sys.executable)} {shlex.quote(str(_VIEW))} {VIEW_S:g} {typed}"
