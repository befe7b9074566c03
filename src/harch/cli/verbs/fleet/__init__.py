"""Verbs that show and maintain the fleet, and what SENTINEL knows of it."""
