"""Where do chunks stay? In packs, encrypted per tenant, with an index; trees that somebody holds keep theirs."""

from harch.content.store.content_store import ContentStore, StoreTotals, open_store
from harch.content.store.settings import StoreSettings
from harch.content.store.trees import Hold, StoredTree

__all__ = ["ContentStore", "Hold", "StoreSettings", "StoreTotals", "StoredTree", "open_store"]
