"""How does work get to another hub, and back? The owner's side, the runner's side, and what both remember."""
