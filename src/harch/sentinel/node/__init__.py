"""What does a node tell about itself? Sensors, one frame of bytes, and a spool while the hub is away.

It runs inside the node agent, which has 0.3 % of a core and 50 MB: nothing here imports NumPy or an HTTP library.
"""
