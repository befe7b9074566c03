"""How is a task kept apart from the rest of its machine? What it may see, and how much it may use."""
