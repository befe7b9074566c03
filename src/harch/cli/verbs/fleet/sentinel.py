"""`harch sentinel`: the telemetry store as a small process, queries to it, and rule files checked before they are
used.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import click

from harch.base.errors import EXIT_ERROR, EXIT_OK, HarchError
from harch.cli.options import log_file_option
from harch.cli.remote import json_option
from harch.cli.telemetry.alerts import alerts
from harch.cli.telemetry.dashboard import dash
from harch.cli.telemetry.logs import logs
from harch.cli.telemetry.query import query
from harch.cli.telemetry.traces import traces
from harch.cli.verb_group import VerbGroup

# `harch sentinel rules`: check and test rule files before they are used.


@click.group(cls=VerbGroup)
def rules() -> None:
    """Check and test rule files before they are used."""


@rules.command("check")
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=click.Path(dir_okay=False))
@json_option
def check(paths: tuple[str, ...], as_json: bool) -> None:
    """Validate rule files: expressions, templates, labels and durations, with the place of every error."""
    from harch.cli.output import emit_json
    from harch.sentinel.promql.syntax.parser import parse
    from harch.sentinel.rules.loader import read_rule_files

    missing = [path for path in paths if not Path(path).exists()]
    if missing:
        raise HarchError("E0640", f"{missing[0]} cannot be read: it does not exist", hint="check the path")
    found = read_rule_files(paths, check_expression=parse)
    counts = {file.name: sum(len(group.rules) for group in file.groups) for file in found}
    if as_json:
        remarks = {file.name: file.remarks for file in found}
        emit_json(
            {"items": [{"file": name, "rules": count, "remarks": remarks[name]} for name, count in counts.items()]}
        )
        return
    for file in found:
        click.echo(f"{file.name}: {counts[file.name]} rules, all valid")
        for remark in file.remarks:
            click.echo(f"  {remark}")


@rules.command("test")
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=click.Path(dir_okay=False))
@json_option
def test(paths: tuple[str, ...], as_json: bool) -> int:
    """Run rule unit tests, in the format of `promtool test rules`.

    Each FILE names its rule files, input series, and the alerts and values that it expects. Exits with 1 if a test
    fails, and prints what was expected and what came.
    """
    from harch.cli.output import clean, emit_json
    from harch.sentinel.rules.rule_test_files import run_rule_test_file

    found = [run_rule_test_file(Path(path)) for path in paths]
    passed = not any(one.failures for one in found)
    if as_json:
        emit_json({"passed": passed, "items": found})
        return EXIT_OK if passed else EXIT_ERROR
    for one in found:
        verdict = "FAILED" if one.failures else "ok"
        tests = f"{one.tests} test{'' if one.tests == 1 else 's'}"
        rules = f"{one.rules} rule{'' if one.rules == 1 else 's'}"
        click.echo(clean(f"{verdict}: {one.file}: {tests} of {rules}"))
        for failure in one.failures:
            click.echo(clean(f"  {failure}"))
    return EXIT_OK if passed else EXIT_ERROR


# How does a server stay small? Packages that others load in case somebody needs them are not there for it.
#
# Numba loads SciPy for linear algebra, and Arrow loads pandas with the first list that it converts: 45 MB that
# SENTINEL,
# which uses neither, would hold at every hub.


class _Absent(MetaPathFinder):
    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self._names:
            raise ModuleNotFoundError(f"{fullname} is kept out of this process", name=fullname)
        return None


def keep_out(*names: str) -> None:
    """From now on these packages cannot be imported in this process; what is loaded stays."""
    sys.meta_path.insert(0, _Absent(frozenset(names)))


def keep_out_unneeded() -> None:
    """What packages of SENTINEL load if they find it, and SENTINEL has no use for."""
    keep_out("pandas", "scipy")


# `harch sentinel`: the telemetry store as a process, and questions to it.


@click.group(cls=VerbGroup)
def command() -> None:
    """Query telemetry: metrics, logs, traces, dashboards, alerts; run a store.

    No telemetry leaves the perimeter. Start with docs/sentinel/index.md.
    """


command.add_command(query)
command.add_command(alerts)
command.add_command(dash)
command.add_command(logs)
command.add_command(rules)
command.add_command(traces)


@command.command("serve")
@click.option(
    "--data", "data", metavar="DIR", required=True, type=click.Path(file_okay=False), help="Folder for all telemetry."
)
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:9090", show_default=True, help="Address and port.")
@click.option(
    "--config",
    "configs",
    metavar="FILE",
    multiple=True,
    type=click.Path(dir_okay=False),
    help="Targets and rules: prometheus.yml. Repeatable.",
)
@click.option(
    "--alerts", "alert_config", metavar="FILE", type=click.Path(dir_okay=False), help="Settings as in alertmanager.yml."
)
@click.option(
    "--settings", metavar="FILE", type=click.Path(dir_okay=False), help="Limits, time window and retention, TOML."
)
@click.option("--token-file", metavar="FILE", type=click.Path(dir_okay=False), help="Token that callers must send.")
@click.option("--hub-url", metavar="URL", help="Accept callers with a key of this hub.")
@log_file_option
def serve(
    data: str,
    listen: str,
    configs: tuple[str, ...],
    alert_config: str | None,
    settings: str | None,
    token_file: str | None,
    hub_url: str | None,
    log_file: str | None,
) -> None:
    """Run a telemetry store until stopped.

    It accepts remote-write and OTLP, scrapes targets, answers PromQL, evaluates rules and sends alerts. Prometheus
    agents, OpenTelemetry SDKs and Grafana talk to it unchanged. `X-Scope-OrgID` selects the tenant.
    """

    keep_out_unneeded()
    import uvloop

    from harch.api.sentinel_process import write_own_record
    from harch.base.state_files import close_to_others, keep_files_private
    from harch.cli.process import calm_collector, end_with_parent, set_up_logging, stay_without_parent
    from harch.sentinel.http.server import ServeOptions, serve_sentinel

    keep_files_private()
    host, port = _address(listen)
    if hub_url:
        end_with_parent()
    set_up_logging(log_file)
    options = ServeOptions(
        data=Path(data),
        host=host,
        port=port,
        configs=[Path(config) for config in configs],
        alerts=Path(alert_config) if alert_config else None,
        settings=Path(settings) if settings else None,
        token_file=Path(token_file) if token_file else None,
        hub_url=hub_url or "",
    )
    close_to_others(options.data)
    calm_collector()

    def listening(at: int) -> None:
        click.echo(f"SENTINEL listens on http://{host}:{at}")

    uvloop.run(
        serve_sentinel(options, write_record=write_own_record, listening=listening, recorded=stay_without_parent)
    )


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise HarchError("E0201", f"invalid --listen: `{text}`", hint="use an address and a port, e.g. 127.0.0.1:9090")
    return host.strip("[]"), int(port)
