"""What goes over the wire between a hub and its clients? Every answer's shape stands here once."""
