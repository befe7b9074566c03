"""`harch sentinel`: telemetry in a terminal."""
