"""`harch doctor`: check this machine and the hubs, with the exact fixes."""

from __future__ import annotations

import click

from harch.cli.remote import json_option


@click.command()
@json_option
def command(as_json: bool) -> int:
    """Check this machine and the hubs, with the exact fixes.

    Python, sandbox, limits, state folder, key, disk, ports, every hub and its clock. Ends with 1 if something is
    broken; warnings are about things that work, but less well than they could.
    """
    from harch.base.clock import SystemClock
    from harch.base.config import home_from_env, ports_from_env
    from harch.cli.findings import Finding, Mark, exit_code_of
    from harch.cli.hub_checks import hub_findings
    from harch.cli.machine_checks import machine_findings
    from harch.cli.output import clean, emit_json, styled

    home, ports = home_from_env(), ports_from_env()
    findings: list[Finding] = []
    for group in (machine_findings(home, ports), hub_findings(home, SystemClock())):
        for finding in group:
            findings.append(finding)
            if not as_json:
                pad = " " * (len(Mark.WARNING) - len(finding.mark))
                click.echo(f"{styled(finding.mark)}{pad}  {clean(finding.check)}: {clean(finding.detail)}")
                if finding.fix and finding.mark is not Mark.OK:
                    click.echo(f"         fix: {clean(finding.fix)}")
    code = exit_code_of(findings)
    if as_json:
        emit_json({"items": findings, "total": len(findings), "broken": bool(code)})
    return code
