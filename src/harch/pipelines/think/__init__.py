"""What do the numbers mean? THINK: features in, outputs of models out, each with the version that made it."""
