"""A warm process: kernels are loaded, the compiler's pages are gone, and compiling still works."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
from pathlib import Path
from harch.sentinel.store.warmup import let_compiler_go
from harch.sentinel.store.warmup import warm_up

def resident() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if "RssFile" in line).split()[1])

warm_up()
before = resident()
gone = let_compiler_go()
after = resident()
warm_up()
import numba
assert numba.njit(lambda x: x + 1)(1) == 2
print(gone, before, after)
"""


def test_a_warm_process_lets_the_compiler_go_and_can_call_it_again() -> None:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=110, check=True)
    gone, before, after = map(int, done.stdout.split())
    assert gone > 50 << 20
    assert after < before - 20_000
