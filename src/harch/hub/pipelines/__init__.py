"""Which pipelines does this hub run? Stored, proved, deployed, watched, scaled, changed and removed.

`service` is the way in; it imports the rest only when a pipeline exists or is requested, so that a hub without
pipelines starts nothing and loads nothing. `planning` and `roster` decide and do no I/O. `loop` holds all pipelines,
`pipeline` brings one of them to what is wanted, and `supervisor` is the process that runs their workers.
"""
