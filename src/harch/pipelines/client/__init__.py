"""How do messages get in and out fast? A small NATS client: a pure protocol, and a thin transport around it."""
