"""How does it run? The node agent, its sandbox, and the engines that start tasks."""
