"""Whose turn is it? Fair queueing, quotas, reservations with backfill, preemption: plans, never actions."""
