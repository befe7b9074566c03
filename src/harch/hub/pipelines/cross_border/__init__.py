"""How do results of a pipeline reach hubs of other countries? Exports, borders and their links."""
