"""The owning side: what of this hub's telemetry may be told, to whom, and how often."""
