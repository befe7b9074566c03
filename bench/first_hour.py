"""What does a newcomer's first hour cost? Steps to the first output, guides that work, lists that fit, idle costs.

The clone and its installation need a package index; `--parts lists idle` and the like measure the rest alone.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import io
import os
import pty
import re
import select
import signal
import statistics
import struct
import subprocess
import sys
import tarfile
import tempfile
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from harch.cli.main import root
from harch.testing.ports import free_port_base
from verdict import Verdict, conditions

ROOT = Path(__file__).parent.parent
BEFORE = "fb65cf2"
PARTS = ("clone", "guides", "lists", "help", "idle")
FIRST_STEPS = ("git clone URL harch", "cd harch", "make up", ".venv/bin/harch run --gpus 1 -- echo hello")
COLUMNS = 80
SETTLED_AFTER_S = 90.0  # the first telemetry is stored, and plans are made
FILTERED = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

GOALS = {
    "commands from a fresh clone to the first job's output": "<= 4",
    "seconds from `make up`, installed, to the first job's output": "<= 90",
    "commands of guides executed and passed, of all": ">= 100",
    "lists and tables at 80 columns with a folded id": "== 0",
    "words of the longest help before its options": "<= 100",
    f"memory (PSS) of five hubs over that of {BEFORE}": "<= 0.6",
    f"idle CPU of five hubs over that of {BEFORE}": "<= 0.6",
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    options.add_argument("--against", default=BEFORE, metavar="REV", help="the revision to compare memory and CPU with")
    options.add_argument("--rounds", type=int, default=3, help="of idle CPU, in turns")
    options.add_argument("--round-seconds", type=float, default=45.0)
    chosen = options.parse_args()
    print(f"conditions: {conditions()}, load average {os.getloadavg()[0]:.1f}")
    got: dict[str, float | None] = dict.fromkeys(GOALS)
    commands, seconds, guides, folded, words, memory, cpu = GOALS
    if "clone" in chosen.parts:
        got[commands], got[seconds] = len(FIRST_STEPS), first_output_s()
    if "guides" in chosen.parts:
        got[guides] = guides_passed_pct()
    if "lists" in chosen.parts:
        got[folded] = len(folded_lists())
    if "help" in chosen.parts:
        got[words] = longest_help()
    if "idle" in chosen.parts:
        got[memory], got[cpu] = idle_ratios(chosen)
    verdict = Verdict("first-hour")
    for name, goal in GOALS.items():
        value, unit = got[name], "%" if name == guides else ""
        verdict.not_measured(name, goal, unit) if value is None else verdict.goal(name, goal, value, unit)
    verdict.print()


# From a clone to the first output


def first_output_s() -> float | None:
    """None if the clone cannot be installed here."""
    with tempfile.TemporaryDirectory(prefix="harch-first-") as name:
        clone = Path(name) / "harch"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        environment = {**os.environ, **own_places(Path(name))}
        began_s = time.perf_counter()
        installed = subprocess.run(["make", "--silent", ".venv/.installed"], cwd=clone, env=environment, check=False)
        if installed.returncode:
            print("the clone could not be installed: is there a package index?")
            return None
        print(f"installation with compilation: {time.perf_counter() - began_s:.0f} s")
        began_s = time.perf_counter()
        with running(["make", "--silent", "up"], clone, environment):
            words = [str(clone / ".venv/bin/harch"), "run", "--gpus", "1", "--", "echo", "hello"]
            done = subprocess.run(words, cwd=clone, env=environment, capture_output=True, text=True, check=True)
            elapsed_s = time.perf_counter() - began_s
        assert "hello" in done.stdout
    print(f"`make up` to the first job's output: {elapsed_s:.1f} s; steps: {'; '.join(FIRST_STEPS)}")
    return elapsed_s


# Guides


def guides_passed_pct() -> float:
    """Of all commands of all guides, by the test that types them."""
    sys.path.insert(0, str(ROOT / "tests" / "e2e"))
    from guide_page import GUIDES, Commands, GuidePorts, read_guide

    steps = [step for guide in GUIDES for step in read_guide(ROOT / guide, GuidePorts()) if isinstance(step, Commands)]
    total = sum(len(step.commands) for step in steps)
    words = [sys.executable, "-m", "pytest", "-q", "-rA", "-s", "--timeout=0", "tests/e2e/test_guides.py"]
    output = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    passed = set(re.findall(r"^PASSED \S+\[(\S+\.md)\]", output, re.MULTILINE))
    typed = {page: int(count) for page, count in re.findall(r"^[.\s]*(\S+\.md): (\d+) commands$", output, re.MULTILINE)}
    executed = sum(typed.get(page, 0) for page in passed)
    for page in GUIDES:
        if page not in passed:
            print(f"{page} did not pass")
    print(f"{executed} of {total} commands of {len(GUIDES)} guides executed and passed")
    return 100.0 * executed / total


# Lists


def folded_lists() -> list[str]:
    """Those whose ids, or lines, are not whole on a terminal of 80 columns."""
    lists = [words for words, command in leaves(root) if is_list(command)]
    with (
        tempfile.TemporaryDirectory(prefix="harch-lists-") as name,
        federation(Path(name), ROOT / "src") as environment,
    ):
        for number in range(3):
            label = f"a-rather-long-name-of-a-training-run-{number}"
            harch(environment, "run", "-d", "--gpus", "2", "--name", label, "--", "sleep", "600")
        harch(environment, "data", "add", "patients-of-the-hospital", "--process-in", "MA", "--rest-in", "MA")
        found = [" ".join(words) for words in lists if is_folded(words, environment)]
    print(f"{len(lists)} lists at {COLUMNS} columns; folded: {', '.join(found) or 'none'}")
    return found


def is_folded(words: tuple[str, ...], environment: dict[str, str]) -> bool:
    shown = on_terminal(words, environment)
    names = harch(environment, *words, "-o", "name").split("\n")
    parts = [part for name in names for part in name.casefold().split("/")]
    too_long = [line for line in shown.splitlines() if len(line.rstrip()) > COLUMNS]
    return bool(too_long) or any(part not in shown.casefold() for part in parts)


def on_terminal(words: tuple[str, ...], environment: dict[str, str]) -> str:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    command = [sys.executable, "-m", "harch", *words]
    own = {name: value for name, value in environment.items() if name != "COLUMNS"} | {"NO_COLOR": "1"}
    process = subprocess.Popen(command, env=own, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # how Linux says that the other end is closed
        while select.select([ours], [], [], 60)[0] and (piece := os.read(ours, 65536)):
            shown += piece
    os.close(ours)
    process.wait(60)
    return FILTERED.sub("", shown.decode())


def leaves(group: click.Group, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from leaves(command, (*before, name))
        elif command is not None and not command.hidden:
            yield (*before, name), command


def is_list(command: click.Command) -> bool:
    """It has the options of a list, and needs no argument."""
    options = {word for option in command.params for word in option.opts}
    return {"--columns", "--no-headers"} <= options and not any(one.required for one in command.params)


# Help


def longest_help() -> int:
    counted = {words: len(help_text(command).split()) for words, command in leaves(root)}
    longest = max(counted, key=lambda words: counted[words])
    print(
        f"{len(counted)} verbs; longest help before its options: `harch {' '.join(longest)}`, {counted[longest]} words"
    )
    return counted[longest]


def help_text(command: click.Command) -> str:
    text = command.get_help(click.Context(command, info_name="harch"))
    return text.partition("\nOptions:")[0].partition("\n")[2]


# Idle


@dataclass(frozen=True)
class Usage:
    """Of all processes of one federation."""

    cpu_s: float
    pss_kb: int


def idle_ratios(chosen: argparse.Namespace) -> tuple[float | None, float | None]:
    """Memory and CPU of five hubs, agents and SENTINELs that do nothing, over those of the earlier revision."""
    with tempfile.TemporaryDirectory(prefix="harch-idle-") as name:
        earlier = source_of(chosen.against, Path(name))
        if earlier is None:
            print(f"the repository does not have {chosen.against} (a shallow clone?)")
            return None, None
        sources = {chosen.against: earlier, "this": ROOT / "src"}
        with contextlib.ExitStack() as stack:
            homes = {one: Path(name) / one for one in sources}
            for one, source in sources.items():
                homes[one].mkdir()
                stack.enter_context(federation(homes[one], source))
            time.sleep(SETTLED_AFTER_S)
            shares: dict[str, list[float]] = {one: [] for one in sources}
            for number in range(chosen.rounds):
                for one in (*sources,) if number % 2 == 0 else (*reversed(sources),):
                    before = usage(homes[one]).cpu_s
                    time.sleep(chosen.round_seconds)
                    shares[one].append((usage(homes[one]).cpu_s - before) / chosen.round_seconds)
            memory = {one: usage(homes[one]).pss_kb / 1024 for one in sources}
    for one in sources:
        percent = ", ".join(f"{100 * share:.1f}" for share in shares[one])
        print(f"{one}: {memory[one]:,.0f} MB (PSS); {percent} % of a core")
    ratios = [new / old for new, old in zip(shares["this"], shares[chosen.against], strict=True)]
    return memory["this"] / memory[chosen.against], statistics.median(ratios)


def usage(home: Path) -> Usage:
    mark = f"HARCH_HOME={home / '.harch'}".encode()
    cpu_ticks = pss_kb = 0
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and mark in (entry / "environ").read_bytes().split(b"\0"):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                cpu_ticks += int(fields[11]) + int(fields[12])
                lines = (entry / "smaps_rollup").read_text().splitlines()
                pss_kb += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return Usage(cpu_ticks / TICKS_PER_S, pss_kb)


def source_of(revision: str, folder: Path) -> Path | None:
    words = ["git", "-C", str(ROOT), "archive", "--format=tar", revision, "src"]
    done = subprocess.run(words, capture_output=True, check=False)
    if done.returncode:
        return None
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


# Federations


def own_places(folder: Path) -> dict[str, str]:
    """A state folder, settings and ports that nobody else uses."""
    base = str(free_port_base())
    return {"HARCH_HOME": str(folder / ".harch"), "XDG_CONFIG_HOME": str(folder / "config"), "HARCH_PORT_BASE": base}


@contextlib.contextmanager
def federation(folder: Path, source: Path) -> Iterator[dict[str, str]]:
    """`harch up` of this source; its environment."""
    environment = {**os.environ, **own_places(folder), "PYTHONPATH": str(source)}
    with running([sys.executable, "-m", "harch", "up"], folder, environment):
        yield environment


@contextlib.contextmanager
def running(words: list[str], folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """From its word that all hubs are ready until Ctrl-C."""
    log = folder / "up.log"
    with log.open("w") as output:
        process = subprocess.Popen(words, cwd=folder, env=environment, stdout=output, start_new_session=True)
    try:
        while "Ctrl-C" not in log.read_text():
            if process.poll() is not None:
                raise SystemExit(f"`{' '.join(words)}` ended: {log.read_text()}")
            time.sleep(0.05)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        process.wait(120)


def harch(environment: dict[str, str], *words: str) -> str:
    command = [sys.executable, "-m", "harch", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
