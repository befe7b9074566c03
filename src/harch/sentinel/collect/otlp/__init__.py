"""What does an OpenTelemetry message say? Translated into series as Prometheus translates it."""
