"""In which image does a task run? One of a registry or of a data object: fetched, checked, and unpacked on its node."""
