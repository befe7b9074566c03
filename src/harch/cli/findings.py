"""What did a check find? One finding per check: a mark, a sentence, and the exact fix."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from harch.base.errors import EXIT_ERROR, EXIT_OK


class Mark(StrEnum):
    OK = "ok"
    WARNING = "warning"  # it works, but less well than it could
    BROKEN = "broken"


class Finding(Struct, frozen=True):
    check: str
    mark: Mark
    detail: str
    fix: str = ""


def exit_code_of(findings: Iterable[Finding]) -> int:
    return EXIT_ERROR if any(finding.mark is Mark.BROKEN for finding in findings) else EXIT_OK
