"""Can any of this ever break a tag? Proofs over a fleet, its data and every combination of its pending changes."""
