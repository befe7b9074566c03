"""Verbs that submit, watch and steer workloads."""
