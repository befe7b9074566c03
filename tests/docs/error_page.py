"""How does the registry of errors read as a page? `python tests/docs/error_page.py > docs/errors.md` writes it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from itertools import groupby

from harch.base.errors import (
    EXIT_CHANGES,
    EXIT_ERROR,
    EXIT_INFEASIBLE,
    EXIT_OK,
    EXIT_REFUSED,
    EXIT_USAGE,
    REGISTRY,
    ErrorKind,
    InvariantBroken,
)

# The first three characters of a code name its family. A code of a family that is not listed here is a mistake.
FAMILIES: Mapping[str, str] = {
    "E01": "Identity and access",
    "E02": "Input",
    "E03": "Resources",
    "E04": "Limits and budgets",
    "E05": "Inference",
    "E06": "Fine-tuning",
    "E07": "Streams and sockets",
    "E08": "Health",
    "E09": "Sovereignty",
    "E10": "HarchOS itself",
    "E11": "Content",
}

EXIT_MEANINGS: Mapping[int, str] = {
    EXIT_OK: "done",
    EXIT_ERROR: "an error that has no exit code of its own",
    EXIT_USAGE: "the command or its input is not valid",
    EXIT_INFEASIBLE: "it can never run, so waiting would not help",
    EXIT_REFUSED: "refused by a policy, a role or a budget",
    EXIT_CHANGES: "changes or drift were found",
}

_HEAD = """\
<!-- Written by `python tests/docs/error_page.py > docs/errors.md`; edit src/harch/base/errors.py instead. -->

# Error codes

The CLI, the API and this page share one registry. An error has a code, one sentence and, where there is one, a hint:

```text
error[E0901]: `MRO` is not a country code

hint: use `MA` for Morocco
```

`harch explain CODE` prints the entries below. The API answers the same code with the HTTP status given here; a
validation error is 400, never 422, because the published clients know only the former.
"""


def render(kinds: Iterable[ErrorKind] = tuple(REGISTRY.values())) -> str:
    """The page, by family and code. Raises `InvariantBroken` for a code that belongs to no family."""
    parts = [_HEAD, _exit_codes()]
    by_code = sorted(kinds, key=lambda kind: kind.code)
    for family, members in groupby(by_code, key=lambda kind: kind.code[:3]):
        if family not in FAMILIES:
            raise InvariantBroken("an error code belongs to no family", family)
        parts.append(f"## {family}: {FAMILIES[family]}\n")
        parts.extend(_entry(kind) for kind in members)
    return "\n".join(parts)


def _exit_codes() -> str:
    rows = "\n".join(f"| {code} | {meaning} |" for code, meaning in EXIT_MEANINGS.items())
    return f"## Exit codes\n\n| exit code | meaning |\n|---|---|\n{rows}\n"


def _entry(kind: ErrorKind) -> str:
    return (
        f"### {kind.code}\n\n**{kind.title}** · HTTP {kind.status} · exit code {kind.exit_code}\n\n{kind.explanation}\n"
    )


if __name__ == "__main__":
    sys.stdout.write(render())
