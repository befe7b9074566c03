"""Which workers should there be, and who makes room for whom? From what is wanted and what is there. Pure.

A worker is replaced by a new one of another name, which takes over once it says that it is well; so nothing waits for
a start. A source cannot share its port and its buffer: it ends before the next one starts, and senders wait meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct, structs

ONE_AT_A_TIME = ("source",)
SHARED_OUT = ("act",)  # each has a fixed share of the devices, so another number of workers means new workers


class Member(Struct, frozen=True, kw_only=True):
    """One worker. `slot` of `slots` is its share where a stage is shared out; `leaving` ones drain and go. `access` is
    a digest of whom it may reach and who may reach it, which can change while the file stays the same."""

    name: str
    stage: str
    generation: int
    access: str = ""
    slot: int = 0
    slots: int = 1
    leaving: bool = False


class Roster(Struct, frozen=True, kw_only=True):
    """`started` counts the names given out for each stage: none is used twice."""

    members: tuple[Member, ...] = ()
    started: dict[str, int] = {}

    def of(self, stage: str) -> tuple[Member, ...]:
        return tuple(member for member in self.members if member.stage == stage)

    @property
    def staying(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if not member.leaving)


class StageWish(Struct, frozen=True, kw_only=True):
    workers: int
    generation: int
    access: str = ""


def next_roster(
    roster: Roster, wanted: Mapping[str, StageWish], *, ready: Collection[str], running: Collection[str]
) -> Roster:
    """`ready`: names of workers that are well. `running`: names whose process has not ended yet."""
    members: list[Member] = []
    started = dict(roster.started)
    for stage in dict.fromkeys([*wanted, *(member.stage for member in roster.members)]):
        wish = wanted.get(stage, StageWish(workers=0, generation=0))
        there = [member for member in roster.of(stage) if not member.leaving or member.name in running]
        members += _next_stage(stage, wish, there, started, ready)
    return Roster(members=tuple(members), started=started)


def _next_stage(
    stage: str, wish: StageWish, there: list[Member], started: dict[str, int], ready: Collection[str]
) -> list[Member]:
    slots = wish.workers if stage in SHARED_OUT else 1
    leaving = [member for member in there if member.leaving]
    current: list[Member] = []
    old: list[Member] = []
    for member in there:
        if not member.leaving:
            fits = member.generation == wish.generation and member.slots == slots and member.access == wish.access
            (current if fits and len(current) < wish.workers else old).append(member)
    may_start = stage not in ONE_AT_A_TIME or not (old or leaving)
    taken = {member.slot for member in current}
    free = [slot for slot in range(slots) if slot not in taken] if stage in SHARED_OUT else []
    for _ in range(wish.workers - len(current) if may_start else 0):
        number = started[stage] = started.get(stage, -1) + 1
        slot = free.pop(0) if free else 0
        fresh = Member(
            name=f"{stage}-{number}",
            stage=stage,
            generation=wish.generation,
            access=wish.access,
            slot=slot,
            slots=slots,
        )
        current.append(fresh)
    replaced = (
        wish.workers == 0
        or stage in ONE_AT_A_TIME
        or (len(current) >= wish.workers and all(member.name in ready for member in current))
    )
    return [*current, *((_left(member) if replaced else member) for member in old), *leaving]


def _left(member: Member) -> Member:
    return structs.replace(member, leaving=True)


def sense_before_source(wanted: Mapping[str, StageWish], roster: Roster) -> dict[str, StageWish]:
    """A source of new settings may send what only a SENSE of new settings knows: it waits until that has taken over."""
    found = dict(wanted)
    sense, there = wanted.get("sense"), [member for member in roster.of("source") if not member.leaving]
    if sense is not None and there and any(member.generation != sense.generation for member in roster.of("sense")):
        found["source"] = structs.replace(wanted["source"], generation=there[0].generation, access=there[0].access)
    return found


def holders(roster: Roster, stage: str, ready: Collection[str]) -> list[str]:
    """Who should hold partitions: those who are well; while nobody is, all of them."""
    staying = [member for member in roster.of(stage) if not member.leaving]
    newest = max((member.generation for member in staying), default=0)
    well = [member for member in staying if member.name in ready]
    fresh = [member.name for member in well if member.generation == newest]
    if fresh and len(fresh) == sum(member.generation == newest for member in staying):
        return fresh
    return [member.name for member in well] or [member.name for member in staying]
