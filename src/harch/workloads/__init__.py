"""What is asked for? Specifications of work, their lifecycle, and whose they are."""
