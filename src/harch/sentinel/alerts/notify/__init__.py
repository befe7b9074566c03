"""How does a notification reach people? Messages are made without I/O; couriers carry them."""
