"""Verbs that submit, watch and steer work."""
