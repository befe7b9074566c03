"""What do HarchOS's own processes and tasks say? Their lines go to the SENTINEL of their hub, and nowhere else.

It runs inside hubs and node agents, on a thread that nobody waits for: nothing here imports NumPy or an HTTP library.
"""
