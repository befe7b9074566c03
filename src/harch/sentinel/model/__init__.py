"""What is a series, a sample, a histogram? The types that collectors, store, PromQL and rules share."""
