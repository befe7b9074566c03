"""Does a PromQL implementation answer as Prometheus does? Runs Prometheus' promqltest files against a target.

`python -m harch.testing.promqltest FOLDER` runs them in this process, with `--url` against a server.
"""
