"""Who compiles the placement kernels? `python -m harch.hub.kernels`, once per machine; hubs load them from disk.

Compiling holds the interpreter lock for many seconds, so a hub lets this process do it. Of several that start together
one compiles, and the others wait.
"""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
from pathlib import Path

from harch.execution.kernel import die_with_parent
from harch.placement.policy import KernelsMissing


def main() -> None:
    die_with_parent()  # a hub that is killed leaves no compiler behind
    os.nice(10)  # nobody waits for it: hubs place by best fit meanwhile
    with (Path(tempfile.gettempdir()) / f"harch-kernels-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            from harch.placement.policy.engine import warm
        except KernelsMissing as missing:
            sys.exit(str(missing))
        warm()


if __name__ == "__main__":
    main()
