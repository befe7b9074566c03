"""Whose turn is it? The queue, its quotas and shares, what is kept free, and who makes room."""
