"""What does work want of its power, and what was decided for it? The wishes in a specification, and the kept choice."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

SLACK_S_MAX = 30 * 86400
CHECKPOINT_GB_MAX = 10**6

_Positive = Annotated[float, Meta(gt=0, le=1e15)]


class Resumes(StrEnum):
    """Where work goes on from what it saved when it is started again."""

    NO = "no"
    HERE = "here"  # its folder is at this hub
    ANYWHERE = "anywhere"  # its folder can be reached from every hub that may run it


class CarbonWishes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """When and where it may run for cleaner power, and how much it may emit. Grams are by location, with own plants."""

    aware: Annotated[
        bool | None,
        Meta(description="True: the plan says where it runs. False: it never does. Absent: as the hub is set."),
    ] = None
    slack_s: Annotated[
        float, Meta(ge=0, le=SLACK_S_MAX, description="How long its start may be put off for cleaner power.")
    ] = 0
    finish_by: Annotated[
        Annotated[datetime, Meta(tz=True)] | None,
        Meta(description="Its start may be put off as long as it can end by then; needs a duration."),
    ] = None
    duration_s: Annotated[
        Annotated[float, Meta(gt=0, le=366 * 86400)] | None,
        Meta(description="How long it is expected to run; `max_duration_s` if absent."),
    ] = None
    g_max: Annotated[_Positive | None, Meta(description="Grams of CO2 equivalent that it may emit: a hard limit.")] = (
        None
    )
    g_per_kwh_max: Annotated[
        _Positive | None, Meta(description="Runs only where and when a kWh emits no more, as forecast: a hard limit.")
    ] = None
    resumes: Annotated[
        Resumes,
        Meta(description="It saves its work and goes on from there: then it may be suspended (`here`) or also moved."),
    ] = Resumes.NO
    checkpoint_gb: Annotated[
        float, Meta(ge=0, le=CHECKPOINT_GB_MAX, description="What it saves: moving that costs energy, too.")
    ] = 0

    def __post_init__(self) -> None:
        if self.aware is False and (self.may_wait or self.resumes is not Resumes.NO):
            raise ValueError("`carbon.aware: false` starts at once, so it excludes slack_s, finish_by and resumes")

    @property
    def may_wait(self) -> bool:
        return self.slack_s > 0 or self.finish_by is not None

    @property
    def wants_plan(self) -> bool:
        """It says itself that where or when it runs may depend on its power."""
        return bool(self.aware) or self.may_wait or self.resumes is not Resumes.NO

    @property
    def has_limit(self) -> bool:
        return self.g_max is not None or self.g_per_kwh_max is not None


class CarbonOption(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A hub and a start that were weighed. All of it is forecast."""

    hub_id: str
    start_at: datetime
    grams: float
    kwh: float
    cost_g: float = 0.0  # what was compared: grams, what others need there and then, money if it counts
    rests_on: str = ""
    figures_at: datetime | None = None  # the oldest figure that it rests on


class CarbonChoice(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What the hub decided for a workload, kept with it. `start_by` is a promise; everything else is a plan.

    `held`: it is kept out of the queue until `release_at`, or until a newer plan says so.
    """

    action: str  # start, wait, move, suspend
    decided_at: datetime
    hub_id: str  # where it should run
    reason: str = ""
    held: bool = False
    start_at: datetime | None = None  # planned
    start_by: datetime | None = None  # promised
    release_at: datetime | None = None  # into the queue at the latest: a gang may have to wait for its nodes
    chosen: CarbonOption | None = None
    at_once: CarbonOption | None = None  # the same job, at once, at home
    options: tuple[CarbonOption, ...] = ()
    move_cost_g: float = 0.0
    reserved_g: float = 0.0  # of budgets; what it is expected to emit
    refused: str = ""  # why no hub and hour would do, by the newest plan
    asked_there: bool = False  # the other hub was asked once; from then on home comes first
    moves: int = 0
    moved_at: datetime | None = None
    ran_s: float = 0.0  # before it was suspended or moved

    @property
    def saves_g(self) -> float:
        """Against running at once at home; forecast, estimated."""
        if self.chosen is None or self.at_once is None:
            return 0.0
        return self.at_once.grams - self.chosen.grams - self.move_cost_g
