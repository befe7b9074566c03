"""Who sees to it that a program of the agent ends with the agent, together with all that it started?

Run as `python -I -S guard.py CGROUP… -- PROGRAM ARGUMENT…`; standard library only, to start fast. It leads a
process group: killing that group, or the agent, kills the program. When the program ends by itself, what it has left
behind is killed, and its exit status is passed on. Nobody may wait for that in vain: everything dies with a KILL.
"""

from __future__ import annotations

import os
import signal
import sys

if __name__ == "__main__":  # isolated mode has no path to us; the standard library stays first
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from harch.execution import kernel

CANNOT_EXECUTE_EXIT_CODE, NOT_FOUND_EXIT_CODE = 126, 127  # what a shell answers
SWEEP_ROUNDS_MAX = 1000


def main(cgroups: list[str], command: list[str]) -> int:
    parent = os.getppid()
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    kernel.signal_with_parent(signal.SIGTERM)
    kernel.adopt_orphans()
    if parent == 1 or os.getppid() != parent:
        return CANNOT_EXECUTE_EXIT_CODE  # the agent died before the kernel knew what that means
    kernel.enter_cgroups(cgroups)
    child = os.fork()
    if not child:
        kernel.die_with_parent()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            os.execvp(command[0], command)  # noqa: S606 - a shell is what we avoid
        except OSError as error:
            os.write(2, f"{command[0]}: {error.strerror}\n".encode())
            os._exit(NOT_FOUND_EXIT_CODE if isinstance(error, FileNotFoundError) else CANNOT_EXECUTE_EXIT_CODE)
    _, status = os.waitpid(child, 0)
    _sweep()
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _sweep() -> None:
    """What the program has left behind is ours now."""
    for _ in range(SWEEP_ROUNDS_MAX):
        for pid in kernel.children_of(os.getpid()):
            kernel.kill_process(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


if __name__ == "__main__":
    words = sys.argv[1:]
    cut = words.index("--")
    os._exit(main(words[:cut], words[cut + 1 :]))
