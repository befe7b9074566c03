"""What do the logs say? LogQL: its syntax, what its stages do to lines, and its evaluation over a store of logs."""
