"""How is something watched? `--watch [SECONDS]`: printed again and again until Ctrl-C, over what was printed before."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from harch.cli.failure import INTERRUPTED_EXIT_CODE
from harch.cli.inputs import duration_s

F = TypeVar("F", bound=Callable[..., Any])

WATCH_S = 2.0
WATCH_S_MIN, WATCH_S_MAX = 0.2, 3600.0
OLD_INTERVAL = "--interval"
_LONE = "default"


class _Interval(click.ParamType[float]):
    """Seconds between two looks; `lone_s` if `--watch` stands alone."""

    name = "seconds"

    def __init__(self, lone_s: float) -> None:
        self._lone_s = lone_s

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if value == _LONE:
            return self._lone_s
        seconds = float(value) if isinstance(value, int | float) else duration_s(str(value))
        if seconds is None or not WATCH_S_MIN <= seconds <= WATCH_S_MAX:
            self.fail(f"`{value}` is not between {WATCH_S_MIN:g} and {WATCH_S_MAX:g} seconds", param, ctx)
        return seconds


def watch_interval_option(lone_s: float, help: str) -> Callable[[F], F]:
    return click.option("--watch", "watch_s", type=_Interval(lone_s), metavar="[SECONDS]", help=help)


watch_option = watch_interval_option(WATCH_S, f"Refresh until Ctrl-C, every {WATCH_S:g} s or as given.")


class WatchCommand(click.Command):
    """A command with `watch_option`: the number after `--watch` may be missing, whatever follows."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spelled_out(args))


def spelled_out(args: list[str]) -> list[str]:
    """A lone `--watch` gets a value, or goes where an option of the release before says the interval."""
    own = args.index("--") if "--" in args else len(args)
    timed = any(word.partition("=")[0] == OLD_INTERVAL for word in args[:own])
    found: list[str] = []
    for at, word in enumerate(args):
        if word == "--watch" and at < own and not _is_number(args[at + 1 : at + 2]):
            found += [] if timed else [f"--watch={_LONE}"]
        else:
            found.append(word)
    return found


def _is_number(words: list[str]) -> bool:
    return bool(words) and duration_s(words[0]) is not None


def watched(look: Callable[[], None], watch_s: float | None, *, clear: bool) -> int:
    """Looks once, or until Ctrl-C. `clear`: for people, who want to see the newest alone."""
    try:
        while True:
            if watch_s is not None and clear and sys.stdout.isatty():
                click.clear()
            look()
            if watch_s is None:
                return 0
            time.sleep(watch_s)
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT_CODE
