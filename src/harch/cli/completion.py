"""`harch completion`: print the completion script of a shell."""

from __future__ import annotations

import click

from harch.cli.remote import json_option

_SHELLS = {
    "bash": 'eval "$(harch completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(harch completion zsh)" in ~/.zshrc',
    "fish": "harch completion fish | source in ~/.config/fish/config.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(list(_SHELLS)))
@json_option
def command(shell: str, as_json: bool) -> None:
    """Print the completion script of a shell.

    To switch it on for good, put `eval "$(harch completion bash)"` into ~/.bashrc; zsh: the same in ~/.zshrc; fish:
    `harch completion fish | source`.
    """
    from click.shell_completion import get_completion_class

    from harch.cli.main import root

    completer = get_completion_class(shell)
    if completer is None:
        raise click.BadParameter(f"`{shell}` has no completion")
    script = completer(root, {}, "harch", "_HARCH_COMPLETE").source()
    if as_json:
        from harch.cli.output import emit_json

        emit_json({"shell": shell, "script": script, "use": _SHELLS[shell]})
    else:
        click.echo(script)
