"""Which workers should there be, who makes room for whom, and in which order do they come to rest?

From what is wanted and what is there. Pure.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct, structs

from harch.hub.pipelines.values import ALL_STAGES

# Which workers should there be, and who makes room for whom? From what is wanted and what is there. Pure.
#
# A worker is replaced by a new one of another name, which takes over once it says that it is well; so nothing waits for
# a start. A source cannot share its port and its buffer: it ends before the next one starts, and senders wait
# meanwhile.


ONE_AT_A_TIME = ("source",)
SHARED_OUT = ("act",)  # each has a fixed share of the devices, so another number of workers means new workers


class RosterMember(Struct, frozen=True, kw_only=True):
    """One worker. `slot` of `slots` is its share where a stage is shared out; `leaving` ones drain and go. `access` is
    a digest of whom it may reach and who may reach it, which can change while the file stays the same."""

    name: str
    stage: str
    generation: int
    access: str = ""
    slot: int = 0
    slots: int = 1
    leaving: bool = False


class WorkerRoster(Struct, frozen=True, kw_only=True):
    """`started` counts the names given out for each stage: none is used twice."""

    members: tuple[RosterMember, ...] = ()
    started: dict[str, int] = {}

    def of(self, stage: str) -> tuple[RosterMember, ...]:
        return tuple(member for member in self.members if member.stage == stage)

    @property
    def staying(self) -> tuple[RosterMember, ...]:
        return tuple(member for member in self.members if not member.leaving)


class StageTarget(Struct, frozen=True, kw_only=True):
    workers: int
    generation: int
    access: str = ""


def next_roster(
    roster: WorkerRoster, wanted: Mapping[str, StageTarget], *, ready: Collection[str], running: Collection[str]
) -> WorkerRoster:
    """`ready`: names of workers that are well. `running`: names whose process has not ended yet."""
    members: list[RosterMember] = []
    started = dict(roster.started)
    for stage in dict.fromkeys([*wanted, *(member.stage for member in roster.members)]):
        target = wanted.get(stage, StageTarget(workers=0, generation=0))
        there = [member for member in roster.of(stage) if not member.leaving or member.name in running]
        members += _next_stage(stage, target, there, started, ready)
    return WorkerRoster(members=tuple(members), started=started)


def _next_stage(
    stage: str, target: StageTarget, there: list[RosterMember], started: dict[str, int], ready: Collection[str]
) -> list[RosterMember]:
    slots = target.workers if stage in SHARED_OUT else 1
    leaving = [member for member in there if member.leaving]
    current: list[RosterMember] = []
    old: list[RosterMember] = []
    for member in there:
        if not member.leaving:
            fits = member.generation == target.generation and member.slots == slots and member.access == target.access
            (current if fits and len(current) < target.workers else old).append(member)
    may_start = stage not in ONE_AT_A_TIME or not (old or leaving)
    taken = {member.slot for member in current}
    free = [slot for slot in range(slots) if slot not in taken] if stage in SHARED_OUT else []
    for _ in range(target.workers - len(current) if may_start else 0):
        number = started[stage] = started.get(stage, -1) + 1
        slot = free.pop(0) if free else 0
        fresh = RosterMember(
            name=f"{stage}-{number}",
            stage=stage,
            generation=target.generation,
            access=target.access,
            slot=slot,
            slots=slots,
        )
        current.append(fresh)
    replaced = (
        target.workers == 0
        or stage in ONE_AT_A_TIME
        or (len(current) >= target.workers and all(member.name in ready for member in current))
    )
    return [*current, *((_left(member) if replaced else member) for member in old), *leaving]


def _left(member: RosterMember) -> RosterMember:
    return structs.replace(member, leaving=True)


def sense_before_source(wanted: Mapping[str, StageTarget], roster: WorkerRoster) -> dict[str, StageTarget]:
    """A source of new settings may send what only a SENSE of new settings knows: it waits until that has taken over."""
    found = dict(wanted)
    sense, there = wanted.get("sense"), [member for member in roster.of("source") if not member.leaving]
    if sense is not None and there and any(member.generation != sense.generation for member in roster.of("sense")):
        found["source"] = structs.replace(wanted["source"], generation=there[0].generation, access=there[0].access)
    return found


def holders(roster: WorkerRoster, stage: str, ready: Collection[str]) -> list[str]:
    """Who should hold partitions: those who are well; while nobody is, all of them."""
    staying = [member for member in roster.of(stage) if not member.leaving]
    newest = max((member.generation for member in staying), default=0)
    well = [member for member in staying if member.name in ready]
    fresh = [member.name for member in well if member.generation == newest]
    if fresh and len(fresh) == sum(member.generation == newest for member in staying):
        return fresh
    return [member.name for member in well] or [member.name for member in staying]


# In which order does a pipeline come to rest? Sources first; each stage once nothing is left before it. Pure.


def draining_targets(
    wanted: Mapping[str, StageTarget], roster: WorkerRoster, waiting: Mapping[str, int | None]
) -> dict[str, StageTarget]:
    """`waiting`: messages in the lane into a stage; None if nobody knows, and then it is not empty."""
    found: dict[str, StageTarget] = {}
    upstream_gone = True
    for stage in ALL_STAGES:
        if stage not in wanted:
            continue
        may_stop = upstream_gone and waiting.get(stage, 0) == 0
        target = wanted[stage]
        found[stage] = StageTarget(workers=0 if may_stop else target.workers, generation=target.generation)
        upstream_gone = upstream_gone and not roster.of(stage)
    return found


def is_at_rest(roster: WorkerRoster) -> bool:
    return not roster.members
