"""What does the hub remember of a pipeline? Values that are stored as they are."""

# harch: pure

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import Struct, field

SCALED = ("sense", "think", "act")  # stages that may have several workers
ALL_STAGES = ("source", *SCALED)


class DesiredState(StrEnum):
    """What is wanted of it. `drained`: sources stop first, then each stage when it has finished; streams stay."""

    RUN = "run"
    DRAIN = "drain"
    REMOVE = "remove"


class PipelineRecord(Struct, frozen=True, kw_only=True):
    """`spec` is the specification as plain data. `generations`: a stage whose number grows gets new workers.

    `fixed`: numbers of workers that a person has set; other stages scale by their load. `models_revision`: the version
    whose models running workers were told to serve; 0 while they serve what they were started with.
    """

    name: str
    tenant: str
    version: int
    spec: dict[str, Any]
    desired: DesiredState = field(default=DesiredState.RUN, name="wish")
    generations: dict[str, int] = {}
    models_revision: int = 0
    fixed: dict[str, int] = {}
    state_version: int = 0  # the version from which on SENSE's state is as it is now: another one begins anew
    devices_revision: int = 0  # the version from which on running workers know devices that were added
    policy_version: int = 1
    policy_bits: dict[str, int] = {}
    enrichment: dict[str, dict[str, float]] = {}
    loose_files: dict[str, str] = {}  # hashes of modules that the file names without one, as workers were given them
    released: tuple[str, ...] = ()  # exports whose looser tag was signed when they were applied
    key_revisions: dict[str, int] = {}  # of sources whose key was made anew: how often
    halted: str = ""  # why ACT sends nothing; empty: it acts
    created_at: str = ""
    applied_at: str = ""
    applied_by: str = ""
