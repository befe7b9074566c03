"""How does an error leave the program? For people on stderr, for programs as one JSON object on stdout."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from itertools import pairwise

import click

from harch.base.errors import EXIT_ERROR, HarchError

INTERRUPTED_EXIT_CODE = 130  # what shells answer after Ctrl-C


def wants_json(words: Sequence[str]) -> bool:
    """True if `--json` or `-o json` is among HarchOS's own words, before `--`. Works before the words are parsed."""
    own = words[: words.index("--")] if "--" in words else words
    return any(
        word in {"--json", "-ojson", "--output=json"} or (word in {"-o", "--output"} and following == "json")
        for word, following in pairwise((*own, ""))
    )


def report(error: HarchError, as_json: bool) -> int:
    """Shows the error; answers the exit code that belongs to it."""
    if as_json:
        details = {"field": error.field} if error.field else {}
        _write_json({"code": error.code, "message": error.message, "hint": error.hint, **details, **_problems(error)})
    else:
        head = click.style(f"error[{error.code}]", fg="red", bold=True)
        click.echo(f"{head}: {error.message}", err=True)
        if error.hint:
            click.echo(f"\n{click.style('hint', bold=True)}: {error.hint}", err=True)
    return error.kind.exit_code


def report_usage(error: click.ClickException, as_json: bool) -> None:
    """Words that click did not understand, in the same form as every other error."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    command = context.command_path if context else "harch"
    message = error.format_message().rstrip(".")
    report(HarchError("E0201", message, hint=f"`{command} --help` shows what it takes"), as_json)


def report_crash(error: Exception, as_json: bool) -> int:
    """A fault of HarchOS itself. The stack is shown on request only: it helps nobody who cannot read it."""
    if os.environ.get("HARCH_DEBUG"):
        traceback.print_exception(error, file=sys.stderr)
    summary = f"{type(error).__name__}: {error}"
    report(HarchError("E1001", summary, hint="set HARCH_DEBUG=1 to see the stack, and please report it"), as_json)
    return EXIT_ERROR


def _problems(error: HarchError) -> dict[str, object]:
    return {"problems": error.meta["problems"]} if "problems" in error.meta else {}


def _write_json(body: dict[str, object]) -> None:
    import json

    click.echo(json.dumps({"error": body}, default=str, ensure_ascii=False))
