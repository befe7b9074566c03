"""Which pipelines does this hub run? Stored, proved, deployed, watched, scaled, changed and removed.

`service` is the door; it imports the rest only when a pipeline exists or is asked for, so that a hub without pipelines
starts nothing and loads nothing. `planning`, `roster` and `autoscale` decide and do no I/O.
"""
