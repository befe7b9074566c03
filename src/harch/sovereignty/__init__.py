"""May it run, move or be seen there? Countries, and the hard rules about them."""
