"""Verbs for carbon and energy."""
