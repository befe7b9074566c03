"""Which traces are there, and what happened in one? Queries over spans, and the tree that the spans of a trace make."""
