"""May this batch be here at all? One bit of the header, tested before anything of the batch is decoded or kept.

A mask names hubs by bit numbers, and a policy version says which numbering that is. A batch of a version that is not
known yet is held for a moment while the table is fetched; a batch that may not be here is dropped, counted and
reported. A batch may be stricter than its pipeline and never looser: the pipeline's own mask is a ceiling for all of
them. What is not known has no bit, and no bit means no. Hubs beyond the 64th have none: streams do not reach them.
"""

# harch: pure

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from harch.pipelines.wire.header import BatchHeader
from harch.sovereignty.compiled import Rules
from harch.sovereignty.tags import Tag

VERSIONS_KEPT = 8
MASK_BITS = 64
MASK_ALL = (1 << MASK_BITS) - 1


class PolicyTable(Struct, frozen=True):
    """Which bit is which hub, in one version of the policy, and the most that the pipeline itself permits."""

    version: int
    bits: dict[str, int]
    ceiling: int = MASK_ALL

    @classmethod
    def of(cls, rules: Rules, version: int, tag: Tag | None, source_hub: str) -> PolicyTable:
        """For a pipeline whose events carry this tag and enter at that hub."""
        bits = {hub: bit for hub, bit in rules.bits.items() if bit < MASK_BITS}
        return cls(version, bits, stream_mask(rules, tag, source_hub))

    @property
    def all_hubs(self) -> int:
        return sum(1 << bit for bit in self.bits.values())


def stream_mask(rules: Rules, tag: Tag | None, source_hub: str) -> int:
    """Where a stream that enters at `source_hub` may be: hubs that it can reach, and that may process and keep it."""
    start = rules.bits.get(source_hub, -1)
    compiled = rules.compile(tag)
    if tag is None or start < 0:
        return 0
    return compiled.reach[start] & compiled.process & compiled.rest & MASK_ALL


class BatchVerdict(Enum):
    ADMIT = "admit"
    HOLD = "hold"
    DROP = "drop"


class GateAnswer(Struct, frozen=True):
    verdict: BatchVerdict
    reason: str = ""
    detail: str = ""


_ADMIT = GateAnswer(BatchVerdict.ADMIT)


class ResidencyGate:
    """Decides for one hub. Tables arrive with `learn`; the newest one is the numbering of what goes out."""

    def __init__(self, hub: str, table: PolicyTable) -> None:
        self._hub = hub
        self._tables = {table.version: table}
        self.current = table

    def learn(self, table: PolicyTable) -> None:
        """A table was fetched. Versions only grow; an older one than is known changes what is current in nothing."""
        self._tables[table.version] = table
        if table.version > self.current.version:
            self.current = table
        while len(self._tables) > VERSIONS_KEPT:
            del self._tables[min(self._tables)]

    def decide(self, header: BatchHeader) -> GateAnswer:
        table = self._tables.get(header.policy_version)
        mask = header.juris_mask & (table.ceiling if table else MASK_ALL)
        if table is not None and mask >> table.bits.get(self._hub, MASK_BITS) & 1:
            return _ADMIT
        if not header.juris_mask:
            return GateAnswer(BatchVerdict.DROP, "no_jurisdiction", "its mask names no hub")
        if table is None:
            return GateAnswer(
                BatchVerdict.HOLD, "policy_unknown", f"policy version {header.policy_version} is not known here"
            )
        if not mask & table.all_hubs:  # also where the ceiling leaves nothing of it
            return GateAnswer(
                BatchVerdict.DROP, "no_compliant_hub", f"no hub of policy version {table.version} may have it"
            )
        hubs = ", ".join(hub for hub, bit in table.bits.items() if mask >> bit & 1)
        return GateAnswer(BatchVerdict.DROP, "not_here", f"`{self._hub}` may not receive it; {hubs} may")

    def in_current_numbering(self, mask: int, version: int) -> int:
        """The same hubs by the bits of the newest table, below its ceiling; those that it no longer knows are gone."""
        if version == self.current.version:
            return mask & self.current.ceiling
        table = self._tables.get(version)
        known = table.bits.items() if table else ()
        renumbered = sum(
            1 << self.current.bits[hub] for hub, bit in known if mask >> bit & 1 and hub in self.current.bits
        )
        return renumbered & self.current.ceiling
