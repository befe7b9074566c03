"""What are the subjects, streams, consumers and buckets of a pipeline called, and which stages follow SENSE?

One place, so that all sides agree.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.pipelines.wire.subject import subject_of

Into = Literal["think", "act", "results"]


class StageRoute(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Without `thinks`, rules of ACT read the features themselves; without `acts`, the last stage speaks to the lane of
    results. `is_hot`: features are not stored on their way to THINK."""

    thinks: bool = True
    acts: bool = True
    is_hot: bool = False

    @property
    def last(self) -> str:
        """The stage whose results are the pipeline's."""
        return "act" if self.acts else "think" if self.thinks else "sense"

    def after(self, stage: str) -> Into:
        """Where the messages of a stage go."""
        if stage == "sense" and self.thinks:
            return "think"
        return "act" if self.acts else "results"


# What are the subjects, streams, consumers and buckets of a pipeline called? One place, so that all sides agree.


THINK_CONSUMER, ACT_CONSUMER = "think", "act"


class PipelineNames(Struct, frozen=True):
    """Make it with `names_of`: country and pipeline are checked words then, which cannot leave their place."""

    country: str  # two lower-case letters
    pipeline: str

    @property
    def root(self) -> str:
        return f"juris.{self.country}.{self.pipeline}"

    @property
    def _stem(self) -> str:
        return f"{self.country}-{self.pipeline}"

    # Subjects. The partition comes last; `*` is all of them.

    def events(self, partition: int | str) -> str:
        return f"{self.root}.sense.{partition}"

    def features(self, partition: int | str) -> str:
        return f"{self.root}.think.{partition}"

    def outputs(self, partition: int | str) -> str:
        return f"{self.root}.act.{partition}"

    def results(self, partition: int | str) -> str:
        """What the last stage of a pipeline without ACT has made, for whoever wants it."""
        return f"{self.root}.results.{partition}"

    def into(self, lane: Into, partition: int | str) -> str:
        """The subject of what comes after a stage."""
        subjects = {"think": self.features, "act": self.outputs, "results": self.results}
        return subjects[lane](partition)

    def exported(self, partition: int | str) -> str:
        """Copies of features, from which the hub makes what leaves the country."""
        return f"{self.root}.export.{partition}"

    def late(self, partition: int | str) -> str:
        return f"{self.root}.late.{partition}"

    def dead(self, partition: int | str) -> str:
        return f"{self.root}.dead.{partition}"

    def credit(self, partition: int | str) -> str:
        return f"{self.root}.credit.{partition}"

    @property
    def control(self) -> str:
        """Whoever hears this looks at once at what is wanted of it, instead of a moment later."""
        return f"{self.root}.control"

    @property
    def alerts(self) -> str:
        return f"{self.root}.alerts"

    @property
    def spans(self) -> str:
        """What workers tell of windows that are followed."""
        return f"{self.root}.spans"

    @property
    def audit(self) -> str:
        return f"{self.root}.audit"

    # Streams and buckets.

    @property
    def features_stream(self) -> str:
        return f"{self._stem}-think"

    @property
    def outputs_stream(self) -> str:
        return f"{self._stem}-act"

    @property
    def results_stream(self) -> str:
        return f"{self._stem}-results"

    @property
    def export_stream(self) -> str:
        return f"{self._stem}-export"

    @property
    def late_stream(self) -> str:
        return f"{self._stem}-late"

    @property
    def dead_stream(self) -> str:
        return f"{self._stem}-dead"

    @property
    def audit_stream(self) -> str:
        return f"{self._stem}-audit"

    @property
    def state_bucket(self) -> str:
        """Leases, checkpoints, and what is wanted: assignment, models, policy."""
        return f"{self._stem}-state"

    @property
    def status_bucket(self) -> str:
        return f"{self._stem}-status"

    @property
    def ledger_bucket(self) -> str:
        return f"{self._stem}-ledger"


# Keys of the state bucket.
ASSIGNMENT_KEY = "wanted.assignment"
MODELS_KEY = "wanted.models"
POLICY_KEY = "wanted.policy"
DEVICES_KEY = "wanted.devices"
POLICIES_KEY = "policies"  # the last few tables, for what is under way


def lease_key(partition: int) -> str:
    return f"lease.{partition}"


def checkpoint_key(partition: int) -> str:
    return f"checkpoint.{partition}"


def names_of(country: str, pipeline: str) -> PipelineNames:
    """Raises E0201 for words that are no country or no name of a pipeline."""
    checked = subject_of(country, pipeline, "sense", 0)
    if isinstance(checked, Rejection):
        raise HarchError("E0201", f"{checked.rule}: {checked.detail}", hint=checked.nearest_fix)
    return PipelineNames(checked.country, checked.pipeline)
