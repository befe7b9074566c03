"""What does a hub do with content? Who may store and read it, how long it is kept, and how it comes from other hubs."""
