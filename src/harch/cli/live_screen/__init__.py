"""`harch top`: the federation on one screen."""
