"""How is a tag written on the command line? The options that `harch data add`, `tag` and `declassify` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

# Written out: importing the types would cost `--help` its speed.
KINDS = ("dataset", "model", "checkpoint", "stream", "log_stream", "metric_stream", "pipeline_output")
CLASSES = ("public", "internal", "confidential", "restricted")

_OPTIONS = (
    click.option("--process-in", multiple=True, metavar="CC", help="Where work may read it. Repeatable."),
    click.option("--rest-in", multiple=True, metavar="CC", help="Where copies may be kept. Repeatable."),
    click.option("--transit-in", multiple=True, metavar="CC", help="Further countries that it may cross. Repeatable."),
    click.option("--may-cross-borders", is_flag=True, help="It may take links that cross more than one country."),
    click.option("--framework", multiple=True, metavar="ID", help="A law that a hub must be under. Repeatable."),
    click.option(
        "--classification", type=click.Choice(CLASSES), help="How much harm a leak does; restricted if absent."
    ),
    click.option("--plain-at-rest", is_flag=True, help="It need not be encrypted where it rests."),
    click.option("--plain-in-transit", is_flag=True, help="It need not be encrypted on its way."),
    click.option("--key-in", multiple=True, metavar="CC", help="Where keys may be held; as --rest-in if absent."),
)


def tag_options(command: F) -> F:
    """The options of a tag; their values go to `tag_from` as keyword arguments."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def tag_from(
    *,
    process_in: tuple[str, ...],
    rest_in: tuple[str, ...],
    transit_in: tuple[str, ...],
    may_cross_borders: bool,
    framework: tuple[str, ...],
    classification: str | None,
    plain_at_rest: bool,
    plain_in_transit: bool,
    key_in: tuple[str, ...],
) -> dict[str, object]:
    """What was given, and nothing else: what is left out is read in the strictest way. Empty: no tag was meant."""
    given: dict[str, object] = {
        "process_in": list(process_in),
        "rest_in": list(rest_in),
        "transit_in": list(transit_in),
        "frameworks": list(framework),
        "key_in": list(key_in),
        "classification": classification,
        "may_cross_borders": may_cross_borders,
        "encrypt_at_rest": False if plain_at_rest else None,
        "encrypt_in_transit": False if plain_in_transit else None,
    }
    # `false` is worth saying only where it differs from the strict reading, which says false of crossing borders.
    said = {name: value for name, value in given.items() if value not in (None, [])}
    return said if said != {"may_cross_borders": False} else {}
