"""How do chunks travel between hubs? In threads, over connections of their own that let the links go first."""
