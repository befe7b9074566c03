"""What do several verbs draw? Charts, traces, explanations."""
