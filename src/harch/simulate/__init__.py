"""What would happen? Replay and what-if, on the same code that decides in the real system."""
