"""What does a guide have its reader do? Its blocks in order: files to write, commands to type, what the commands say.

A page says it by its fences, so that what is tested is what is read:

    ```sh                                       commands, each of which exits with 0
    ```sh title="In a terminal of its own"      a command that goes on until the guide is over, or until this:
    ```sh title="After Ctrl-C in those terminals"
    ```sh title="As root, on each machine"      not for a test
    ```sh title="With skopeo and umoci"         only where these are; also `In a terminal of its own, with skopeo`
    ```toml title="acme/policy.toml"            a file, written where it stands; or `title="Append to acme/policy.toml"`
    ```text                                     output; `error[E0901]` in it: the last command above fails with that

A command whose comment names Ctrl-C is a view: it is interrupted once it has shown something. One whose comment says
`exits with 5` does that. The commands above an output print the words of its first line. `harch up`, `make up` and
`make test` run already, and are skipped. 77NN are the ports of `harch up`; 78NN, 8099 and 9090 are other free ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

# In this order beside one federation: those about telemetry at the end, when there is some.
GUIDES = (
    "docs/guides/run-your-code.md",
    "docs/guides/environments.md",
    "docs/guides/files.md",
    "docs/guides/sovereignty.md",
    "docs/guides/placement.md",
    "docs/guides/policies.md",
    "docs/guides/audit.md",
    "docs/guides/proof.md",
    "docs/guides/simulate.md",
    "docs/guides/federation.md",
    "docs/guides/energy.md",
    "docs/guides/buy-power.md",
    "docs/guides/carbon.md",
    "docs/guides/energy-setup.md",
    "docs/guides/two-sites.md",
    "docs/guides/troubleshooting.md",
    "docs/guides/grafana-prometheus.md",
    "docs/guides/coming-from-slurm.md",
    "docs/guides/coming-from-nomad.md",
    "docs/guides/coming-from-skypilot.md",
    "docs/guides/coming-from-prometheus.md",
    "docs/pipelines/quickstart.md",
    "docs/sentinel/promql.md",
    "docs/sentinel/collect.md",
    "docs/sentinel/archive.md",
    "docs/sentinel/store.md",
    "docs/sentinel/index.md",
    "docs/sentinel/alerts.md",
    "docs/sentinel/dashboards.md",
    "docs/sentinel/federated-setup.md",
    "docs/sentinel/traces.md",
    "docs/sentinel/tracing.md",
    "docs/sentinel/top.md",
    "docs/sentinel/logql.md",
    "docs/index.md",
    "README.md",
)

OWN_TERMINAL = "In a terminal of its own"
ENDS_OTHERS = "After Ctrl-C in those terminals"
AS_ROOT = "As root, on each machine"
APPEND_TO = "Append to "
RUNS_ALREADY = ("harch up", "make up", "make test")
_FENCE = re.compile(r"^(?P<fence>```+)(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=fence)[ ]*$", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r'title="([^"]+)"')
_WITH = re.compile(r"(?:^W|, w)ith (?P<programs>.+)$")
_ERROR = re.compile(r"^error\[(E\d{4})\]", re.MULTILINE)
_COMMENT = re.compile(r"(?:^|\s)#\s.*$", re.MULTILINE)
_WORD = re.compile(r"(?<!\S)[(`\"]?([A-Za-z]+)[)`\",.:;]*(?!\S)")
_EXITS_WITH = re.compile(r"exits with (\d+)")
_PORT = re.compile(r"\b(?:(?P<reader>77)|78|80(?=99)|90(?=90))(?P<offset>\d\d)\b")


@dataclass(frozen=True)
class ShownFile:
    """A file whose content the page shows, to be written under that name."""

    line: int
    path: str
    text: str
    added: bool = False  # to what is in the file already


@dataclass(frozen=True)
class Commands:
    """A block of commands, as it is pasted into a shell."""

    line: int
    text: str
    fails_with: str = ""  # error code that the last command ends with
    shows: tuple[str, ...] = ()  # words of the first line of output that the page shows
    goes_on: bool = False  # in a terminal of its own, until the guide is over
    ends_others: bool = False  # what goes on is interrupted before
    needs: tuple[str, ...] = ()  # names of tests/capabilities.py; left out where one of them is absent

    @property
    def commands(self) -> list[str]:
        """One entry per command that is typed: continued lines and bodies of functions and loops belong together."""
        found: list[str] = []
        open_line = ""
        for line in self.text.splitlines():
            open_line = f"{open_line}\n{line}" if open_line else line
            if not line.strip() or _is_open(open_line):
                continue
            if _COMMENT.sub("", open_line).strip():
                found.append(open_line)
            open_line = ""
        return found


Step = ShownFile | Commands


@dataclass(frozen=True)
class Fence:
    line: int
    info: str
    body: str
    section: int  # number of headings above

    @property
    def language(self) -> str:
        return self.info.split(" ")[0]

    @property
    def title(self) -> str:
        """Without the programs that it names."""
        return _WITH.sub("", self._whole_title) if self.language == "sh" else self._whole_title

    @property
    def needs(self) -> tuple[str, ...]:
        named = _WITH.search(self._whole_title)
        return tuple(re.split(r", | and ", named["programs"])) if named and self.language == "sh" else ()

    @property
    def _whole_title(self) -> str:
        title = _TITLE.search(self.info)
        return title[1] if title else ""


def fences(path: Path) -> list[Fence]:
    page = path.read_text("utf-8")
    found: list[Fence] = []
    section = end = 0
    for fence in _FENCE.finditer(page):
        section += page.count("\n#", end, fence.start())
        end = fence.end()
        line = page.count("\n", 0, fence.start()) + 1
        found.append(Fence(line, fence["info"].strip(), fence["body"], section))
    return found


@dataclass(frozen=True)
class GuidePorts:
    """Where the reader's federation listens, and what else a guide starts: two blocks of a hundred free ports."""

    federation: int = 7700
    others: int = 7800

    def put_into(self, text: str) -> str:
        return _PORT.sub(
            lambda port: str((self.federation if port["reader"] else self.others) + int(port["offset"])), text
        )


