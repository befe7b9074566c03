"""Which stages does a pipeline have after SENSE, and what does each of them speak to? A value. No I/O."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Into = Literal["think", "act", "results"]


class Route(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
