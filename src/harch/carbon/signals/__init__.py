"""What is known about power and carbon at a hub right now? Sources, the quality of what they say, and the board."""
