"""How is power bought on a market? Bids from a plan, limits before sending, a book that adds up, adapters behind it."""
