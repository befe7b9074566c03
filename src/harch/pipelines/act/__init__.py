"""How does a decision become an action that happens once? Commands, their ledger, and the sinks that carry them out."""
