"""One hub's control plane: store, admission, job machine, loops, recovery."""
