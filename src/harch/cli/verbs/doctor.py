"""`harch doctor`: check this machine and the hubs, with the exact fixes."""

from __future__ import annotations

import click

from harch.cli.remote import json_option


@click.command()
@json_option
def command(as_json: bool) -> int:
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
