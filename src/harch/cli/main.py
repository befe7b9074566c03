"""Which verbs are there, and where does an error end up? The entry point of `harch`.

Nothing heavy is imported here: `harch --help` prints the table below, and the module of a verb is loaded when used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from harch.base.errors import EXIT_ERROR, EXIT_OK, EXIT_USAGE, HarchError
from harch.cli.failure import INTERRUPTED_EXIT_CODE, report, report_crash, report_usage, wants_json
from harch.cli.verb_group import VerbGroup

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class CliVerb(NamedTuple):
    """`module` under `harch.cli.verbs` holds the command as the attribute `command`, or as the one after a colon."""

    section: str
    name: str
    module: str
    summary: str


VERBS = (
    CliVerb("Run work", "run", "workloads.run", "Run a command on the fleet and follow its output."),
    CliVerb("Run work", "plan", "workloads.apply:plan_command", "Show the plan for the workloads of a file."),
    CliVerb(
        "Run work", "apply", "workloads.apply:apply_command", "Submit the workloads of a file, after showing the plan."
    ),
    CliVerb("Run work", "ps", "workloads.ps", "List workloads."),
    CliVerb("Run work", "show", "workloads.show:show_command", "Show everything about a workload."),
    CliVerb("Run work", "why", "workloads.apply:why_command", "Explain why a workload runs where it runs, or waits."),
    CliVerb("Run work", "logs", "workloads.logs:logs_command", "Print the output of a workload."),
    CliVerb("Run work", "cp", "workloads.cp", "Copy files from the working folder of a workload, or into it."),
    CliVerb("Run work", "artifacts", "workloads.artifacts", "List and fetch what work has left to be kept."),
    CliVerb("Run work", "wait", "workloads.show:wait_command", "Wait until workloads run, or have ended."),
    CliVerb("Run work", "stop", "workloads.control:stop_command", "Stop workloads."),
    CliVerb("Run work", "pause", "workloads.control:pause_command", "Pause workloads; they keep their GPUs."),
    CliVerb("Run work", "resume", "workloads.control:resume_command", "Resume paused workloads."),
    CliVerb("Run work", "restart", "workloads.control:restart_command", "Start workloads again, from their beginning."),
    CliVerb("Run work", "quota", "workloads.quota", "Show what tenants hold, and what they may hold."),
    CliVerb("Run work", "secret", "workloads.secret", "Manage secrets for workloads."),
    CliVerb(
        "See the fleet",
        "top",
        "fleet.top",
        "Watch the federation on one screen: hubs, work, pipelines, alerts, events.",
    ),
    CliVerb("See the fleet", "hubs", "fleet.inventory:hubs_command", "List hubs, as seen by the queried hub."),
    CliVerb("See the fleet", "gpus", "fleet.inventory:gpus_command", "List GPUs, or free GPUs by model."),
    CliVerb(
        "See the fleet", "node", "fleet.node", "Show nodes, GPUs, links and cooling; cordon, drain and uncordon them."
    ),
    CliVerb(
        "See the fleet",
        "defrag",
        "fleet.node:defrag_command",
        "Plan and apply moves that make room for a waiting workload.",
    ),
    CliVerb(
        "See the fleet",
        "sentinel",
        "fleet.sentinel",
        "Query telemetry: metrics, logs, traces, dashboards, alerts; run a store.",
    ),
    CliVerb("See the fleet", "events", "workloads.logs:events_command", "Print events; -f follows."),
    CliVerb("Data, policy and audit", "data", "sovereignty.data", "Tag data; show its lineage and where it may go."),
    CliVerb(
        "Data, policy and audit", "policy", "sovereignty.policy", "Write, test, compare and activate policies in Rego."
    ),
    CliVerb(
        "Data, policy and audit",
        "audit",
        "sovereignty.audit",
        "Verify and export the audit chain; report where data was.",
    ),
    CliVerb(
        "Carbon and energy",
        "carbon",
        "power.carbon",
        "Show the power that hubs run on, its forecast, and what work used.",
    ),
    CliVerb("Carbon and energy", "energy", "power.energy", "Show the energy plan, prices and bids of a hub."),
    CliVerb("Run pipelines", "pipeline", "pipeline", "Turn streams into actions: apply, watch, scale, update, drain."),
    CliVerb("Simulate", "simulate", "simulate", "Replay work on a fleet with the real scheduler."),
    CliVerb(
        "Run HarchOS", "up", "operate.up", "Start every hub of a fleet, with an agent each; Ctrl-C stops them all."
    ),
    CliVerb(
        "Run HarchOS", "hub", "operate.hub", "Run a hub; found or join a federation; cordon, drain or retire a hub."
    ),
    CliVerb("Run HarchOS", "agent", "operate.agent", "Run the agent of one or more nodes."),
    CliVerb("Run HarchOS", "content", "operate.content", "Show, collect and check the content store of a hub."),
    CliVerb(
        "Run HarchOS",
        "login",
        "operate.context:login_command",
        "Sign in to a federation, to use it from any folder.",
    ),
    CliVerb("Run HarchOS", "context", "operate.context", "List and choose the federations that this user knows."),
    CliVerb("Help", "tour", "help.tour", "Walk through what HarchOS does, on the running federation."),
    CliVerb(
        "Help", "doctor", "help.reference:doctor_command", "Check this machine and the hubs, with the exact fixes."
    ),
    CliVerb("Help", "explain", "help.reference:explain_command", "Explain an error code."),
    CliVerb("Help", "schema", "help.reference:schema_command", "Print the JSON schema of workload files, for editors."),
    CliVerb("Help", "completion", "help.reference:completion_command", "Print a shell completion script."),
)
_BY_NAME = {verb.name: verb for verb in VERBS}


class LazyGroup(VerbGroup):
    """Knows its verbs by name and imports the one that is used. Ends every run with the right exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_BY_NAME)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = _BY_NAME.get(cmd_name)
        if verb is None:
            return None
        module, _, attribute = verb.module.partition(":")
        command = getattr(import_module(f"harch.cli.verbs.{module}"), attribute or "command")
        if not isinstance(command, click.Command):
            raise TypeError(f"harch.cli.verbs.{verb.module} is not a click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, verbs in groupby(VERBS, key=lambda verb: verb.section):
            with formatter.section(section):
                formatter.write_dl([(verb.name, verb.summary) for verb in verbs])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(v.name, help=v.summary) for v in VERBS if v.name.startswith(incomplete)]

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        words = list(sys.argv[1:] if args is None else args)
        as_json = wants_json(words)
        code, stdout = EXIT_ERROR, sys.stdout
        try:
            result = super().main(words, "harch", complete_var, standalone_mode=False, **extra)
            code = result if isinstance(result, int) else 0
            sys.stdout.flush()
        except HarchError as error:
            code = report(error, as_json)
        except click.exceptions.Exit as stop:
            code = stop.exit_code
        except click.exceptions.NoArgsIsHelpError as lone:  # a group by itself: whoever types it wants to see it
            click.echo(lone.message)
            code = EXIT_OK
        except click.ClickException as error:
            report_usage(error, as_json)
            code = EXIT_USAGE
        except (click.Abort, KeyboardInterrupt):
            code = INTERRUPTED_EXIT_CODE
        except BrokenPipeError:
            code = _reader_gone()
        except SystemExit:
            if sys.stdout is stdout:
                raise
            code = _reader_gone()  # click has seen the pipe break, and has put a silent stream in its place
        except Exception as error:  # noqa: BLE001 (the edge of the process)
            code = report_crash(error, as_json)
        sys.exit(code)


def _reader_gone() -> int:
    """Whoever reads, e.g. `head`, has seen enough. Python would complain again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_OK


@click.group("harch", cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="harch", message="harch %(version)s")
def root() -> None:
    """HarchOS runs AI workloads on GPUs in several countries.

    Start with `harch up`, then `harch run -- echo hello`. Every verb has --help, and --json where it prints values.
    """


def main() -> NoReturn:
    root.main()
