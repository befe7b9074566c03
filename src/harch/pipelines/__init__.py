"""How does a stream become an action? SENSE reads and summarises events, THINK decides, ACT does it once.

Import what you need from its module: `wire` is the form of what travels between stages, `sense` turns events into
features. Kernels, checksums and clients of brokers are optional packages (the extra `pipelines`), imported where used.
"""
