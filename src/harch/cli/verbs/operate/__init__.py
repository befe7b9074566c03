"""Verbs that run hubs and agents, and that find them."""
