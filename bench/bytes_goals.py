"""Which figures does `make bench-bytes` answer for? One goal each, in the order and the words of the issue."""

from __future__ import annotations

from dataclasses import dataclass

from verdict import Verdict


@dataclass(frozen=True)
class Goal:
    """`wanted`: a comparison. `> 0` where a figure is wanted, and no bound is set for it."""

    name: str
    wanted: str
    unit: str = ""

    def met(self, verdict: Verdict, got: float) -> None:
        verdict.goal(self.name, self.wanted, got, self.unit)

    def not_measured(self, verdict: Verdict) -> None:
        verdict.not_measured(self.name, self.wanted, self.unit)


EDITED_BYTES = Goal(
    "bytes sent after 1 MB is inserted into a 50 MB file of a 500 MB folder, over restic's", "<= 1.1", "x"
)
EDITED_CPU = Goal("CPU of sending that, over restic's", "<= 1.5", "x")
INGEST = {
    (kind, program): Goal(f"ingest MB/s per core of {kind} data, over {program}'s", "> 0", "x")
    for kind in ("incompressible", "text")
    for program in ("restic", "borg")
}
SPEED = Goal("transfer of incompressible data over the emulated 45 ms link, of raw TCP", ">= 85", "%")
CUTS = Goal("chunks sent again after five cuts, per cut", "<= 1")
GOSSIP = Goal("gossip's p99 meanwhile, over idle", "<= 1.2", "x")
KILLS = Goal("rounds of kill -9 of hub, agent and uploader at random points", ">= 100")
WRONG = Goal("lost or wrong bytes after them", "== 0")
LEAKED = Goal("leaked chunks after collection", "== 0")
ATTEMPTS = Goal("attempts to move or read a tagged chunk, artifact or image layer over a border", ">= 200")
SUCCEEDED = Goal("of these attempts, succeeded", "== 0")
COMMANDS = Goal("commands after `make up`, in a fresh clone, to the first line of output", "== 1")
COLD = Goal("from `git clone` of a training repository to its first line of output, cold", "> 0", "s")
WARM = Goal("to the first line of output, warm", "> 0", "s")

PARTS: dict[str, tuple[Goal, ...]] = {
    "dedupe": (EDITED_BYTES, EDITED_CPU),
    "ingest": tuple(INGEST.values()),
    "transfer": (SPEED, CUTS, GOSSIP),
    "kills": (KILLS, WRONG, LEAKED),
    "borders": (ATTEMPTS, SUCCEEDED),
    "start": (COMMANDS, COLD, WARM),
}
