"""Which series are derived, and when is something wrong? Prometheus rule files, evaluated group by group."""
