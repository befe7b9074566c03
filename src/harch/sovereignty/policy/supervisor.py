"""How does HarchOS ask a policy without trusting it? One child process per bundle, watched, limited, replaced.

Every ending other than a clear answer is a value that means no: the child died, took too long, or wrote nonsense. It is
then killed and another one is started, after a pause that doubles; one that keeps dying is left alone for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from msgspec import Struct

from harch.base.clock import Clock, SystemClock
from harch.base.errors import HarchError, Problems
from harch.sovereignty.policy import worker
from harch.sovereignty.policy.bundle import check_plan, not_valid
from harch.sovereignty.policy.verdict import PolicyAnswer, VerdictGround

_HEADER = struct.Struct(">I")


class WorkerLimits(Struct, frozen=True, kw_only=True):
    """What a worker may use. `waiting_max` bounds the questions in line; more are answered no at once."""

    start_s: float = 20.0
    answer_s: float = 2.0
    cpu_s: int = 2
    memory_bytes: int = 512 * 1024 * 1024
    answer_bytes: int = 16 * 1024 * 1024
    waiting_max: int = 2000
    pause_s_first: float = 0.1
    pause_s_max: float = 10.0
    restarts_max: int = 10
    restarts_within_s: float = 60.0


class WorkerProgram(Struct, frozen=True, kw_only=True):
    """What the child gets: Rego by file name, the data document, and the rules that will be asked for."""

    modules: dict[str, str]
    data: dict[str, object]
    entrypoints: tuple[str, ...]


class PolicyWorker:
    """One bundle in one process. `ask` never raises for what the policy does; only cancellation passes through."""

    def __init__(
        self, program: WorkerProgram, *, limits: WorkerLimits | None = None, clock: Clock | None = None
    ) -> None:
        self._program = program
        self._limits = limits or WorkerLimits()
        self._clock = clock or SystemClock()
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._ends_s: deque[float] = deque(maxlen=self._limits.restarts_max)
        self._not_before_s = 0.0
        self._closed = False
        self.starts = 0

    async def start(self) -> None:
        """Compiles the bundle. Raises E0930 if it cannot be used and E0934 if there is no engine."""
        async with self._turn:
            await self._start()

    async def evaluate(self, entrypoint: str, value: object) -> PolicyAnswer:
        return (await self.evaluate_many(entrypoint, [value]))[0]

    async def evaluate_many(self, entrypoint: str, values: Sequence[object]) -> list[PolicyAnswer]:
        """One answer per input. They share a frame and a deadline, and so a fault: for tests and comparisons."""
        if self._waiting >= self._limits.waiting_max:
            return [PolicyAnswer(fault=VerdictGround.OVERLOADED)] * len(values)
        self._waiting += 1
        try:
            async with self._turn:
                return await self._answered(entrypoint, values)
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        self._closed = True
        await self._kill()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _answered(self, entrypoint: str, values: Sequence[object]) -> list[PolicyAnswer]:
        if self._process is None and (fault := await self._restarted()) is not None:
            return [fault] * len(values)
        fault = PolicyAnswer(fault=VerdictGround.CRASHED)
        try:
            async with asyncio.timeout(self._limits.answer_s):
                await self._send({"entrypoint": entrypoint, "inputs": values})
                return _answers(await self._receive(), len(values))
        except TimeoutError:
            fault = PolicyAnswer(fault=VerdictGround.TIMED_OUT, detail=f"no answer within {self._limits.answer_s:g} s")
        except ValueError as error:
            fault = PolicyAnswer(fault=VerdictGround.UNREADABLE, detail=str(error))
        except (OSError, EOFError) as error:
            fault = PolicyAnswer(fault=VerdictGround.CRASHED, detail=await self._how_it_ended() or str(error))
        except asyncio.CancelledError:
            # Its answer would be taken for that of the next question.
            self._abandon()
            raise
        await self._ended()
        return [fault] * len(values)

    async def _restarted(self) -> PolicyAnswer | None:
        """None when a worker runs again, else the fault to answer with."""
        now_s = self._clock.monotonic_s()
        if self._closed:
            return PolicyAnswer(fault=VerdictGround.UNAVAILABLE, detail="stopped")
        if now_s < self._not_before_s:
            return PolicyAnswer(fault=VerdictGround.UNAVAILABLE, detail="crashed, restarting soon")
        try:
            await self._start()
        except HarchError as error:
            await self._ended()
            return PolicyAnswer(fault=VerdictGround.UNAVAILABLE, detail=error.message)
        return None

    async def _ended(self) -> None:
        """After a fault: the first replacement may come at once, later ones wait twice as long each time."""
        await self._kill()
        now_s, limits = self._clock.monotonic_s(), self._limits
        self._ends_s.append(now_s)
        recent = sum(1 for end_s in self._ends_s if now_s - end_s < limits.restarts_within_s)
        if recent >= limits.restarts_max:
            self._not_before_s = now_s + limits.restarts_within_s
        elif recent > 1:
            self._not_before_s = now_s + min(limits.pause_s_first * 2 ** (recent - 2), limits.pause_s_max)

    async def _start(self) -> None:
        limits = self._limits
        with tempfile.TemporaryDirectory(prefix="harch-policy-") as scratch:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",  # neither the environment nor the user's own packages have a say
                "-B",
                str(Path(worker.__file__)),
                str(limits.memory_bytes),
                str(limits.cpu_s),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={},
                cwd="/",
                close_fds=True,
                start_new_session=True,
                limit=limits.answer_bytes,
            )
            self.starts += 1
            program = self._program
            order = {
                "modules": program.modules,
                "data": json.dumps(program.data),
                "entrypoints": list(program.entrypoints),
                "scratch": scratch,
            }
            try:
                async with asyncio.timeout(limits.start_s):
                    await self._send(order)
                    reply = await self._receive()
            except (TimeoutError, OSError, EOFError, ValueError) as error:
                how = await self._how_it_ended() or type(error).__name__
                await self._kill()
                raise HarchError(
                    "E0930", f"the bundle does not compile: {how}", hint="`harch policy check BUNDLE`"
                ) from None
            except asyncio.CancelledError:
                self._abandon()
                raise
        await self._check_start(reply)

    async def _check_start(self, reply: Any) -> None:
        if isinstance(reply, dict) and isinstance(reply.get("ready"), list):
            problems = Problems()
            check_plan([str(name) for name in reply["ready"]], problems)
            if not problems:
                return
            await self._kill()
            raise not_valid(problems)
        await self._kill()
        if isinstance(reply, dict) and "missing" in reply:
            raise HarchError("E0934", "the package `regopy` is not installed", hint="pip install 'harch[policy]'")
        reason = reply.get("refused", "no details") if isinstance(reply, dict) else "no details"
        raise HarchError("E0930", f"the bundle does not compile: {reason}", hint="`harch policy check BUNDLE`")

    async def _send(self, message: object) -> None:
        process = self._process
        if process is None or process.stdin is None:
            raise EOFError("no worker")
        body = json.dumps(message).encode()
        if len(body) > worker.FRAME_BYTES_MAX:
            raise ValueError("the request is too large")
        process.stdin.write(_HEADER.pack(len(body)) + body)
        await process.stdin.drain()

    async def _receive(self) -> Any:
        process = self._process
        if process is None or process.stdout is None:
            raise EOFError("no worker")
        (length,) = _HEADER.unpack(await process.stdout.readexactly(_HEADER.size))
        if length > self._limits.answer_bytes:
            raise ValueError("the response is too large")
        return json.loads(await process.stdout.readexactly(length))

    async def _how_it_ended(self) -> str:
        process = self._process
        if process is None:
            return ""
        try:
            async with asyncio.timeout(1.0):
                code = await process.wait()
        except TimeoutError:
            return ""
        return f"the worker ended by signal {-code}" if code < 0 else f"the worker ended with code {code}"

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if process.stdin is not None:
            process.stdin.close()

    def _abandon(self) -> None:
        """Like `_kill`, where there is no time to wait; the loop reaps the child."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()


def _answers(reply: Any, count: int) -> list[PolicyAnswer]:
    """Raises ValueError for anything but one `[ok, text]` per input."""
    if not isinstance(reply, list) or len(reply) != count:
        raise ValueError("the worker's response is malformed")
    answers = []
    for entry in reply:
        match entry:
            case [True, str(text)]:
                answers.append(PolicyAnswer(text=text))
            case [False, str(text)]:
                answers.append(PolicyAnswer(fault=VerdictGround.ENGINE_ERROR, detail=text))
            case _:
                raise ValueError("the worker's response is malformed")
    return answers
