"""Does the page about content tell the truth about settings and limits?"""

from __future__ import annotations

import re
import tomllib

import msgspec
from documents import DOCS

from harch.cli.content.sending import CODE_BYTES_MAX
from harch.content import frames, model
from harch.execution.admission import CACHE_BYTES_DEFAULT, KEPT_WORK_BYTES_DEFAULT
from harch.execution.content import environments, kept_work
from harch.execution.images.limits import AUTH_SETTING, INSECURE_SETTING, ImageSettings
from harch.hub.content import service, transfers
from harch.hub.content.settings import ContentSettings, parse_settings

PAGE = (DOCS / "reference" / "content.md").read_text("utf-8")
EXAMPLE = re.findall(r'^```toml title="content.toml"\n(.*?)^```', PAGE, re.MULTILINE | re.DOTALL)[0]
GB, GIB = 10**9, 1024**3


def test_the_example_is_valid_and_has_every_key() -> None:
    settings = parse_settings(EXAMPLE.encode(), "content.toml")
    raw = tomllib.loads(EXAMPLE)
    for table in msgspec.structs.fields(ContentSettings):
        fields = msgspec.structs.fields(type(getattr(settings, table.name)))
        assert {field.name for field in fields} == set(raw[table.name]), table.name


def test_retention_in_the_example_is_what_applies_without_a_file() -> None:
    assert parse_settings(EXAMPLE.encode(), "content.toml").retention == ContentSettings().retention


def row(start: str) -> str:
    (found,) = (line for line in PAGE.splitlines() if line.startswith(f"| {start}"))
    return found


def test_limits_are_those_of_the_code() -> None:
    assert f"{frames.BATCH_BYTES_MAX // 1024**2} MiB" in row("one upload or download")
    assert f"{model.ENTRIES_MAX:,} entries; paths of {model.PATH_BYTES_MAX:,} bytes" in row("a tree")
    assert f"{CODE_BYTES_MAX // 10**6} MB" in row("code of one")
    assert f"{service.STORE_THREADS}, and {service.WAITING_MAX} that wait" in row("requests for content")
    assert f"{transfers.RUNNING_MAX}, and {transfers.WAITING_MAX} that wait" in row("transfers from other hubs")
    assert f"{service.SNAPSHOTS_MAX:,}" in row("snapshots")


def test_limits_of_nodes_are_those_of_the_code() -> None:
    images = ImageSettings()
    assert f"above {CACHE_BYTES_DEFAULT // GB} GB" in row("code, data, images")
    kept = row("working folders of ended tasks")
    assert f"above {KEPT_WORK_BYTES_DEFAULT // GB} GB or {kept_work.FOLDERS_MAX} folders" in kept
    assert f"{images.bytes_max // GIB} GiB" in row("an image")
    assert f"{images.unpacked_bytes_max // GIB} GiB unpacked" in row("an image")
    assert f"{images.entries_max // 10**6} million files" in row("an image")
    assert f"{environments.BUILD_S_MAX / 60:g} minutes" in row("the build of an environment")
    assert AUTH_SETTING in PAGE
    assert INSECURE_SETTING in PAGE
