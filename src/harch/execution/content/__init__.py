"""What does a node do for tasks before they start and after they end? It fetches, builds, and keeps files."""
