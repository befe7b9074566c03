"""How do hubs reach each other? Long-lived, mutually authenticated TLS 1.3 links that carry framed messages."""
