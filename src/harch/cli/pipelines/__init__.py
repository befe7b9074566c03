"""`harch pipeline`: streams that become actions, in a terminal."""
