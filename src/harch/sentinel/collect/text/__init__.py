"""What does a page of metrics say? The Prometheus text format and OpenMetrics."""
