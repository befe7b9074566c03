"""How do messages get in and out fast? A small NATS client: pure protocol, and two thin transports around it."""
