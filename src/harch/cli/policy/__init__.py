"""The verbs of `harch policy` that have more to say than a screen."""
