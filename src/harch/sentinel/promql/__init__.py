"""What does the telemetry say? PromQL: its syntax tree, the mathematics of its histograms, and its evaluator."""
