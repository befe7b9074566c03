"""Which pictures does the documentation have? `make pictures` runs this file, which writes all of them."""

from __future__ import annotations

import diagrams
import plots
from documents import DOCS

FOLDER = DOCS / "pictures"


def rendered() -> dict[str, str]:
    """File name -> content, the same on every machine."""
    return dict([*diagrams.drawings(), *plots.drawings()])


def write() -> None:
    """Writes every picture, and removes those that are no longer drawn."""
    FOLDER.mkdir(exist_ok=True)
    made = rendered()
    for path in FOLDER.glob("*.svg"):
        if path.name not in made:
            path.unlink()
    for name, content in made.items():
        (FOLDER / name).write_text(content, "utf-8")


if __name__ == "__main__":
    write()
