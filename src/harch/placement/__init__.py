"""Whose turn is it, and which GPUs? Hard checks, scores, plans, and the reasons for all of them."""
