"""`harch doctor`, `explain`, `schema` and `completion`: what this machine and the hubs lack, an error code in full,
the JSON schema of workload files, the completion script of a shell.
"""

from __future__ import annotations

from dataclasses import asdict

import click

from harch.base.errors import REGISTRY, HarchError
from harch.cli.listing import Listing, list_options
from harch.cli.remote import json_option
from harch.cli.views.table import TableColumn

# `harch doctor`: check this machine and the hubs, with the exact fixes.


@click.command("doctor")
@json_option
def doctor_command(as_json: bool) -> int:
    """Check this machine and the hubs, with the exact fixes.

    Python, sandbox, limits, state folder, key, disk, ports, every hub and its clock. Exits with 1 if anything is
    broken; warnings are about parts that work, but less well than they could.
    """
    from harch.base.clock import SystemClock
    from harch.base.config import home_from_env, ports_from_env
    from harch.cli.checks import CheckFinding, CheckMark, exit_code_of, hub_findings, machine_findings
    from harch.cli.output import clean, emit_json, styled

    home, ports = home_from_env(), ports_from_env()
    findings: list[CheckFinding] = []
    for group in (machine_findings(home, ports), hub_findings(home, SystemClock())):
        for finding in group:
            findings.append(finding)
            if not as_json:
                pad = " " * (len(CheckMark.WARNING) - len(finding.mark))
                click.echo(f"{styled(finding.mark)}{pad}  {clean(finding.check)}: {clean(finding.detail)}")
                if finding.fix and finding.mark is not CheckMark.OK:
                    click.echo(f"         fix: {clean(finding.fix)}")
    code = exit_code_of(findings)
    if as_json:
        emit_json({"items": findings, "total": len(findings), "broken": bool(code)})
    return code


# `harch explain`: tell more about an error code.


@click.command()
@click.argument("code", metavar="CODE", required=False)
@list_options
def explain_command(code: str | None, listing: Listing) -> None:
    """Explain an error code.

    Without CODE, lists all of them.
    """
    from harch.cli.output import emit_json

    if code is None:
        listing.show(
            list(REGISTRY.values()),
            (TableColumn("CODE"), TableColumn("TITLE"), TableColumn("HTTP", 2), TableColumn("EXIT", 1)),
            lambda kind: (kind.code, kind.title, kind.status, kind.exit_code),
            name=lambda kind: kind.code,
            document=lambda kinds: {"items": [asdict(kind) for kind in kinds], "total": len(kinds)},
        )
        return
    kind = REGISTRY.get(code.upper())
    if kind is None:
        raise HarchError("E0201", f"`{code}` is not an error code", hint="`harch explain` lists all of them")
    if listing.output == "json":
        emit_json(asdict(kind))
    else:
        click.echo(f"{click.style(kind.code, bold=True)}: {kind.title}\n\n{kind.explanation}\n")
        click.echo(f"HTTP status {kind.status}, exit code {kind.exit_code}")


# `harch schema`: print the JSON schema of workload files, for editors.


@click.command()
@json_option
def schema_command(as_json: bool) -> None:
    """Print the JSON schema of workload files, for editors.

    Save it, and start workload files with `# yaml-language-server: $schema=FILE`. It is JSON with or without --json.
    """
    from harch.workloads.check import workload_schema, workload_schema_text

    if as_json:
        from harch.cli.output import emit_json

        emit_json(workload_schema())
    else:
        click.echo(workload_schema_text(), nl=False)


# `harch completion`: print the completion script of a shell.


_SHELLS = {
    "bash": 'eval "$(harch completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(harch completion zsh)" in ~/.zshrc',
    "fish": "harch completion fish | source in ~/.config/fish/config.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(list(_SHELLS)))
@json_option
def completion_command(shell: str, as_json: bool) -> None:
    """Print a shell completion script.

    To enable it permanently, add `eval "$(harch completion bash)"` to ~/.bashrc; zsh: the same in ~/.zshrc; fish:
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
