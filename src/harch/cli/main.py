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

from harch.base.errors import EXIT_ERROR, EXIT_USAGE, HarchError
from harch.cli.failure import INTERRUPTED_EXIT_CODE, report, report_crash, report_usage, wants_json

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Verb(NamedTuple):
    """`module` under `harch.cli` holds the command as the attribute `command`."""

    section: str
    name: str
    module: str
    summary: str


VERBS = (
    Verb("Run work", "run", "run", "Run a command on the fleet and follow its output."),
    Verb("Run work", "plan", "plan", "Show what would happen to the workloads of a file."),
    Verb("Run work", "apply", "apply", "Submit the workloads of a file, after showing the plan."),
    Verb("Run work", "ps", "ps", "List workloads."),
    Verb("Run work", "why", "why", "Explain why a workload runs where it runs, or waits."),
    Verb("Run work", "logs", "logs", "Print the output of a workload."),
    Verb("Run work", "stop", "stop", "Stop workloads."),
    Verb("Run work", "pause", "pause", "Pause workloads; they keep their GPUs."),
    Verb("Run work", "resume", "resume", "Resume paused workloads."),
    Verb("Run work", "secret", "secret", "Store secrets that workloads can name."),
    Verb("See the fleet", "top", "top", "Watch the federation on one screen: hubs, work, pipelines, alerts, events."),
    Verb("See the fleet", "hubs", "hubs", "List the hubs, as the one you ask sees them."),
    Verb("See the fleet", "gpus", "gpus", "List GPUs, or what is free of each model."),
    Verb("See the fleet", "node", "node", "See nodes, GPUs, links and cooling; take them out of use and back."),
    Verb("See the fleet", "defrag", "defrag", "Show which moves make room for a waiting workload; make them."),
    Verb(
        "See the fleet",
        "sentinel",
        "sentinel",
        "Ask telemetry: queries, logs, dashboards, traces, alerts; run a store of it.",
    ),
    Verb("See the fleet", "events", "events", "Print what happened; -f goes on."),
    Verb("Prove it", "data", "data", "Tag data, and see what it was made from and where it may go."),
    Verb("Prove it", "policy", "policy", "Write, test, compare and activate policies in Rego."),
    Verb("Prove it", "audit", "audit", "Prove what was decided, and where data was."),
    Verb("Know your power", "carbon", "carbon", "See what power the hubs run on, what it will be, and what work used."),
    Verb("Know your power", "energy", "energy", "See which power a hub plans to buy, what it bid, what a MWh costs."),
    Verb("Run pipelines", "pipeline", "pipeline", "Turn streams into actions: apply, watch, scale, update, drain."),
    Verb("Ask what if", "simulate", "simulate", "Replay work on a fleet: same code as the real scheduler."),
    Verb("Run HarchOS", "up", "up", "Start every hub of a fleet, with an agent each; Ctrl-C stops all of it."),
    Verb("Run HarchOS", "hub", "hub", "Run a hub; found a federation, invite hubs, join one; take a hub out of use."),
    Verb("Run HarchOS", "agent", "agent", "Run the agent of one or more nodes."),
    Verb("Help", "doctor", "doctor", "Check this machine and the hubs, with the exact fixes."),
    Verb("Help", "explain", "explain", "Tell more about an error code."),
    Verb("Help", "schema", "schema", "Print the JSON schema of workload files, for editors."),
    Verb("Help", "completion", "completion", "Print the completion script of a shell."),
)
_BY_NAME = {verb.name: verb for verb in VERBS}


class LazyGroup(click.Group):
    """Knows its verbs by name and imports the one that is used. Ends every run with the right exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_BY_NAME)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = _BY_NAME.get(cmd_name)
        if verb is None:
            return None
        command = import_module(f"harch.cli.{verb.module}").command
        if not isinstance(command, click.Command):
            raise TypeError(f"harch.cli.{verb.module}.command is not a click command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _BY_NAME and not args[0].startswith("-"):
            raise HarchError(
                "E0201", f"`harch {args[0]}` is not a verb{_did_you_mean(args[0])}", hint="`harch --help` lists them"
            )
        return super().resolve_command(ctx, args)

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
        code = EXIT_ERROR
        try:
            result = super().main(words, "harch", complete_var, standalone_mode=False, **extra)
            code = result if isinstance(result, int) else 0
            sys.stdout.flush()
        except HarchError as error:
            code = report(error, as_json)
        except click.exceptions.Exit as stop:
            code = stop.exit_code
        except click.ClickException as error:
            report_usage(error, as_json)
            code = EXIT_USAGE
        except (click.Abort, KeyboardInterrupt):
            code = INTERRUPTED_EXIT_CODE
        except BrokenPipeError:
            # The reader, e.g. `head`, has seen enough. Python would complain again when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except Exception as error:  # noqa: BLE001 (the edge of the process)
            code = report_crash(error, as_json)
        sys.exit(code)


def _did_you_mean(word: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, _BY_NAME, n=1)
    return f"; did you mean `{near[0]}`?" if near else ""


@click.group("harch", cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="harch", message="harch %(version)s")
def root() -> None:
    """HarchOS runs AI work on GPUs that stand in several countries.

    Start with `harch up`, then `harch run -- echo hello`. Every verb has --help, and --json where it prints values.
    """


def main() -> NoReturn:
    root.main()
