"""How does a running hub take part in its federation? Links, gossip, offers of work and questions, put together."""
