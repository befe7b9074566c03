"""Does the page about SENSE say what the code does?"""

from __future__ import annotations

import contextlib
import io
import re

from documents import DOCS

from harch.pipelines.sense.quarantine import EXPLANATIONS
from harch.pipelines.sense.settings import SenseSettings
from harch.pipelines.wire.columns import SHIPPED

PAGE = (DOCS / "pipelines" / "sense.md").read_text("utf-8")


def test_the_example_prints_what_the_page_shows() -> None:
    match = re.search(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert match
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(match[1], "sense.md", "exec"), {})
    assert printed.getvalue() == match[2]


def test_every_reason_of_the_quarantine_is_in_the_table_and_no_other() -> None:
    table = PAGE.split("<!-- reasons -->")[1].split("\n## ")[0]
    assert dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE)) == EXPLANATIONS


def test_defaults_and_shipped_schemas_are_those_of_the_code() -> None:
    settings = SenseSettings()
    for name, default in re.findall(r"^\| `(?:windows\.)?(\w+_s)` \| ([\d.]+) \|", PAGE, re.MULTILINE):
        owner = settings if name in ("source_idle_s", "start_wait_s") else settings.windows
        assert float(default) == getattr(owner, name), name
    shown = dict(re.findall(r"^\| `(\w+)` \| (\d+) \| `ts`", PAGE, re.MULTILINE))
    assert shown == {schema.name: str(schema.event_bytes) for schema in SHIPPED.values()}
