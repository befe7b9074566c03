"""What do the text functions of LogQL compute? Addresses, JSON paths, templates, values with units."""
