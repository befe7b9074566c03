"""How does a hub buy its power? Plans anew every few minutes, bids where there is a market, keeps book."""
