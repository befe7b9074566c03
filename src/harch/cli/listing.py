"""How is a list printed? The same way by every verb that has one: `-o`, `--columns`, `--sort` and `--no-headers`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import click

from harch.base.errors import HarchError
from harch.cli.output import clean, emit_json, note
from harch.cli.views.table import TableColumn, show_rows

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

FORMATS = ("table", "wide", "json", "yaml", "name")
_NUMBER = re.compile(r"(\d+)")


class Sortable(NamedTuple):
    """A cell whose words do not sort as its value does, such as an age."""

    text: str
    value: float | None

    def __str__(self) -> str:
        return self.text


def list_options(command: F) -> F:
    """The options of a list, handed to the command as `listing`. `--json` stays what it is for every other verb."""

    @functools.wraps(command)
    def with_listing(
        *args: Any, output: str, columns: str | None, sort: str | None, no_headers: bool, as_json: bool, **kwargs: Any
    ) -> Any:
        listing = Listing("json" if as_json else output, _words(columns), sort or "", not no_headers)
        return command(*args, listing=listing, **kwargs)

    for option in reversed(
        (
            click.option(
                "-o",
                "--output",
                type=click.Choice(FORMATS),
                default="table",
                help="Format; `wide` has every column, `name` only what identifies each row.",
            ),
            click.option("--columns", metavar="A,B", help="Only these columns, in this order."),
            click.option("--sort", metavar="COLUMN", help="Sort by this column; `-COLUMN` from the highest down."),
            click.option("--no-headers", is_flag=True, help="Omit the line of titles."),
            click.option("--json", "as_json", is_flag=True, help="Print only JSON on stdout; the same as `-o json`."),
        )
    ):
        with_listing = option(with_listing)
    return with_listing  # type: ignore[return-value] # it takes other arguments, and click hands it those


@dataclass(frozen=True, slots=True)
class Listing:
    """How one call wants its list."""

    output: str = "table"
    columns: tuple[str, ...] = ()
    sort: str = ""
    titles: bool = True

    @property
    def is_table(self) -> bool:
        """People read it, so remarks may stand beside it."""
        return self.output in {"table", "wide"}

    def show(
        self,
        items: Sequence[T],
        columns: Sequence[TableColumn],
        row: Callable[[T], Sequence[object]],
        *,
        name: Callable[[T], str],
        document: Callable[[list[T]], object] | None = None,
        none: str = "",
    ) -> None:
        """`row` gives the cells of one item, `name` what other verbs take for it.

        `document`: what programs get, if that is more than the items and their number. `none`: said to people where
        there is nothing to list.
        """
        chosen = self._chosen(columns)
        listed = self._sorted(list(items), columns, row)
        if self.output == "json":
            emit_json(_document(listed, document))
        elif self.output == "yaml":
            _emit_yaml(_document(listed, document))
        elif self.output == "name":
            for item in listed:
                click.echo(clean(name(item)))
        elif not listed and none:
            note(none)
        else:
            self._show_table(columns, chosen, [row(item) for item in listed])

    def _show_table(self, columns: Sequence[TableColumn], chosen: Sequence[int], rows: list[Sequence[object]]) -> None:
        cells = [[one[at] for at in chosen] for one in rows]
        whole = self.output == "wide" or bool(self.columns)
        missing = show_rows([columns[at] for at in chosen], cells, titles=self.titles, whole=whole)
        if missing:
            note(f"no room for {', '.join(missing)}; `-o wide` shows every column")

    def _chosen(self, columns: Sequence[TableColumn]) -> list[int]:
        if not self.columns:
            return [at for at, column in enumerate(columns) if self.output == "wide" or not column.wide_only]
        return [_place(columns, word, "--columns") for word in self.columns]

    def _sorted(self, items: list[T], columns: Sequence[TableColumn], row: Callable[[T], Sequence[object]]) -> list[T]:
        if not self.sort:
            return items
        at = _place(columns, self.sort.removeprefix("-"), "--sort")
        known = [(sort_key(row(item)[at]), item) for item in items]
        down = self.sort.startswith("-")
        filled = sorted((one for one in known if one[0] is not None), key=lambda one: one[0] or (), reverse=down)
        return [item for _, item in filled] + [item for key, item in known if key is None]


def sort_key(cell: object) -> tuple[object, ...] | None:
    """Numbers by value, words by the numbers in them (`n2` before `n10`); None for what is empty: it goes last."""
    if isinstance(cell, Sortable):
        return None if cell.value is None else (0, cell.value)
    if isinstance(cell, bool | int | float):
        return (0, cell)
    text = str(cell).casefold()
    if text in {"", "-"}:
        return None
    return (1, *((0, int(part), "") if part.isdigit() else (1, 0, part) for part in _NUMBER.split(text) if part))


def _place(columns: Sequence[TableColumn], word: str, option: str) -> int:
    names = [_name(column) for column in columns]
    if _plain(word) not in names:
        hint = f"choose from {', '.join(names)}"
        raise HarchError("E0201", f"no column `{word}` for {option}", hint=hint, field=option.removeprefix("--"))
    return names.index(_plain(word))


def _name(column: TableColumn) -> str:
    """`GPUS FREE` is written `gpus-free`."""
    return _plain(column.title)


def _plain(word: str) -> str:
    return re.sub(r"[\s_/-]+", "-", word.strip().casefold())


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word for word in (text or "").split(",") if word.strip())


def _document(items: list[T], document: Callable[[list[T]], object] | None) -> object:
    return {"items": items, "total": len(items)} if document is None else document(items)


def _emit_yaml(document: object) -> None:
    import msgspec
    import yaml

    plain = msgspec.json.decode(msgspec.json.encode(document))
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, explicit_start=True)
    click.echo(text, nl=False)
