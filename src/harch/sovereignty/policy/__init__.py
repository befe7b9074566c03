"""What do the operators' own policies say? Rego bundles, the process that evaluates them, and what counts as a yes."""
