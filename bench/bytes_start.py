"""How far is it from `git clone` of a training repository to its first line of output? Commands, and seconds.

The repository has a `train.py` and a `requirements.txt`, and knows nothing of HarchOS. Its package comes from an index
on loopback, the node's own. Cold: a federation that has never seen code, package or environment. Warm: the same command
again after a line of `train.py` was changed.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from bytes_goals import COLD, COMMANDS, WARM
from bytes_hub import NO_BYTECODE
from first_hour import ROOT, federation
from verdict import Verdict

CLONE = ("git clone --quiet {url} project", "cd project")
RUN = "harch run --gpus 1 --requirements requirements.txt -- python train.py"
TRAIN = """\
import tabulate_lite

print(tabulate_lite.row("epoch", 1, "loss", 0.5), flush=True)
"""
PACKAGE = "tabulate_lite"
PACKAGE_CODE = "def row(*cells):\n    return ' | '.join(map(str, cells))\n"
LINE = "epoch | 1 | loss | 0.5"
ROUNDS_WARM = 3


def measure(verdict: Verdict, chosen: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="harch-start-") as name:
        folder = Path(name)
        repository = make_repository(folder / "repository")
        with index(folder / "index") as url, environment_with(folder, url), federation(folder, ROOT / "src") as given:
            environment = {**given, "PATH": f"{shim(folder)}:{os.environ['PATH']}"}
            steps = [*(step.format(url=repository) for step in CLONE), RUN]
            cold_s, output = typed(steps, folder, environment)
            expect(output)
            project = folder / "project"
            warm_s = []
            for number in range(ROUNDS_WARM):
                (project / "train.py").write_text(f"{TRAIN}# edit {number}\n")
                elapsed_s, output = typed([RUN], project, environment)
                expect(output)
                warm_s.append(elapsed_s)
    commands = [step for step in steps if step.startswith("harch ")]
    print(f"steps: {'; '.join((*CLONE, RUN))}")
    print(f"to the first line: cold {cold_s:.1f} s; warm {', '.join(f'{one:.1f}' for one in warm_s)} s", flush=True)
    COMMANDS.met(verdict, len(commands))
    COLD.met(verdict, cold_s)
    WARM.met(verdict, sorted(warm_s)[len(warm_s) // 2])


def typed(steps: list[str], folder: Path, environment: dict[str, str]) -> tuple[float, str]:
    """Seconds until the first line of output of what a shell is given, and that line."""
    words = ["bash", "-ec", "; ".join(steps)]
    began_s = time.perf_counter()
    with subprocess.Popen(words, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as shell:
        if shell.stdout is None:
            raise RuntimeError("the shell was started without its output")
        line = shell.stdout.readline().rstrip("\n")
        elapsed_s = time.perf_counter() - began_s
        shell.stdout.read()
    return elapsed_s, line


def expect(line: str) -> None:
    if line != LINE:
        raise RuntimeError(f"the first line is `{line}`, not `{LINE}`")


def shim(folder: Path) -> Path:
    """A `harch` on the PATH, of this interpreter."""
    place = folder / "bin"
    place.mkdir(exist_ok=True)
    script = place / "harch"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m harch "$@"\n')
    script.chmod(0o755)
    return place


@contextmanager
def environment_with(folder: Path, url: str) -> Iterator[None]:
    """What the shell of `harch up` has: the node's index; an empty cache; and modules that are compiled once."""
    own = {"UV_DEFAULT_INDEX": url, "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPYCACHEPREFIX": str(folder / "pyc")}
    before = dict(os.environ)
    os.environ.pop(NO_BYTECODE, None)
    os.environ.update(own)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def make_repository(folder: Path) -> Path:
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "requirements.txt").write_text(f"{PACKAGE}==1.0\n")
    author = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.org"]
    for words in (["init", "--quiet"], ["add", "."], [*author, "commit", "--quiet", "-m", "Train a model"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


@contextmanager
def index(folder: Path) -> Iterator[str]:
    """A package index of one small package, as a static site."""
    page = folder / "simple" / PACKAGE.replace("_", "-")
    page.mkdir(parents=True)
    wheel = make_wheel(page)
    (page / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>\n')

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/simple/"
    finally:
        server.shutdown()
        server.server_close()


def make_wheel(folder: Path) -> Path:
    about = f"{PACKAGE}-1.0.dist-info"
    files = {
        f"{PACKAGE}.py": PACKAGE_CODE,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    hashed = {name: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()) for name, text in files.items()}
    lines = [f"{name},sha256={hashed[name].rstrip(b'=').decode()},{len(text)}\n" for name, text in files.items()]
    path = folder / f"{PACKAGE}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
        wheel.writestr(f"{about}/RECORD", "".join([*lines, f"{about}/RECORD,,\n"]))
    return path
