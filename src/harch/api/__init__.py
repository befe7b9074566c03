"""HTTP in: `/v1` in the shapes of the public clients, authentication, event stream, node agents' connections."""
