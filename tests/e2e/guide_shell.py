"""Does what a guide says work? One shell per guide, in an empty folder, beside a real federation."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from guide_page import Commands, GuidePorts, ShownFile, Step, exit_code, is_view

from capabilities import CAPABILITIES, Capability

ROOT = Path(__file__).resolve().parents[2]
BLOCK_TIMEOUT_S = 110.0
VIEW_S = 4.0  # how long a view is looked at before Ctrl-C
_VIEW = Path(__file__).with_name("guide_view.py")
_DONE = re.compile(r"<guide-done (\d+)>\n$")

# Every command that fails is named, not only the last of a block; as a condition (`if`, `until`, `||`) it may fail.
_PREAMBLE = """
set -E
trap 'echo "<failed $?> $BASH_COMMAND" >&2' ERR
"""


def readers_folder(folder: Path, home: Path, ports: GuidePorts) -> None:
    """A clone that is set up, in which `harch up` runs. The examples are a copy: they write beside themselves."""
    examples = shutil.copytree(
        ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("trained", "__pyc*")
    )
    for file in (*examples.rglob("*.py"), *examples.rglob("*.yaml")):
        file.write_text(ports.put_into(file.read_text("utf-8")), "utf-8")
    for part in ("README.md", "Makefile", "bench", "docs", "src", "tests"):
        (folder / part).symlink_to(ROOT / part)
    (folder / ".venv").symlink_to(Path(sys.executable).parents[1])
    (folder / ".harch").symlink_to(home)


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
            with path.open("a" if step.added else "w", encoding="utf-8") as file:
                file.write(step.text)
            return ""
        if any(self._lacks(CAPABILITIES[name]) for name in step.needs):
            return ""
        self.commands += len(step.commands)
        if step.ends_others:
            self._end_beside()
        if step.goes_on:
            self._start_beside(step)
            return ""
        return self._run(step)

    def close(self) -> None:
        self._end_beside()
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        try:
            self._shell.wait(10)
        except subprocess.TimeoutExpired:
            self._shell.kill()
            self._shell.wait()

    def _lacks(self, capability: Capability) -> bool:
        path = self._environment["PATH"]
        return any(shutil.which(one, path=path) is None for one in capability.programs) or bool(capability.why_not())

    def _run(self, step: Commands) -> str:
        output = ""
        for number, command in enumerate(step.commands, start=1):
            said = self._type(_interrupted(command) if is_view(command) else command, command)
            output += said
            failed = [int(code) for code in re.findall(r"<failed (\d+)>", said)]
            expected = step.fails_with if number == len(step.commands) else ""
            if expected and f"error[{expected}]" not in said:
                raise GuideFailed(f"line {step.line}: expected {expected} of `{command}`, got:\n{said}")
            if not expected and failed != [code for code in [exit_code(command)] if code]:
                raise GuideFailed(f"line {step.line}: `{command}` ended with {failed or [0]}:\n{said}")
        if unseen := [word for word in step.shows if word not in output]:
            raise GuideFailed(f"line {step.line}: the page shows {', '.join(unseen)}; got:\n{output}")
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

    def _end_beside(self) -> None:
        while self._beside:
            process = self._beside.pop()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            process.wait(30)

    def _start_beside(self, step: Commands) -> None:
        """In the reader's other terminal; it is up once it has said something."""
        terminal = Path(tempfile.mkstemp(prefix="terminal-", dir=self._folder.parent)[1])
        with terminal.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", step.text],
                cwd=self._folder,
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._beside.append(process)
        until = time.monotonic() + BLOCK_TIMEOUT_S
        while not terminal.stat().st_size and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        if not terminal.stat().st_size or process.poll() is not None:
            said = terminal.read_text("utf-8", "replace")
            raise GuideFailed(f"line {step.line}: `{step.text.strip()}` is not up; it printed:\n{said}")


def _interrupted(command: str) -> str:
    """As its reader would see it: on a terminal, ended by Ctrl-C. A view that shows nothing has failed."""
    typed = shlex.quote(re.sub(r"\s#\s.*$", "", command))
    return f"{shlex.quote(sys.executable)} {shlex.quote(str(_VIEW))} {VIEW_S:g} {typed}"
