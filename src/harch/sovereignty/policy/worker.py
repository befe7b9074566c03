"""Who evaluates Rego? This child process: no environment, no files, little memory; whatever it does, the hub lives on.

It stands alone, so that it needs nothing but Python and `regopy`: HarchOS starts it as a script. Frames are four bytes
of length and JSON. The first frame is the bundle; each one after it is a list of inputs for one entry point.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import struct
import sys
from pathlib import Path
from typing import Any

FRAME_BYTES_MAX = 16 * 1024 * 1024
OPEN_FILES_MAX = 16
PLAN_BYTES_MAX = 64 * 1024 * 1024
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_HEADER = struct.Struct(">I")


class Channel:
    """The pipe to the hub. The engine prints to the standard streams, so these are taken away from it."""

    def __init__(self) -> None:
        self._in, self._out = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        os.close(nothing)

    def receive(self) -> Any:
        """None when the hub has gone."""
        header = self._read(_HEADER.size)
        if header is None:
            return None
        (length,) = _HEADER.unpack(header)
        if length > FRAME_BYTES_MAX:
            return None
        body = self._read(length)
        return None if body is None else json.loads(body)

    def send(self, message: object) -> None:
        body = json.dumps(message).encode()
        rest = memoryview(_HEADER.pack(len(body)) + body)
        while rest:
            rest = rest[os.write(self._out, rest) :]

    def _read(self, length: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < length:
            part = os.read(self._in, length - len(parts))
            if not part:
                return None
            parts += part
        return bytes(parts)


class RegoEngine:
    """One compiled bundle."""

    def __init__(self, order: dict[str, Any]) -> None:
        import regopy

        self._regopy = regopy
        self._interpreter = regopy.Interpreter()
        # Before the build: otherwise a built-in that fails or is missing makes its rule undefined, and a `deny` that
        # can never fire lets everything through.
        self._interpreter.strict_built_in_errors = True
        self._interpreter.add_data_json(order["data"])
        for name, source in order["modules"].items():
            self._interpreter.add_module(name, source)
        self._bundle = self._interpreter.build(None, order["entrypoints"])
        if not self._bundle.ok():
            raise ValueError("the bundle does not compile")

    def builtins(self, scratch: str) -> list[str]:
        """The built-ins that the compiled plan really calls, whatever the text looked like."""
        folder = Path(scratch) / "plan"
        self._interpreter.save_bundle(str(folder), self._bundle)
        plan = json.loads((folder / "plan.json").read_bytes())
        return sorted(entry["name"] for entry in plan["static"].get("builtin_funcs", ()))

    def answer(self, entrypoint: str, value: object) -> list[object]:
        try:
            self._interpreter.set_input(self._regopy.Input(value))
            output = self._interpreter.query_bundle_entrypoint(self._bundle, entrypoint)
            return [bool(output.ok()), str(output)]
        except (ValueError, TypeError, self._regopy.RegoError) as error:
            return [False, f"error: {error}"]


def main(memory_bytes_max: int, cpu_s_max: int) -> None:
    channel = Channel()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    for option, value in ((_PR_SET_NO_NEW_PRIVS, 1), (_PR_SET_DUMPABLE, 0)):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES_MAX, OPEN_FILES_MAX))
    resource.setrlimit(resource.RLIMIT_FSIZE, (PLAN_BYTES_MAX, PLAN_BYTES_MAX))
    order = channel.receive()
    if order is None:
        return
    try:
        import regopy  # noqa: F401 (its allocator reserves address space, so the limit is counted from here)
    except ImportError as error:
        channel.send({"missing": str(error)})
        return
    _limit_memory(memory_bytes_max)
    _allow_cpu(cpu_s_max)
    try:
        engine = RegoEngine(order)
        found = engine.builtins(order["scratch"])
    except Exception as error:  # noqa: BLE001 (the edge of the process: the reason goes to the hub)
        channel.send({"refused": f"{type(error).__name__}: {error}"[:4000]})
        return
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    channel.send({"ready": found})
    while (question := channel.receive()) is not None:
        _allow_cpu(cpu_s_max)
        entrypoint = question["entrypoint"]
        channel.send([engine.answer(entrypoint, value) for value in question["inputs"]])


def _limit_memory(memory_bytes_max: int) -> None:
    """So much more than now: an absolute limit would have to exceed the allocator's reservation of 256 GiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + memory_bytes_max
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _allow_cpu(seconds: int) -> None:
    """The limit counts from the start of the process, so it moves on with every frame."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    until = int(spent.ru_utime + spent.ru_stime) + seconds + 1
    resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
