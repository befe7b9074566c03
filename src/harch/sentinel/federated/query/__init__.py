"""The asking side: a question is cut into parts, and what the hubs tell becomes one answer."""
