"""The owning side: what of this hub's telemetry may be disclosed, to whom, and how often."""
