"""Who compiles the placement kernels? `python -m harch.hub.kernels`, once per machine; hubs load them from disk.

Compiling holds the interpreter lock for many seconds, so a hub lets this process do it. Of several that start together
one compiles, and the others wait.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from harch.base.compile_once import compile_once, is_compiled
from harch.execution.kernel import die_with_parent
from harch.placement.policy import KernelsMissing


def load_if_compiled() -> bool:
    """Loads the machine code from disk if an earlier process has left it there. Raises KernelsMissing without Numba."""
    from harch.placement.policy.compiled import SOURCES
    from harch.placement.policy.engine import warm

    if not is_compiled("placement", SOURCES):
        return False
    warm()
    return True


def compile_placement(step_started: Callable[[str], None] = lambda _what: None) -> None:
    """Compiles, or loads what is compiled. Raises KernelsMissing without Numba."""
    from harch.placement.policy.compiled import SOURCES
    from harch.placement.policy.engine import warm

    with compile_once("placement", SOURCES):
        step_started("placement")
        warm()


def main() -> None:
    die_with_parent()  # a hub that is killed leaves no compiler behind
    os.nice(10)  # nobody waits for it: hubs place by best fit meanwhile
    try:
        compile_placement()
    except KernelsMissing as missing:
        sys.exit(str(missing))


if __name__ == "__main__":
    main()
