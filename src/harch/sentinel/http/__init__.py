"""How do programs ask for telemetry, and send it? The protocols that collectors and dashboards already speak."""
