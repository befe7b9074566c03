"""What does an alert say? Go templates, as far as rules and notifications use them, with limits on work and output."""
