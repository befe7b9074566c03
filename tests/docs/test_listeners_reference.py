"""Is the page of limits true? Names and defaults are those of the code, and every reason that is counted is named."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

from harch.base.listen.gate import DESCRIPTORS_RESERVED, ListenLimits

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "listeners.md").read_text("utf-8")


def test_the_table_holds_every_limit_with_its_default() -> None:
    told = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", PAGE, re.MULTILINE))
    assert {name: float(value) for name, value in told.items()} == asdict(ListenLimits())
    assert f"{DESCRIPTORS_RESERVED} descriptors" in PAGE


def test_every_reason_that_is_counted_is_named() -> None:
    source = "".join(path.read_text("utf-8") for path in (ROOT / "src/harch/base/listen").glob("*.py"))
    counted = set(re.findall(r'refuse\(\s*"(\w+)"', source)) | set(re.findall(r'_refusal = \("(\w+)"', source))
    counted |= set(re.findall(r'self\._refusal or \("(\w+)"', source))
    assert counted == set(re.findall(r"`(\w+)`", PAGE.split("by `reason`:")[1].split(". SENTINEL")[0]))
