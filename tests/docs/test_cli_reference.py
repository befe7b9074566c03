"""Does docs/reference/cli.md know every verb and every option, and no others?"""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from documents import DOCS

from harch.base.errors import EXIT_CHANGES
from harch.cli.main import root

PAGE = (DOCS / "reference" / "cli.md").read_text("utf-8")
SECTIONS = {
    match[1]: match[2] for match in re.finditer(r"^### (harch [^\n]*)\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
}
LISTS = re.search(r"^### Lists\n(.*?)(?=^#)", PAGE, re.MULTILINE | re.DOTALL)


def commands(group: click.Group, prefix: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix} {name}")
        elif not command.hidden:
            yield f"{prefix} {name}", command


COMMANDS = dict(commands(root, "harch"))


def options(command: click.Command) -> set[str]:
    shown = (param for param in command.params if isinstance(param, click.Option) and not param.hidden)
    return {word for param in shown for word in param.opts}


def words_of(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", "\n".join(re.findall(r"`[^`]*`", text))))


LIST_OPTIONS = {"-o", "--output", "--columns", "--sort", "--no-headers", "--json"}


def test_the_options_of_lists_are_documented_once() -> None:
    assert LISTS is not None
    assert words_of(LISTS[1]) == LIST_OPTIONS


def test_every_verb_has_a_section_and_every_section_is_a_verb() -> None:
    assert set(SECTIONS) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_documented_with_its_verb_and_no_other_is(name: str) -> None:
    documented = words_of(SECTIONS[name])
    if "[list options](#lists)" in SECTIONS[name]:
        documented |= LIST_OPTIONS
    assert options(COMMANDS[name]) - documented == set()
    assert documented - options(COMMANDS[name]) == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_verb_and_every_option_explains_itself(name: str) -> None:
    command = COMMANDS[name]
    assert (command.help or "").strip()
    for param in command.params:
        if isinstance(param, click.Option) and not param.hidden:
            assert param.help or isinstance(param.type, click.Choice), param.opts


# Long-running processes of the machine itself: their output is their log.
WITHOUT_JSON = {"harch sentinel serve", "harch agent serve"}


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - WITHOUT_JSON))
def test_every_verb_has_json(name: str) -> None:
    assert "--json" in options(COMMANDS[name])


def test_every_exit_code_is_listed() -> None:
    listed = [int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)]
    assert listed == [*range(EXIT_CHANGES + 1), 130]
