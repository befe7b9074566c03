"""Who are the other hubs? Their identities, the links between them, gossip, liveness, offers and leases."""
