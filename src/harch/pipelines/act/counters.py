"""How many, and what became of them? Plain numbers of one ACT stage, for metrics and for tests."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from harch.pipelines.act.ledger import Entry


@dataclass(slots=True)
class Counters:
    """Counts since the start of the process."""

    rows: int = 0  # rows of model outputs looked at
    rows_unfit: int = 0  # rows that no rule could judge: NaN and the like
    proposed: int = 0
    duplicates: int = 0  # commands that the ledger knew already
    foreign: int = 0  # batches whose jurisdiction does not allow this place; nothing of them was kept
    unmade: int = 0  # rows that called for an action whose arguments could not be filled
    requests: int = 0
    questions: int = 0
    retries: int = 0
    rate_waits: int = 0
    conflicts: int = 0
    taken_back: int = 0
    dry_runs: int = 0
    audits_failed: int = 0
    store_failures: int = 0
    refused_full: int = 0  # batches not taken because the queue was full; their sender was told
    letters_dropped: int = 0  # oldest letters above the limit
    ends: Counter[str] = field(default_factory=Counter)

    def ended(self, entry: Entry) -> None:
        self.ends[str(entry.state)] += 1

    def as_dict(self) -> dict[str, int]:
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "ends"}
        return {**plain, **{f"ended_{state}": count for state, count in sorted(self.ends.items())}}
