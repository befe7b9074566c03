"""What happened around an alert? The metrics, log lines and traces that belong to it, chosen and gathered."""
