"""How is something watched? `--watch [SECONDS]`: printed again and again until Ctrl-C, over what was printed before."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import click

from harch.cli.failure import INTERRUPTED_EXIT_CODE

WATCH_S = 2.0
WATCH_S_MIN, WATCH_S_MAX = 0.2, 3600.0

watch_option = click.option(
    "--watch",
    "watch_s",
    type=click.FloatRange(WATCH_S_MIN, WATCH_S_MAX),
    metavar="[SECONDS]",
    help=f"Refresh until Ctrl-C, every {WATCH_S:g} s or as given.",
)


class WatchCommand(click.Command):
    """A command with `watch_option`: the number after `--watch` may be missing, whatever follows."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spelled_out(args))


def spelled_out(args: list[str]) -> list[str]:
    """With the number that a lone `--watch` stands for."""
    own = args.index("--") if "--" in args else len(args)
    found: list[str] = []
    for at, word in enumerate(args):
        if word == "--watch" and at < own and not _is_number(args[at + 1 : at + 2]):
            found.append(f"--watch={WATCH_S:g}")
        else:
            found.append(word)
    return found


def _is_number(words: list[str]) -> bool:
    try:
        return bool(words) and float(words[0]) == float(words[0])
    except ValueError:
        return False


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
