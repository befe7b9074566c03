"""What is a flag called? Options that several verbs have, each spelled once, and what they were called before."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from harch.base.errors import HarchError
from harch.cli.inputs import MOMENT_AGO
from harch.cli.output import note

F = TypeVar("F", bound=Callable[..., Any])

_FILE = "--file"


def file_option(help: str, **more: Any) -> Callable[[F], F]:
    """`-f FILE`: what a verb reads."""
    return click.option("-f", _FILE, "file", metavar="FILE", help=help, **more)


def file_input(help: str, **more: Any) -> Callable[[F], F]:
    """The file that a verb is about, as `file`: by `-f FILE`, or as the argument alone."""

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def with_file(*args: Any, file: Any, file_argument: Any, **kwargs: Any) -> Any:
            given = [one for one in (file, file_argument) if one is not None]
            if len(given) != 1:
                problem = "no file given" if not given else "two files given"
                raise HarchError("E0201", problem, hint="name one: -f FILE")
            return command(*args, file=given[0], **kwargs)

        argument = click.argument("file_argument", metavar="[FILE]", required=False, **more)
        return argument(file_option(help, **more)(with_file))  # type: ignore[return-value] # click hands it both

    return decorate


def since_option(help: str = "Start at this time, or this long ago, e.g. 10m.", **more: Any) -> Callable[[F], F]:
    return click.option("--since", "since", type=MOMENT_AGO, metavar="TIME", help=help, **more)


def until_option(help: str) -> Callable[[F], F]:
    return click.option("--until", "until", type=MOMENT_AGO, metavar="TIME", help=help)


def tail_option(
    maximum: int, default: int | None = None, help: str = "Only the last N lines.", *, least: int = 0
) -> Callable[[F], F]:
    """How much of the past is printed, by verbs whose output goes on."""
    return click.option(
        "--tail",
        type=click.IntRange(least, maximum),
        default=default,
        show_default=default is not None,
        metavar="N",
        help=help,
    )


def limit_option(maximum: int, default: int, help: str = "Maximum rows.") -> Callable[[F], F]:
    return click.option(
        "--limit", type=click.IntRange(1, maximum), default=default, show_default=True, metavar="N", help=help
    )


def reason_option(help: str = "Reason, shown with the change.", *, required: bool = False) -> Callable[[F], F]:
    """Why something is changed; it is kept with the change."""
    return click.option("--reason", required=required, default=None if required else "", metavar="TEXT", help=help)


fleet_option = click.option(
    "--fleet",
    metavar="FLEET",
    default="five-hubs",
    show_default=True,
    help="A shipped fleet, or the path of a fleet file.",
)
log_file_option = click.option(
    "--log-file", metavar="FILE", type=click.Path(dir_okay=False), help="Write a rotating log here instead of stderr."
)
yes_option = click.option("-y", "--yes", is_flag=True, help="Skip the confirmation prompt.")


def confirmed(question: str, *, yes: bool, as_json: bool) -> bool:
    """`--yes`, or the answer of whoever sits there. Raises E0201 where nobody can be asked."""
    check_can_prompt(yes=yes, as_json=as_json)
    return yes or click.confirm(question, err=True)


def check_can_prompt(*, yes: bool, as_json: bool, stdin_taken: bool = False) -> None:
    """For verbs that do something else before they ask. Raises E0201."""
    if not yes and (as_json or stdin_taken or not is_interactive()):
        raise HarchError("E0201", "cannot prompt for confirmation: pass --yes", hint="`-y` goes ahead without asking")


def is_interactive() -> bool:
    return sys.stdin.isatty()


def renamed(old: str, new: str, *, read: Callable[[Any], Any] | None = None, **more: Any) -> Callable[[F], F]:
    """The name that an option had in the release before: it works as the new one does, unseen, and says so on stderr.

    `read` makes a value of the new option out of the old one's.
    """

    def take(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value in (None, False, ()):
            return
        option = next(one for one in ctx.command.params if new in one.opts)
        note(f"{old} is deprecated: use {new}")
        # Read as a default, so that the new name wins where both are given, and required ones are there.
        ctx.default_map = {**(ctx.default_map or {}), str(option.name): read(value) if read else value}

    before = f"old{old.replace('-', '_')}"
    return click.option(old, before, hidden=True, is_eager=True, expose_value=False, callback=take, **more)
