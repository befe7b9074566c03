"""How does a group of verbs, such as `harch hub`, list them, and what if somebody types another one?"""

from __future__ import annotations

import click

from harch.base.errors import HarchError

_SUMMARY_CHARS_MAX = 1000  # a sentence, never cut: help wraps it


class VerbGroup(click.Group):
    """Lists whole sentences, and suggests what is written nearly the same."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, command.get_short_help_str(_SUMMARY_CHARS_MAX))
            for name, command in commands
            if command is not None and not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0] if args else "-"
        if not word.startswith("-") and self.get_command(ctx, word) is None:
            raise HarchError(
                "E0201",
                f"`{ctx.command_path} {word}` is not a verb{did_you_mean(word, self.list_commands(ctx))}",
                hint=f"`{ctx.command_path} --help` lists them",
            )
        return super().resolve_command(ctx, args)


def did_you_mean(word: str, verbs: list[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, verbs, n=1)
    return f"; did you mean `{near[0]}`?" if near else ""
