"""Verbs for data, policies and the audit chain."""
