"""What happened, and can it be proven? A hash chain of decisions and data movements, with signed checkpoints."""
