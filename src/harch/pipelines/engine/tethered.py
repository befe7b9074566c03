"""How does a server end with whoever started it? It becomes the server only after it has tied itself to its parent.

For benchmarks and trials, which must leave nothing behind. A hub's engine is not tied: workers go on without the hub.
"""

from __future__ import annotations

import os
import sys

from harch.execution.kernel import die_with_parent


def tethered_command(program: str, *arguments: str) -> list[str]:
    """What to start in place of the program; the kernel keeps the tie when one program becomes another."""
    return [sys.executable, "-m", __name__, str(os.getpid()), program, *arguments]


def main() -> None:
    parent, program, *arguments = sys.argv[1:]
    die_with_parent()
    if os.getppid() != int(parent):  # it ended before the tie was made
        sys.exit(1)
    os.execv(program, [program, *arguments])  # noqa: S606 (our own program with our own arguments)


if __name__ == "__main__":
    main()
