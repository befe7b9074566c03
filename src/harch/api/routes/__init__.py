"""One file per noun of the API; `context` holds what they share."""
