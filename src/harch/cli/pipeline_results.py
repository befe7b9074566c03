"""`harch pipeline results`: what a pipeline without actions makes, row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from harch.cli.failure import INTERRUPTED_EXIT_CODE
from harch.cli.remote import connect, remote_options

if TYPE_CHECKING:
    from harch.sdk.pipeline_types import PipelineResult

POLL_S = 0.5


@click.command("results")
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl-C.")
@click.option("-n", "--last", type=click.IntRange(1, 200), default=20, show_default=True, help="Newest windows.")
@remote_options
def results(name: str, follow: bool, last: int, hub: str | None, as_json: bool) -> int:
    """Print what the last stage of a pipeline without `act` made: features, or outputs of models.

    One line per row. With --json, one document; with -f as well, one per row.
    """
    from harch.cli.output import clean, emit_json

    with connect(hub) as client:
        page = client.pipelines.results(name, after=-last)
        if as_json and not follow:
            emit_json(page)
            return 0
        try:
            while True:
                for one in page.items:
                    emit_json(one) if as_json else click.echo(clean(line_of(one)))
                if not follow:
                    return 0
                if not page.items:
                    _pause()
                page = client.pipelines.results(name, after=page.next_after)
        except KeyboardInterrupt:
            return INTERRUPTED_EXIT_CODE


def line_of(one: PipelineResult) -> str:
    words = [f"{one.window_end:%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z", one.device, *filter(None, (one.metric, one.model))]
    words += [f"{name}={'-' if value is None else format(value, 'g')}" for name, value in one.values.items()]
    return " ".join(words)


def _pause() -> None:
    import time

    time.sleep(POLL_S)