def read_guide(path: Path, ports: GuidePorts) -> list[Step]:
    """The steps of one page. Plain fences and unnamed files show something; they ask the reader for nothing."""
    return list(_steps([replace(fence, body=ports.put_into(fence.body)) for fence in fences(path)]))


def _steps(blocks: list[Fence]) -> Iterator[Step]:
    for index, block in enumerate(blocks):
        if block.language == "sh":
            goes_on = block.title == OWN_TERMINAL
            if block.title == AS_ROOT or (goes_on and block.body.strip() in RUNS_ALREADY):
                continue
            below = [after for after in blocks[index + 1 : index + 2] if after.section == block.section]
            output = next((after.body for after in below if after.info == "text"), "")
            error = _ERROR.search(output)
            yield Commands(
                block.line,
                block.body,
                fails_with=error[1] if error else "",
                shows=() if error or goes_on else tuple(_WORD.findall(output.strip().partition("\n")[0])),
                goes_on=goes_on,
                ends_others=block.title == ENDS_OTHERS,
                needs=block.needs,
            )
        elif block.title:
            path = block.title.removeprefix(APPEND_TO)
            yield ShownFile(block.line, path, block.body, added=path != block.title)


def is_view(command: str) -> bool:
    """Does it show something until Ctrl-C is pressed?"""
    comment = _COMMENT.search(command)
    return comment is not None and "Ctrl-C" in comment[0]


def exit_code(command: str) -> int:
    """What the command ends with, if it does what the page says."""
    code = _EXITS_WITH.search("".join(_COMMENT.findall(command)))
    return int(code[1]) if code else 0


def _is_open(text: str) -> bool:
    """Does the command go on in the next line?"""
    if text.endswith("\\"):
        return True
    words = re.sub(r"'[^']*'|\"[^\"]*\"", "", _COMMENT.sub("", text))
    if words.count("'") % 2 or words.count('"') % 2:
        return True
    opened = len(re.findall(r"(?:^|[\s;|(])(?:for|while|until|if|case)\s", words)) + len(
        re.findall(r"\{\s*$", words, re.MULTILINE)
    )
    closed = len(re.findall(r"(?:^|[\s;])(?:done|fi|esac)\b", words)) + len(re.findall(r"^\}", words, re.MULTILINE))
    return opened > closed
