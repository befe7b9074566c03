"""Where does the chain go on? Its growing end: gives each draft its place and its hash, in the order of the disk."""

from __future__ import annotations

from harch.base.clock import Clock, iso
from harch.hub.audit import table
from harch.hub.store.database import Database
from harch.hub.store.rows import Statement
from harch.sovereignty.audit.chain import link
from harch.sovereignty.audit.entry import Draft


class AuditTrail:
    """Statements that continue the chain. Whoever cannot store them must set `head` back, or the chain has a hole."""

    def __init__(self, hub_id: str, database: Database, clock: Clock) -> None:
        self.hub_id = hub_id
        self._database, self._clock = database, clock
        self.head = table.head(database)

    def link(self, drafts: list[Draft]) -> list[Statement]:
        """They happened together, so they share their time; their order is the order of the chain."""
        statements: list[Statement] = []
        if drafts:
            at = iso(self._clock.now())
            for draft in drafts:
                linked = link(self.head, draft, hub=self.hub_id, at=at)
                self.head = linked.head
                statements += table.save(linked)
        return statements

    def reload(self) -> None:
        """Goes back to what is on disk."""
        self.head = table.head(self._database)
